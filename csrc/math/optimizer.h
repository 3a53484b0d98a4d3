// Server optimizers, one element at a time.
//
//   m    <- b1*m + (1-b1)*D
//   v    <- b2*v + (1-b2)*D*D
//   vhat <- max(vhat, v)                                   AMSGrad only (FADAS, paper 000, Eq. 3)
//   sgd      x <- x + lr*D
//   momentum m <- b1*m + D ; x <- x + lr*m                 FedAvgM
//   adam     x <- x + lr*m/(sqrt(v)*root_scale + eps)      FedAdam
//   amsgrad  x <- x + lr*m/(sqrt(vhat)*root_scale + eps)   FedAMS option 1, FADAS
//   yogi     v <- v - (1-b2)*D*D*sign(v - D*D) ; x as adam FedYogi
//   adagrad  v <- v + D*D ;                      x as adam FedAdagrad
//   lookahead  v as adam; x <- x + lr*(b1*m + (1-b1)*D)/(sqrt(v)*root_scale + eps), m the new one   FedAC
//
// `root_scale` is 1, or 1/sqrt(1-b2^r) when Adam's bias correction is asked for (then lr carries 1/(1-b1^r)).
// Multiplying by exactly 1 changes no bit, so one formula serves both.
#pragma once

#include <math.h>

#include "portable.h"

namespace fastagg {

enum OptimizerKind : int { kSgd = 0, kMomentum, kAdam, kAmsgrad, kYogi, kAdagrad, kLookahead, kOptimizerKinds };

struct Hyper {
  float lr;
  float beta1;
  float rest1;  // 1 - beta1, rounded once from double
  float beta2;
  float rest2;  // 1 - beta2, rounded once from double
  float eps;
  float root_scale;
};

struct Root {
  FASTAGG_FN float of(float value, float scale) { return sqrtf(value) * scale; }
};

// F is float, or a vector of them with a Roots that knows its square root, scaled by root_scale.
template <typename Roots, typename F>
FASTAGG_FN F descend(F x, F m, F second, const Hyper& h) {
  return x + (h.lr * m) / (Roots::of(second, h.root_scale) + h.eps);
}

template <typename F>
FASTAGG_FN F ema(float decay, F old, float rest, F value) {
  return decay * old + rest * value;
}

// Updates the moments it is given; unused ones are not touched. decay1 and decay2 multiply the old m and v: the betas,
// and the unit of a moment that is stored in one.
template <int Kind, typename F>
FASTAGG_FN void advance(F d, F& m, F& v, F& vhat, const Hyper& h, float decay1, float decay2) {
  if constexpr (Kind == kMomentum) m = decay1 * m + d;
  if constexpr (Kind > kMomentum) m = ema(decay1, m, h.rest1, d);
  if constexpr (Kind == kAdam || Kind == kAmsgrad || Kind == kLookahead) v = ema(decay2, v, h.rest2, d * d);
  if constexpr (Kind == kAdagrad) v = v + d * d;
  if constexpr (Kind == kYogi) {
    const F square = d * d;
    const F gap = v - square;
    const F sign = gap > 0.0f ? 1.0f : (gap < 0.0f ? -1.0f : 0.0f);
    v = v - (h.rest2 * square) * sign;
  }
  if constexpr (Kind == kAmsgrad) vhat = vhat > v ? vhat : v;
}

// The new x, from the new moments.
template <int Kind, typename Roots, typename F>
FASTAGG_FN F moved(F d, F x, F m, F v, F vhat, const Hyper& h) {
  if constexpr (Kind == kSgd) return x + h.lr * d;
  if constexpr (Kind == kMomentum) return x + h.lr * m;
  if constexpr (Kind == kAmsgrad) return descend<Roots>(x, m, vhat, h);
  if constexpr (Kind == kLookahead) return descend<Roots>(x, ema(h.beta1, m, h.rest1, d), v, h);
  return descend<Roots>(x, m, v, h);
}

template <int Kind>
FASTAGG_FN float optimize(float d, float x, float& m, float& v, float& vhat, const Hyper& h) {
  advance<Kind>(d, m, v, vhat, h, h.beta1, h.beta2);
  return moved<Kind, Root>(d, x, m, v, vhat, h);
}

// Which moments each optimizer owns; also the order of optimizers everywhere in the package.
constexpr bool kHasM[kOptimizerKinds] = {false, true, true, true, true, true, true};
constexpr bool kHasV[kOptimizerKinds] = {false, false, true, true, true, true, true};
constexpr bool kHasVhat[kOptimizerKinds] = {false, false, false, true, false, false, false};

}  // namespace fastagg
