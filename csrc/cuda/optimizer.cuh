// Runs the optimizers of csrc/math/optimizers.h on four elements at a time.
#pragma once

#include "../math/optimizers.h"
#include "vector.cuh"

namespace fastagg::cuda {

// Takes a step along a direction with rows (cached_step.cu). step() calls this function.
void cached_step(const Update& update, const Direction& direction, const Optimizer& optimizer,
                 const LaunchPlace& where);
// Takes a step along a direction with noise (noisy_step.cu). step() calls this function.
void noisy_step(const Update& update, const Direction& direction, const Optimizer& optimizer, const LaunchPlace& where);

// The fields of a Direction without rows that the kernels read.
struct BufferFields {
  const float *acc, *base;
  double gain, weight;
  float scale;
};

inline BufferFields summed_of(const Direction& direction) {
  return {direction.buffer.acc, direction.base, direction.gain, direction.weight, direction.buffer.scale};
}

struct Factors {
  float gain, weight, both;
};

__device__ __forceinline__ Factors factors_of(const BufferFields& along) {
  const auto gain = static_cast<float>(along.gain), weight = static_cast<float>(along.weight);
  return {gain, weight, gain * weight};
}

// Computes one element of D. `u` is the element of the update, and `other` that of acc (flush) or of base (blend).
template <DirectionKind Direct>
__device__ __forceinline__ float direction_of(float u, float x, float other, const Factors& by, float scale) {
  if constexpr (Direct == kSingle) return by.both * u;
  if constexpr (Direct == kFlush) return flush_of(other, u, by.both, scale);
  if constexpr (Direct == kBlend) return blend_of(other, x, u, by.gain, by.weight);
}

// The moments of a thread's four elements.
using ThreadMoments = MomentValues<Quad>;

// Whether the optimizer has each moment. If the optimizer is a constant, so are the flags.
struct MomentPresence {
  bool m, v, vhat;
};

__device__ __forceinline__ MomentPresence has(const Moments& moments) {
  return {moments.m != nullptr, moments.v != nullptr, moments.vhat != nullptr};
}

template <bool Whole>
__device__ __forceinline__ ThreadMoments load_moments(const MomentPresence& has, const Moments& from, int64_t at,
                                                      int64_t left) {
  ThreadMoments held{};
  if (has.m) held.m = load<Whole>(from.m + at, left);
  if (has.v) held.v = load<Whole>(from.v + at, left);
  if (has.vhat) held.vhat = load<Whole>(from.vhat + at, left);
  return held;
}

inline bool moments_aligned(const Moments& moments) {
  return all_aligned(moments.m, moments.v, moments.vhat, moments.coded_m, moments.coded_v, moments.coded_vhat);
}

// Writes the new x and the new moments.
__device__ __forceinline__ void store_step(bool whole, const MomentPresence& has, const Optimizer& o, int64_t at,
                                           int64_t left, const Quad& x, const ThreadMoments& held) {
  store(whole, o.x_out + at, left, x);
  if (has.m) store(whole, o.moments.m + at, left, held.m);
  if (has.v) store(whole, o.moments.v + at, left, held.v);
  if (has.vhat) store(whole, o.moments.vhat + at, left, held.vhat);
}

// Returns the new x. `held` becomes the new moments.
template <typename Kind>
__device__ __forceinline__ Quad stepped(const Hyper& hyper, const Quad& d, const Quad& x, ThreadMoments& held) {
  Quad out;
  const bool with_decay = decays(hyper);
#pragma unroll
  for (int e = 0; e < kFour; ++e) {
    const MomentValues<float> before{held.m.v[e], held.v.v[e], held.vhat.v[e]};
    MomentValues<float> after = before;
    float along = d.v[e], from = x.v[e];
    if (with_decay) decay(along, from, hyper);
    Kind::template advance<Scalar>(along, after, hyper, hyper.beta1, hyper.beta2);
    out.v[e] = Kind::template moved<Scalar>(along, from, before, after, hyper);
    held.m.v[e] = after.m;
    held.v.v[e] = after.v;
    held.vhat.v[e] = after.vhat;
  }
  return out;
}

}  // namespace fastagg::cuda
