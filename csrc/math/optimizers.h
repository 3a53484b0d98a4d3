// The server's optimizers, one element at a time. An optimizer is a struct that updates the moments m, v, vhat and the
// model x along a direction D. b1 and b2 are the betas.
//
//   m    <- b1*m + (1-b1)*D
//   v    <- b2*v + (1-b2)*D*D
//   vhat <- max(vhat, v)                                   AMSGrad only (FADAS, Eq. 3)
//   sgd      x <- x + lr*D
//   momentum m <- b1*m + D ; x <- x + lr*m                 FedAvgM
//   adam     x <- x + lr*m/(sqrt(v + eps_root)*root_scale + eps)   FedAdam
//   amsgrad  x <- x + lr*m/(sqrt(vhat + eps_root)*root_scale + eps)   FedAMS option 1, FADAS
//   yogi     v <- v - (1-b2)*D*D*sign(v - D*D) ; x as adam   FedYogi
//   adagrad  v <- v + D*D ;                      x as adam   FedAdagrad
//   lookahead  m, v as adam; then x <- x + lr*(b1*m + (1-b1)*D)/(sqrt(v + eps_root)*root_scale + eps)   FedAC
//   nesterov   m <- b1*m + (1-b2)*D ; x <- x + lr*(D + b1*m)     DiLoCo (b2 = 0), HeLoCo (b2 = b1); b2 is the dampening
//   delayed    x <- x + lr*D/N ; v <- v + D ; at every N-th step also m <- b1*m + v/N ; x <- x + lr*b1*m ; v <- 0
//              Delayed Nesterov (Async Local-SGD, Algorithm 3): v is a sum of directions, and may be negative
//
// Without Adam's bias correction, `root_scale` is 1. With the correction, in step r, `root_scale` is 1/sqrt(1-b2^r), lr
// includes the factor 1/(1-b1^r), and eps_root the factor 1-b2^r. Without the correction these factors are 1, which
// changes no bit. So one formula works in both cases.
//
// With weight decay, every optimizer uses D - drag*x in place of D, and keep*x in place of x.
//
// To add an optimizer, write a struct and add it to the list here. Add its class to fastagg/rules/optimizers.py and its
// formula to tests/support/reference/step.py. CPU, CUDA, Python and the tests take the names from the list.
#pragma once

#include <algorithm>
#include <cmath>

#include "hyper.h"
#include "list.h"
#include "portable.h"

