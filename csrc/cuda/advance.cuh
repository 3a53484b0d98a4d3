// An optimizer's step along a direction that was formed in registers: one warp, one scale block, moments of either
// kind.
#pragma once

#include <type_traits>

#include "moments.cuh"
#include "optimizer.cuh"

namespace fastagg::cuda {

// A thread's moments of a scale block in fp32.
struct PlainMoments {
  Held half[2];
};

template <bool Whole>
__device__ __forceinline__ PlainMoments load_plain(const Moments& from, int64_t begin, int64_t size) {
  PlainMoments found;
  each_half(begin, size,
            [&](int h, int64_t at, int64_t left) { found.half[h] = load_moments<Whole>(has(from), from, at, left); });
  return found;
}

__device__ __forceinline__ void optimize_plain(const Optimizer& o, PlainMoments& held, bool whole, int64_t begin,
                                               int64_t size, const Halves& d, const Halves& x) {
  Halves out;
  visit_at(o.kind, Optimizers{}, [&](auto kind) {
#pragma unroll
    for (int h = 0; h < 2; ++h) out.half[h] = stepped<decltype(kind)>(o.hyper, d.half[h], x.half[h], held.half[h]);
  });
  each_half(begin, size, [&](int h, int64_t at, int64_t left) {
    store_step(whole, has(o.moments), o, at, left, out.half[h], held.half[h]);
  });
}

template <bool Coded>
using MomentsIn = std::conditional_t<Coded, CodedMoments, PlainMoments>;

template <bool Coded, bool Whole>
__device__ __forceinline__ MomentsIn<Coded> load_moments_in(const Moments& from, int64_t begin, int64_t size) {
  if constexpr (Coded)
    return load_coded<Whole>(from, begin);
  else
    return load_plain<Whole>(from, begin, size);
}

template <bool Coded>
__device__ __forceinline__ void advance(const Optimizer& o, MomentsIn<Coded>& held, bool whole, int64_t begin,
                                        int64_t size, const Halves& d, const Halves& x) {
  if constexpr (Coded)
    optimize_coded(o, held, whole, begin, size, begin / kScaleBlock, d, x);
  else
    optimize_plain(o, held, whole, begin, size, d, x);
}

}  // namespace fastagg::cuda
