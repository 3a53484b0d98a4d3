// The optimizers of csrc/math/optimizers.h on four elements at a time, and the effect of a verdict on gains and
// weights.
#pragma once

#include "../math/optimizers.h"
#include "vector.cuh"

namespace fastagg::cuda {

// For directions that use rows (cached_step.cu). step() calls it for them.
void cached_step(const Update& update, const Direction& direction, const Optimizer& optimizer, const Where& where);

__device__ __forceinline__ bool kept(const Verdict* verdict) { return verdict == nullptr || verdict->keep != 0.0; }

// An update's factor, if gain and weight are one factor.
__device__ __forceinline__ float judged(double factor, const Verdict* verdict) {
  return static_cast<float>(verdict == nullptr ? factor : factor * verdict->gain * verdict->weight);
}

// A thread's moments.
using Held = MomentsOf<Four>;

template <typename Kind, bool Whole>
__device__ __forceinline__ Held load_moments(const Moments& from, int64_t at, int64_t left) {
  Held found{};
  if constexpr (Kind::kM) found.m = load<Whole>(from.m + at, left);
  if constexpr (Kind::kV) found.v = load<Whole>(from.v + at, left);
  if constexpr (Kind::kVhat) found.vhat = load<Whole>(from.vhat + at, left);
  return found;
}

// Loads the moments that the optimizer has.
template <bool Whole>
__device__ __forceinline__ Held load_moments(const Moments& from, int64_t at, int64_t left) {
  Held found{};
  if (from.m != nullptr) found.m = load<Whole>(from.m + at, left);
  if (from.v != nullptr) found.v = load<Whole>(from.v + at, left);
  if (from.vhat != nullptr) found.vhat = load<Whole>(from.vhat + at, left);
  return found;
}

inline bool moments_aligned(const Moments& moments) {
  return all_aligned(moments.m, moments.v, moments.vhat, moments.coded_m, moments.coded_v, moments.coded_vhat);
}

// Writes the new x and the new moments.
template <typename Kind, bool Whole>
__device__ __forceinline__ void optimize(const Optimizer& o, int64_t at, int64_t left, const Four& d, const Four& x,
                                         Held held) {
  Four out;
#pragma unroll
  for (int e = 0; e < kFour; ++e) {
    MomentsOf<float> one{held.m.v[e], held.v.v[e], held.vhat.v[e]};
    Kind::template advance<Scalar>(d.v[e], one, o.hyper, o.hyper.beta1, o.hyper.beta2);
    out.v[e] = Kind::template moved<Scalar>(d.v[e], x.v[e], one, o.hyper);
    held.m.v[e] = one.m;
    held.v.v[e] = one.v;
    held.vhat.v[e] = one.vhat;
  }
  store<Whole>(o.x_out + at, left, out);
  if constexpr (Kind::kM) store<Whole>(o.moments.m + at, left, held.m);
  if constexpr (Kind::kV) store<Whole>(o.moments.v + at, left, held.v);
  if constexpr (Kind::kVhat) store<Whole>(o.moments.vhat + at, left, held.vhat);
}

}  // namespace fastagg::cuda
