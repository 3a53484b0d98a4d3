// One scale block (256 elements) of a stored row, by one warp: csrc/math/quantise.h, dealt out as vector.cuh says. A
// thread has elements 4t..4t+3 of both halves, which is what one 32-bit word of int4 holds, and owns Philox calls
// 4t..4t+3 of the block of 1,024 whole.
#pragma once

#include "../math/philox.h"
#include "../math/quantise.h"
#include "vector.cuh"

namespace fastagg::cuda {

struct Halves {
  Four half[2];
};

constexpr int kScaleBlocks = static_cast<int>(kBlock / kScaleBlock);
constexpr int64_t kHalf = kScaleBlock / 2;

template <RowFormat Format>
struct Levels {
  static constexpr int32_t kValue = Format == kRowInt8 ? 127 : 7;
};

// Word `index` of a thread's four calls.
struct Dice {
  Philox call[kFour];

  __device__ __forceinline__ uint32_t word(int e, int index) const {
    const Philox& p = call[e];
    return index == 0 ? p.a : index == 1 ? p.b : index == 2 ? p.c : p.d;
  }
};

__device__ __forceinline__ Dice roll(const RandomKey& key, int64_t block) {
  Dice dice;
#pragma unroll
  for (int e = 0; e < kFour; ++e) dice.call[e] = random_call(key, block, static_cast<uint32_t>(lane() * kFour + e));
  return dice;
}

__device__ __forceinline__ uint32_t random_half(uint32_t word, int half) {
  return half == 0 ? word & 0xffffu : word >> 16;
}

__device__ __forceinline__ float absmax(const Halves& x) {
  unsigned most = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int e = 0; e < kFour; ++e) {
      uint32_t pattern;
      memcpy(&pattern, &x.half[h].v[e], sizeof pattern);
      pattern &= 0x7fffffffu;
      most = pattern > most ? pattern : most;
    }
  return float_from_bits(__reduce_max_sync(kAll, most));
}

// Where a row's scale block `index` lies.
template <RowFormat Format>
__device__ __forceinline__ char* stored(const cpu::Rows& rows, int64_t slot, int64_t index) {
  constexpr int64_t kBytes = Format == kRowFloat32    ? 4 * kScaleBlock
                             : Format == kRowBFloat16 ? 2 * kScaleBlock
                             : Format == kRowInt8     ? kScaleBlock
                                                      : kScaleBlock / 2;
  return static_cast<char*>(rows.data) + slot * rows.row_bytes + index * kBytes;
}

__device__ __forceinline__ float* scale_at(const cpu::Rows& rows, int64_t slot, int64_t index) {
  return rows.scales + slot * rows.row_scales + index;
}

__device__ __forceinline__ uint32_t byte_of(uint32_t word, int e) { return word >> (8 * e) & 0xffu; }

template <RowFormat Format>
__device__ __forceinline__ Halves decode(const cpu::Rows& rows, int64_t slot, int64_t index) {
  const char* in = stored<Format>(rows, slot, index);
  Halves out;
  if constexpr (Format == kRowFloat32) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      out.half[h] = load<true>(reinterpret_cast<const float*>(in) + h * kHalf + lane() * kFour, kFour);
  } else if constexpr (Format == kRowBFloat16) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint2 q = *reinterpret_cast<const uint2*>(in + 2 * (h * kHalf + lane() * kFour));
      out.half[h] = {{widen_bf16(static_cast<uint16_t>(q.x)), widen_bf16(static_cast<uint16_t>(q.x >> 16)),
                      widen_bf16(static_cast<uint16_t>(q.y)), widen_bf16(static_cast<uint16_t>(q.y >> 16))}};
    }
  } else if constexpr (Format == kRowInt8) {
    const float scale = *scale_at(rows, slot, index);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t q = *reinterpret_cast<const uint32_t*>(in + h * kHalf + lane() * kFour);
#pragma unroll
      for (int e = 0; e < kFour; ++e)
        out.half[h].v[e] = static_cast<float>(static_cast<int32_t>(static_cast<int8_t>(byte_of(q, e)))) * scale;
    }
  } else {
    const float scale = *scale_at(rows, slot, index);
    const uint32_t q = *reinterpret_cast<const uint32_t*>(in + lane() * kFour);
#pragma unroll
    for (int e = 0; e < kFour; ++e) {
      const uint8_t byte = static_cast<uint8_t>(byte_of(q, e));
      out.half[0].v[e] = static_cast<float>(low_nibble(byte)) * scale;
      out.half[1].v[e] = static_cast<float>(high_nibble(byte)) * scale;
    }
  }
  return out;
}

