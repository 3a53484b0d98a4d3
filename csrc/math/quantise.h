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

// Uniform in (-1/2, 1/2), never at an end, so that whole numbers stay what they are when it is added and rounded off:
// (random + 1/2) / 2^16 - 1/2, the random bits taken as the mantissa of a number from 1 to 2.
FASTAGG_FN float dither(uint32_t random) { return float_from_bits(0x3f800000u | random << 7) - 1.49999237060546875f; }

// A whole number, |number| < 2^21, as the bits of the float 1.5*2^23 + number: that addition rounds to the nearest,
// where a conversion with the right rounding is missing from the baseline instruction set. The low byte is the number's
// own, and such bits order like their numbers.
typedef int32_t Whole;

constexpr float kWhole = 12582912.0f;
constexpr Whole kWholeZero = 0x4b400000;

FASTAGG_FN Whole whole_bits(float shifted) {
  Whole bits;
  memcpy(&bits, &shifted, sizeof bits);
  return bits;
}
FASTAGG_FN int32_t number_of(Whole whole) { return whole - kWholeZero; }
FASTAGG_FN float float_of(Whole whole) { return float_from_bits(static_cast<uint32_t>(whole)) - kWhole; }

// Limits are set to whole numbers and not to floats, whose comparisons a compiler must keep apart from their NaNs.
FASTAGG_FN int32_t at_most(int32_t value, int32_t limit) { return value < limit ? value : limit; }
FASTAGG_FN int32_t at_least(int32_t value, int32_t limit) { return value > limit ? value : limit; }

// absmax/scale may exceed `levels` by an ulp, hence the limits.
FASTAGG_FN Whole round_up_or_down(float scaled, uint32_t random, int32_t levels) {
  const Whole whole = whole_bits(scaled + dither(random) + kWhole);
  return at_least(at_most(whole, kWholeZero + levels), kWholeZero - levels);
}

FASTAGG_FN uint16_t narrow_bf16(float value, uint32_t random) {
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