namespace fastagg {

// Returns a bound on |m|/(sqrt(v) + eps), with a margin for rounding. Returns infinity if no bound is known. `c`
// belongs to the optimizer: v is at least c*b2^k times the square of the direction k steps ago. In m, this direction
// has the weight (1-b1)*b1^k. If a direction is below kVanishing, its square may be 0 in fp32. Then v may be 0 while m
// is up to kVanishing. The quotient is then at most kVanishing/eps.
constexpr double kVanishing = 1e-22;
inline double largest_ratio(const Decay& s, double c) {
  const double left = 1.0 - s.beta1 / std::sqrt(s.beta2);
  if (!(c > 0.0 && left > 0.0)) return HUGE_VAL;
  const double ratio = (1.0 - s.beta1) / std::sqrt(c) / left + 1.0 / std::sqrt(c);
  return std::max(2.0 * ratio, kVanishing / s.eps);
}

template <typename F>
FASTAGG_FN F ema(float decay, F old, float rest, F value) {
  return decay * old + rest * value;
}

template <typename L, typename F>
FASTAGG_FN F descend(F x, F m, F second, const Hyper& h) {
  return x + (h.lr * m) / (L::root(second + h.eps_root) * h.root_scale + h.eps);
}

FASTAGG_FN bool decays(const Hyper& h) { return h.drag != 0.0f || h.keep != 1.0f; }

FASTAGG_FN void decay(float& d, float& x, const Hyper& h) {
  d = d - h.drag * x;
  x = h.keep * x;
}

// The moments of one element, or of one vector of elements. An optimizer does not read moments that it lacks.
template <typename F>
struct MomentValues {
  F m, v, vhat;
};

// Every optimizer defines:
//   kM, kV, kVhat  whether the optimizer has the moment
//   kScalesV       whether `advance` uses v without decay2. An 8-bit v must then be multiplied by its scale first.
//   kAlong         whether x changes by lr times the direction
//   kPlain         whether the moments are always fp32, never 8 bits
//   advance        updates the moments. decay1 and decay2 multiply the old m and v. They are the betas, for 8-bit
//                  moments times the scale c*2^span (moments.h). L has the operations on elements (portable.h).
//   moved          returns the new x, from the moments before and after `advance`
//   reach          updates the bounds of the moments for a step whose direction has elements of magnitude d or less.
//                  Returns a bound on the magnitude of the change of x, divided by lr.
struct Sgd {
  static constexpr const char* kName = "sgd";
  static constexpr bool kM = false, kV = false, kVhat = false, kScalesV = false, kAlong = true, kPlain = true;
  template <typename L, typename F>
  FASTAGG_FN void advance(F, MomentValues<F>&, const Hyper&, float, float) {}
  template <typename L, typename F>
  FASTAGG_FN F moved(F d, F x, const MomentValues<F>&, const MomentValues<F>&, const Hyper& h) {
    return x + h.lr * d;
  }
  static double reach(const Decay&, double d, MomentBounds&) { return d; }
};

struct Momentum {
  static constexpr const char* kName = "momentum";
  static constexpr bool kM = true, kV = false, kVhat = false, kScalesV = false, kAlong = false, kPlain = false;
  template <typename L, typename F>
  FASTAGG_FN void advance(F d, MomentValues<F>& s, const Hyper&, float decay1, float) {
    s.m = decay1 * s.m + d;
  }
  template <typename L, typename F>
  FASTAGG_FN F moved(F, F x, const MomentValues<F>&, const MomentValues<F>& s, const Hyper& h) {
    return x + h.lr * s.m;
  }
  static double reach(const Decay& s, double d, MomentBounds& bound) { return bound.m = s.beta1 * bound.m + d; }
};

struct Adam {
  static constexpr const char* kName = "adam";
  static constexpr bool kM = true, kV = true, kVhat = false, kScalesV = false, kAlong = false, kPlain = false;
  template <typename L, typename F>
  FASTAGG_FN void advance(F d, MomentValues<F>& s, const Hyper& h, float decay1, float decay2) {
    s.m = ema(decay1, s.m, h.rest1, d);
    s.v = ema(decay2, s.v, h.rest2, d * d);
  }
  template <typename L, typename F>
  FASTAGG_FN F moved(F, F x, const MomentValues<F>&, const MomentValues<F>& s, const Hyper& h) {
    return descend<L>(x, s.m, s.v, h);
  }
  static double reach(const Decay& s, double d, MomentBounds& bound) {
    bound = {std::max(bound.m, d), std::max(bound.v, d * d)};
    return std::min(bound.m / s.eps, largest_ratio(s, 1.0 - s.beta2));
  }
};

struct Amsgrad : Adam {
  static constexpr const char* kName = "amsgrad";
  static constexpr bool kM = true, kV = true, kVhat = true, kScalesV = false, kAlong = false, kPlain = false;
  template <typename L, typename F>
  FASTAGG_FN void advance(F d, MomentValues<F>& s, const Hyper& h, float decay1, float decay2) {
    Adam::advance<L>(d, s, h, decay1, decay2);
    s.vhat = L::larger(s.vhat, s.v);
  }
  template <typename L, typename F>
  FASTAGG_FN F moved(F, F x, const MomentValues<F>&, const MomentValues<F>& s, const Hyper& h) {
    return descend<L>(x, s.m, s.vhat, h);
  }
};

struct Yogi : Adam {
  static constexpr const char* kName = "yogi";
  static constexpr bool kM = true, kV = true, kVhat = false, kScalesV = true, kAlong = false, kPlain = false;
  template <typename L, typename F>
  FASTAGG_FN void advance(F d, MomentValues<F>& s, const Hyper& h, float decay1, float) {
    s.m = ema(decay1, s.m, h.rest1, d);
    const F square = d * d;
    s.v = s.v - (h.rest2 * square) * L::sign(s.v - square);
  }
  static double reach(const Decay& s, double d, MomentBounds& bound) {
    bound = {std::max(bound.m, d), bound.v + d * d};
    return std::min(bound.m / s.eps, largest_ratio(s, std::min(s.beta2, 1.0 - s.beta2)));
  }
};

struct Adagrad : Adam {
  static constexpr const char* kName = "adagrad";
  static constexpr bool kM = true, kV = true, kVhat = false, kScalesV = true, kAlong = false, kPlain = false;
  template <typename L, typename F>
  FASTAGG_FN void advance(F d, MomentValues<F>& s, const Hyper& h, float decay1, float) {
    s.m = ema(decay1, s.m, h.rest1, d);
    s.v = s.v + d * d;
  }
  static double reach(const Decay& s, double d, MomentBounds& bound) {
    bound = {std::max(bound.m, d), bound.v + d * d};
    return std::min(bound.m / s.eps, std::max(2.0, kVanishing / s.eps));
  }
};

struct Lookahead : Adam {
  static constexpr const char* kName = "lookahead";
  static constexpr bool kM = true, kV = true, kVhat = false, kScalesV = false, kAlong = false, kPlain = false;
  template <typename L, typename F>
  FASTAGG_FN F moved(F d, F x, const MomentValues<F>&, const MomentValues<F>& s, const Hyper& h) {
    return descend<L>(x, ema(h.beta1, s.m, h.rest1, d), s.v, h);
  }
};

struct Nesterov {
  static constexpr const char* kName = "nesterov";
  static constexpr bool kM = true, kV = false, kVhat = false, kScalesV = false, kAlong = false, kPlain = false;
  template <typename L, typename F>
  FASTAGG_FN void advance(F d, MomentValues<F>& s, const Hyper& h, float decay1, float) {
    s.m = ema(decay1, s.m, h.rest2, d);
  }
  template <typename L, typename F>
  FASTAGG_FN F moved(F d, F x, const MomentValues<F>&, const MomentValues<F>& s, const Hyper& h) {
    return x + h.lr * (d + h.beta1 * s.m);
  }
  static double reach(const Decay& s, double d, MomentBounds& bound) {
    bound.m = s.beta1 * bound.m + (1.0 - s.beta2) * d;
    return d + s.beta1 * bound.m;
  }
};

struct DelayedMomentum {
  static constexpr const char* kName = "delayed";
  static constexpr bool kM = true, kV = true, kVhat = false, kScalesV = true, kAlong = false, kPlain = true;
  template <typename L, typename F>
  FASTAGG_FN void advance(F d, MomentValues<F>& s, const Hyper& h, float decay1, float) {
    s.v = s.v + d;
    if (!h.ends) return;
    s.m = ema(decay1, s.m, h.part, s.v);
    s.v = F{};
  }
  template <typename L, typename F>
  FASTAGG_FN F moved(F d, F x, const MomentValues<F>&, const MomentValues<F>& s, const Hyper& h) {
    const F along = h.part * d;
    return x + h.lr * (h.ends ? along + h.beta1 * s.m : along);
  }
  static double reach(const Decay& s, double d, MomentBounds& bound) {
    bound.v = bound.v + d;
    bound.m = std::max(bound.m, s.beta1 * bound.m + s.part * bound.v);
    return d + s.beta1 * bound.m;
  }
};

using Optimizers = List<Sgd, Momentum, Adam, Amsgrad, Yogi, Adagrad, Lookahead, Nesterov, DelayedMomentum>;

}  // namespace fastagg
