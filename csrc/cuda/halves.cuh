// Access to a vector's scale blocks (256 elements) with one warp. Thread t has elements 4t..4t+3 of each half.
#pragma once

#include <type_traits>

#include "../math/rows.h"
#include "vector.cuh"

namespace fastagg::cuda {

// A thread's four elements of both halves of a scale block.
struct Halves {
  Quad half[2];
};

constexpr int kScaleBlocks = static_cast<int>(kBlock / kScaleBlock);

// Calls visit(h, e) for each of this thread's elements.
template <typename Visit>
__device__ __forceinline__ void each(Visit visit) {
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int e = 0; e < kFour; ++e) visit(h, e);
}

// Calls visit(h, at, left) for this thread's four elements at `at`, in each half h of the scale block at `begin`. The
// vector has `left` elements from `at` on, or ends before `at` if `left` is negative.
template <typename Visit>
__device__ __forceinline__ void each_half(int64_t begin, int64_t size, Visit visit) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t at = begin + h * kHalf + lane() * kFour;
    visit(h, at, size - at);
  }
}

// Calls visit(std::true_type{}) if `whole` is true, otherwise visit(std::false_type{}). So `visit` is compiled twice.
// This is useful only for loads, because a whole block's loads need not wait for each other.
template <typename Visit>
__device__ __forceinline__ void loading(bool whole, Visit visit) {
  whole ? visit(std::true_type{}) : visit(std::false_type{});
}

template <bool Whole>
__device__ __forceinline__ Halves load_halves(const float* in, int64_t begin, int64_t size) {
  Halves out;
  each_half(begin, size, [&](int h, int64_t at, int64_t left) { out.half[h] = load<Whole>(in + at, left); });
  return out;
}

template <bool Whole, typename Reader>
__device__ __forceinline__ Halves read_halves(Reader& reader, int64_t begin, int64_t size) {
  Halves out;
  each_half(begin, size, [&](int h, int64_t at, int64_t left) { out.half[h] = reader.template read<Whole>(at, left); });
  return out;
}

__device__ __forceinline__ void store_halves(bool whole, float* out, int64_t begin, int64_t size, const Halves& x) {
  each_half(begin, size, [&](int h, int64_t at, int64_t left) { store(whole, out + at, left, x.half[h]); });
}

// Calls visit(whole, reader, begin, j) for every scale block of this warp. j is the scale block's number in its block
// of 1,024 elements. `aligned`: whether all vectors are aligned to 16 bytes. `whole`: whether 16-byte accesses may be
// used. Before the scale blocks of a block of 1,024, calls before(block) with the block's number.
template <typename Reader, typename Before, typename Visit>
__device__ __forceinline__ void for_each_scale_block(const typename Reader::SourceData& source, bool aligned,
                                                     Before before, Visit visit) {
  // The block numbers have 32 bits, to save registers. 32 bits are enough for any GPU's memory.
  const auto blocks = static_cast<unsigned>((source.size + kBlock - 1) / kBlock);
  for (auto block = static_cast<unsigned>(warp_of_grid()); block < blocks;
       block += static_cast<unsigned>(warps_of_grid())) {
    const int64_t first = static_cast<int64_t>(block) * kBlock;
    Reader reader(source, first);
    before(block);
#pragma unroll 1
    for (int j = 0; j < kScaleBlocks; ++j) {
      const int64_t begin = first + j * kScaleBlock;
      if (begin >= source.size) break;  // all threads of the warp leave the loop together
      visit(aligned && begin + kScaleBlock <= source.size, reader, begin, j);
    }
  }
}

}  // namespace fastagg::cuda
