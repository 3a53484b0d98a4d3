// Steps a scale block (256 elements) with one warp. The direction is in registers. This file steps with fp32 moments,
// and moments.cuh with 8-bit moments.
#pragma once

#include <type_traits>

#include "moments.cuh"
#include "optimizer.cuh"

namespace fastagg::cuda {

// The fp32 moments of a thread's elements of a scale block.
struct PlainMoments {
  ThreadMoments half[2];
};

template <bool Whole>
__device__ __forceinline__ void load_block(PlainMoments& to, const Moments& from, int64_t begin, int64_t size) {
  each_half(begin, size,
            [&](int h, int64_t at, int64_t left) { to.half[h] = load_moments<Whole>(has(from), from, at, left); });
}

__device__ __forceinline__ void advance(const Optimizer& o, PlainMoments& held, bool whole, int64_t begin, int64_t size,
                                        const Halves& d, const Halves& x) {
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
using MomentsForm = std::conditional_t<Coded, CodedMoments, PlainMoments>;

}  // namespace fastagg::cuda
