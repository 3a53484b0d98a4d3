// Server optimizers, one element at a time. Each is a struct with its moments, their update, and the update of x.
//
//   m    <- b1*m + (1-b1)*D
//   v    <- b2*v + (1-b2)*D*D
//   vhat <- max(vhat, v)                                   AMSGrad only (FADAS, Eq. 3)
//   sgd      x <- x + lr*D
//   momentum m <- b1*m + D ; x <- x + lr*m                 FedAvgM
//   adam     x <- x + lr*m/(sqrt(v)*root_scale + eps)      FedAdam
//   amsgrad  x <- x + lr*m/(sqrt(vhat)*root_scale + eps)   FedAMS option 1, FADAS
//   yogi     v <- v - (1-b2)*D*D*sign(v - D*D) ; x as adam FedYogi
//   adagrad  v <- v + D*D ;                      x as adam FedAdagrad
//   lookahead  v as adam; x <- x + lr*(b1*m + (1-b1)*D)/(sqrt(v)*root_scale + eps), m the new one   FedAC
//
// `root_scale` is 1, or 1/sqrt(1-b2^r) with Adam's bias correction (lr then includes 1/(1-b1^r)).
// Multiplying by exactly 1 changes no bit, so one formula works for both.
//
// To add an optimizer, write a struct and add it to the list here. Add its class to fastagg/parts/optimizers.py and its
// formula to fastagg/reference/step.py and tests/kernels.py. CPU, CUDA and Python take the names from the list.
#pragma once

#include "list.h"
#include "portable.h"

namespace fastagg {

struct Hyper {
  float lr;
  float beta1;
  float rest1;  // 1 - beta1, rounded once from double
  float beta2;
  float rest2;  // 1 - beta2, rounded once from double
  float eps;
  float root_scale;
};

template <typename F>
FASTAGG_FN F ema(float decay, F old, float rest, F value) {
  return decay * old + rest * value;
}

template <typename L, typename F>
FASTAGG_FN F descend(F x, F m, F second, const Hyper& h) {
  return x + (h.lr * m) / (L::root(second) * h.root_scale + h.eps);
}

// The moments of one element or vector. Those that the optimizer does not have are never read.
template <typename F>
struct MomentsOf {
  F m, v, vhat;
};

// `advance` updates the moments. decay1 and decay2 multiply the old m and v. They are the betas times the unit, if a
// moment is stored in units. kScalesV: v is also used without a decay, so its unit must be multiplied in first. `moved`
// computes the new x from the new moments. L: the operations on lanes (portable.h).
struct Sgd {
  static constexpr const char* kName = "sgd";
  static constexpr bool kM = false, kV = false, kVhat = false, kScalesV = false;
  template <typename L, typename F>
  FASTAGG_FN void advance(F, MomentsOf<F>&, const Hyper&, float, float) {}
  template <typename L, typename F>
  FASTAGG_FN F moved(F d, F x, const MomentsOf<F>&, const Hyper& h) {
    return x + h.lr * d;
  }
};

struct Momentum {
  static constexpr const char* kName = "momentum";
  static constexpr bool kM = true, kV = false, kVhat = false, kScalesV = false;
  template <typename L, typename F>
  FASTAGG_FN void advance(F d, MomentsOf<F>& s, const Hyper&, float decay1, float) {
    s.m = decay1 * s.m + d;
  }
  template <typename L, typename F>
  FASTAGG_FN F moved(F, F x, const MomentsOf<F>& s, const Hyper& h) {
    return x + h.lr * s.m;
  }
};

struct Adam {
  static constexpr const char* kName = "adam";
  static constexpr bool kM = true, kV = true, kVhat = false, kScalesV = false;
  template <typename L, typename F>
  FASTAGG_FN void advance(F d, MomentsOf<F>& s, const Hyper& h, float decay1, float decay2) {
    s.m = ema(decay1, s.m, h.rest1, d);
    s.v = ema(decay2, s.v, h.rest2, d * d);
  }
  template <typename L, typename F>
  FASTAGG_FN F moved(F, F x, const MomentsOf<F>& s, const Hyper& h) {
    return descend<L>(x, s.m, s.v, h);
  }
};

struct Amsgrad {
  static constexpr const char* kName = "amsgrad";
  static constexpr bool kM = true, kV = true, kVhat = true, kScalesV = false;
  template <typename L, typename F>
  FASTAGG_FN void advance(F d, MomentsOf<F>& s, const Hyper& h, float decay1, float decay2) {
    Adam::advance<L>(d, s, h, decay1, decay2);
    s.vhat = L::larger(s.vhat, s.v);
  }
  template <typename L, typename F>
  FASTAGG_FN F moved(F, F x, const MomentsOf<F>& s, const Hyper& h) {
    return descend<L>(x, s.m, s.vhat, h);
  }
};

struct Yogi {
  static constexpr const char* kName = "yogi";
  static constexpr bool kM = true, kV = true, kVhat = false, kScalesV = true;
  template <typename L, typename F>
  FASTAGG_FN void advance(F d, MomentsOf<F>& s, const Hyper& h, float decay1, float) {
    s.m = ema(decay1, s.m, h.rest1, d);
    const F square = d * d;
    s.v = s.v - (h.rest2 * square) * L::sign(s.v - square);
  }
  template <typename L, typename F>
  FASTAGG_FN F moved(F d, F x, const MomentsOf<F>& s, const Hyper& h) {
    return Adam::moved<L>(d, x, s, h);
  }
};

struct Adagrad {
  static constexpr const char* kName = "adagrad";
  static constexpr bool kM = true, kV = true, kVhat = false, kScalesV = true;
  template <typename L, typename F>
  FASTAGG_FN void advance(F d, MomentsOf<F>& s, const Hyper& h, float decay1, float) {
    s.m = ema(decay1, s.m, h.rest1, d);
    s.v = s.v + d * d;
  }
  template <typename L, typename F>
  FASTAGG_FN F moved(F d, F x, const MomentsOf<F>& s, const Hyper& h) {
    return Adam::moved<L>(d, x, s, h);
  }
};

struct Lookahead {
  static constexpr const char* kName = "lookahead";
  static constexpr bool kM = true, kV = true, kVhat = false, kScalesV = false;
  template <typename L, typename F>
  FASTAGG_FN void advance(F d, MomentsOf<F>& s, const Hyper& h, float decay1, float decay2) {
    Adam::advance<L>(d, s, h, decay1, decay2);
  }
  template <typename L, typename F>
  FASTAGG_FN F moved(F d, F x, const MomentsOf<F>& s, const Hyper& h) {
    return descend<L>(x, ema(h.beta1, s.m, h.rest1, d), s.v, h);
  }
};

using Optimizers = List<Sgd, Momentum, Adam, Amsgrad, Yogi, Adagrad, Lookahead>;

}  // namespace fastagg