// Stores x, and returns what was stored, dequantised. `word` is which of the dice's words this scale block has.
template <RowFormat Format>
__device__ __forceinline__ Halves encode(const cpu::Rows& rows, int64_t slot, int64_t index, const Halves& x,
                                         const Dice& dice, int word) {
  char* out = stored<Format>(rows, slot, index);
  if constexpr (Format == kRowFloat32) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      store<true>(reinterpret_cast<float*>(out) + h * kHalf + lane() * kFour, kFour, x.half[h]);
    return x;
  } else if constexpr (Format == kRowBFloat16) {
    Halves back;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t q[kFour];
#pragma unroll
      for (int e = 0; e < kFour; ++e) {
        q[e] = narrow_bf16(x.half[h].v[e], random_half(dice.word(e, word), h));
        back.half[h].v[e] = widen_bf16(static_cast<uint16_t>(q[e]));
      }
      *reinterpret_cast<uint2*>(out + 2 * (h * kHalf + lane() * kFour)) =
          make_uint2(q[0] | q[1] << 16, q[2] | q[3] << 16);
    }
    return back;
  } else {
    constexpr int32_t kLevels = Levels<Format>::kValue;
    const float scale = scale_of(absmax(x), kLevels), inverse = 1.0f / scale;
    // The reduction above has every lane past its reading of an old scale in this place.
    if (lane() == 0) *scale_at(rows, slot, index) = scale;
    Halves back;
    uint32_t packed[2] = {0, 0};
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < kFour; ++e) {
        const int32_t q =
            number_of(round_up_or_down(x.half[h].v[e] * inverse, random_half(dice.word(e, word), h), kLevels));
        back.half[h].v[e] = static_cast<float>(q) * scale;
        if constexpr (Format == kRowInt8)
          packed[h] |= (static_cast<uint32_t>(q) & 0xffu) << (8 * e);
        else
          packed[0] |= (static_cast<uint32_t>(q + 8) & 0xfu) << (8 * e + 4 * h);
      }
    *reinterpret_cast<uint32_t*>(out + lane() * kFour) = packed[0];
    if constexpr (Format == kRowInt8) *reinterpret_cast<uint32_t*>(out + kHalf + lane() * kFour) = packed[1];
    return back;
  }
}

// One row's scale block becomes another's, to the bit.
template <RowFormat Format>
__device__ __forceinline__ void copy_stored(const cpu::Rows& rows, int64_t from, int64_t to, int64_t index) {
  const uint32_t* in = reinterpret_cast<const uint32_t*>(stored<Format>(rows, from, index));
  uint32_t* out = reinterpret_cast<uint32_t*>(stored<Format>(rows, to, index));
  constexpr int kWords = Format == kRowFloat32 ? 256 : Format == kRowBFloat16 ? 128 : Format == kRowInt8 ? 64 : 32;
  for (int i = lane(); i < kWords; i += kWarp) out[i] = in[i];
  if constexpr (Format == kRowInt8 || Format == kRowInt4)
    if (lane() == 0) *scale_at(rows, to, index) = *scale_at(rows, from, index);
}

}  // namespace fastagg::cuda
