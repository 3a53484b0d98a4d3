// Reads and writes scale blocks (256 elements) of stored rows (csrc/math/rows.h). One warp processes a scale block.
// Elements i and i+128 of a scale block are pair i. Thread t has pairs 4t..4t+3, and makes Philox calls 4t..4t+3.
#pragma once

#include <type_traits>

#include "../math/philox.h"
#include "halves.cuh"

namespace fastagg::cuda {

// The results of a thread's four Philox calls.
struct Dice {
  Philox call[kFour];

  // Returns the 16 random bits for element e of half h of scale block j.
  __device__ __forceinline__ uint32_t of(int j, int h, int e) const {
    const Philox& p = call[e];
    const uint32_t word = j == 0 ? p.a : j == 1 ? p.b : j == 2 ? p.c : p.d;
    return h == 0 ? word & 0xffffu : word >> 16;
  }
};

__device__ __forceinline__ Dice roll(const RandomKey& key, int64_t block) {
  Dice dice;
#pragma unroll
  for (int e = 0; e < kFour; ++e) dice.call[e] = random_call(key, block, static_cast<uint32_t>(lane() * kFour + e));
  return dice;
}

// Returns the largest magnitude in a warp's scale block. NaN counts as larger than any number.
__device__ __forceinline__ float absmax(const Halves& x) {
  unsigned largest = 0;
  each([&](int h, int e) {
    const unsigned magnitude = bits_of(x.half[h].v[e]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  });
  return float_from_bits(warp_max(largest));
}

// A thread's codes of a scale block. If a pair has two codes, the scale block is stored as two planes: all first codes,
// and then all second codes. Otherwise there is one plane. One access reads or writes a thread's four codes of a plane.
template <typename Format>
struct Codes {
  using Code = typename Format::Code;
  using Word = std::conditional_t<sizeof(Code) == 4, uint4, std::conditional_t<sizeof(Code) == 2, uint2, unsigned>>;
  static_assert(sizeof(Word) == kFour * sizeof(Code), "codes of 1, 2 or 4 bytes");

  Code of[Format::kPlanes * kFour];

  static __device__ __forceinline__ Word* place(const Row& row, int64_t index, int plane) {
    Code* block = static_cast<Code*>(row.data) + (index * Format::kPlanes + plane) * kHalf;
    return reinterpret_cast<Word*>(block) + lane();
  }

  __device__ __forceinline__ void load(const Row& row, int64_t index) {
#pragma unroll
    for (int p = 0; p < Format::kPlanes; ++p) {
      const Word word = *place(row, index, p);
      memcpy(of + p * kFour, &word, sizeof word);
    }
  }

  __device__ __forceinline__ void store(const Row& row, int64_t index) const {
#pragma unroll
    for (int p = 0; p < Format::kPlanes; ++p) {
      Word word;
      memcpy(&word, of + p * kFour, sizeof word);
      __stwb(place(row, index, p), word);
    }
  }
};

// Reads and decodes the row's scale block `index`.
template <typename Format>
__device__ __forceinline__ Halves decode(const Row& row, int64_t index) {
  Codes<Format> codes;
  codes.load(row, index);
  const float scale = Format::kLevels > 0 ? row.scales[index] : 1.0f;
  Halves out;
#pragma unroll
  for (int e = 0; e < kFour; ++e) {
    int32_t pair[2];
    Format::split(codes.of, e, kFour, pair[0], pair[1]);
#pragma unroll
    for (int h = 0; h < 2; ++h) out.half[h].v[e] = Format::value(pair[h], scale);
  }
  return out;
}

// Encodes x as the row's scale block `index`, which is number j in its block of 1,024. Returns the decoded values.
template <typename Format>
__device__ __forceinline__ Halves encode(const Row& row, int64_t index, const Halves& x, const Dice& dice, int j) {
  float scale = 1.0f, inverse = 1.0f;
  if constexpr (Format::kLevels > 0) {
    scale = scale_of(absmax(x), static_cast<float>(Format::kLevels));
    inverse = 1.0f / scale;
    // The caller ensures that all lanes have read the old scale.
    if (lane() == 0) row.scales[index] = scale;
  }
  Codes<Format> codes;
  Halves back;
#pragma unroll
  for (int e = 0; e < kFour; ++e) {
    int32_t pair[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float value = x.half[h].v[e];
      pair[h] = Format::put(Format::kLevels > 0 ? value * inverse : value, dice.of(j, h, e));
      back.half[h].v[e] = Format::kept(pair[h], scale);
    }
    Format::join(codes.of, e, kFour, pair[0], pair[1]);
  }
  codes.store(row, index);
  return back;
}

// Copies the codes and the scale of a scale block from one row to another.
template <typename Format>
__device__ __forceinline__ void copy_block(const Row& from, const Row& to, int64_t index) {
  Codes<Format> codes;
  codes.load(from, index);
  codes.store(to, index);
  if (Format::kLevels > 0 && lane() == 0) to.scales[index] = from.scales[index];
}

}  // namespace fastagg::cuda
