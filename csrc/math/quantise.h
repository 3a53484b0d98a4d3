// How a client's row is stored: fp32, bf16, or int8 / int4 with one fp32 scale for every 256 elements.
//
// Rounding is stochastic and unbiased, E[deq(q)] = x: up with probability equal to the fraction, from 16 random bits.
//   int8   scale = max(absmax/127, FLT_MIN), q = round(x/scale + r - 1/2), in -127..127
//   int4   the same with 7; byte i of a scale block holds element i (low nibble) and element i+128 (high)
//   bf16   the 16 bits that are cut off carry into the rest when they and the random bits overflow
// Whole multiples of the scale, zero among them, are stored exactly; elsewhere |deq(q) - x| < scale, with one huge
// element in the block too. The scale's floor keeps 1/scale finite: blocks of denormals round to 0 or FLT_MIN.
#pragma once

#include "half.h"

namespace fastagg {

enum RowFormat : int { kRowFloat32 = 0, kRowBFloat16, kRowInt8, kRowInt4, kRowFormats };

constexpr int64_t kScaleBlock = 256;

FASTAGG_FN float scale_of(float absmax, float levels) {
  const float scale = absmax / levels;
  return scale > 1.17549435e-38f ? scale : 1.17549435e-38f;
}

// Uniform in (-1/2, 1/2), never at an end, so that whole numbers stay what they are when it is added and rounded off.
FASTAGG_FN float dither(uint16_t random) {
  return static_cast<float>(static_cast<int32_t>(random)) * 1.52587890625e-5f - 0.49999237060546875f;
}

// The nearest whole number of |value| < 2^21, as the low bits of a float whose last place is 1. One addition, where a
// conversion with the right rounding is missing from the baseline instruction set.
FASTAGG_FN int32_t nearest_whole(float value) {
  const float shifted = value + 12582912.0f;  // 1.5 * 2^23
  int32_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  return bits - 0x4b400000;
}

FASTAGG_FN float smaller(float a, float b) { return a < b ? a : b; }
FASTAGG_FN float larger(float a, float b) { return a > b ? a : b; }

// absmax/scale may exceed `levels` by an ulp, hence the clamp.
FASTAGG_FN int32_t round_up_or_down(float scaled, uint16_t random, float levels) {
  return nearest_whole(larger(smaller(scaled, levels), -levels) + dither(random));
}

FASTAGG_FN uint16_t narrow_bf16(float value, uint16_t random) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t most = 0x7f7fffffu;  // the largest finite number must not carry into infinity
  const uint32_t carried = magnitude + random;
  return static_cast<uint16_t>(((bits & 0x80000000u) | (carried < most ? carried : most)) >> 16);
}

FASTAGG_FN int32_t low_nibble(uint8_t byte) { return static_cast<int32_t>(byte & 15u) - 8; }
FASTAGG_FN int32_t high_nibble(uint8_t byte) { return static_cast<int32_t>(byte >> 4) - 8; }
FASTAGG_FN uint8_t nibbles(int32_t low, int32_t high) {
  return static_cast<uint8_t>(static_cast<uint32_t>(low + 8) | (static_cast<uint32_t>(high + 8) << 4));
}

}  // namespace fastagg
