// The formats in which a server stores clients' rows. A row is a vector that the server keeps for one client. Each
// format is a struct. A scale block is 256 elements that share a scale.
//
//   fp32   the number itself
//   bf16   16 random bits are added to the number's bits, and the lower 16 bits are cut off
//   int8   scale = max(absmax/127, FLT_MIN), q = round(x/scale + r - 1/2) in -127..127, with a random r in (0, 1)
//   int4   as int8, with 7 in place of 127. Byte i has elements i (low four bits) and i+128 (high) of a scale block.
//
// Rounding is stochastic and unbiased: the expected value of a decoded element is the element. 16 random bits decide
// whether a value is rounded up. The probability is the value's distance from the lower code, as a fraction of the
// distance of two codes. In int8 and int4, integer multiples of the scale, including zero, are stored exactly, and the
// error of other values is less than the scale. The scale is at least FLT_MIN, so that 1/scale is finite. So elements
// of a block of denormals are rounded to 0 or to FLT_MIN in magnitude.
//
// Elements i and i+128 of a scale block are processed as a pair. The pair shares a random word, and in int4 a byte. A
// format stores a pair as `kPlanes` codes. If there are two, a scale block has two planes: all codes of elements
// 0..127, and then all codes of elements 128..255. `plane` is the distance of a pair's two codes.
//
// To add a format, write a struct and add it to the list here. Add its float64 version to tests/support/reference.
#pragma once

#include "half.h"
#include "list.h"

namespace fastagg {

constexpr int64_t kScaleBlock = 256;
constexpr int64_t kHalf = kScaleBlock / 2;

FASTAGG_FN float scale_of(float absmax, float levels) {
  const float scale = absmax / levels;
  return scale > 1.17549435e-38f ? scale : 1.17549435e-38f;
}

// Returns (random + 1/2)/2^16 - 1/2 for 16 random bits. This is uniform in (-1/2, 1/2) without the ends, so a whole
// number plus the result rounds to the whole number itself. The random bits become the mantissa of a number in [1, 2).
FASTAGG_FN float dither(uint32_t random) { return float_from_bits(0x3f800000u | random << 7) - 1.49999237060546875f; }

// A whole number below 2^21 in magnitude, as the bits of the float 1.5*2^23 + number. Adding 1.5*2^23 to a float rounds
// the float to the nearest whole number. Every compiler vectorises this addition. The low byte is the number's low
// byte. Values of this type compare like their numbers.
typedef int32_t Whole;

constexpr float kWhole = 12582912.0f;
constexpr Whole kWholeZero = 0x4b400000;

FASTAGG_FN int32_t number_of(Whole whole) { return whole - kWholeZero; }

// Rounds `scaled` up or down, at random, to at most `levels` in magnitude. The limits are needed because absmax/scale
// may exceed `levels` by an ulp. Integers are compared, because comparing floats is slower (NaN needs care).
FASTAGG_FN Whole round_up_or_down(float scaled, uint32_t random, int32_t levels) {
  const Whole whole = static_cast<Whole>(bits_of(scaled + dither(random) + kWhole));
  const Whole limited = whole < kWholeZero + levels ? whole : kWholeZero + levels;
  return limited > kWholeZero - levels ? limited : kWholeZero - levels;
}

// Every format defines:
//   kLevels  the largest code; 0: the format has no scales
//   put      rounds an element, divided by its scale if there is one, with 16 random bits
//   kept     decodes a result of `put`
//   join     stores the two results of `put` for a pair
//   split    reads the two codes of a pair as numbers
//   value    decodes a number from split

// Stores one code for each element. The code is the low bits of `put`'s result.
template <typename Bits>
struct TwoPlanes {
  typedef Bits Code;
  static constexpr int kBits = 8 * static_cast<int>(sizeof(Code)), kPlanes = 2;
  FASTAGG_FN void join(Code* codes, int64_t i, int64_t plane, int32_t first, int32_t second) {
    codes[i] = static_cast<Code>(first);
    codes[i + plane] = static_cast<Code>(second);
  }
  FASTAGG_FN void split(const Code* codes, int64_t i, int64_t plane, int32_t& first, int32_t& second) {
    first = static_cast<int32_t>(codes[i]);
    second = static_cast<int32_t>(codes[i + plane]);
  }
};

struct Float32 : TwoPlanes<uint32_t> {
  static constexpr const char* kName = "fp32";
  static constexpr int32_t kLevels = 0;
  static constexpr bool kRandom = false;
  FASTAGG_FN int32_t put(float value, uint32_t) { return static_cast<int32_t>(bits_of(value)); }
  FASTAGG_FN float kept(int32_t put, float) { return float_from_bits(static_cast<uint32_t>(put)); }
  FASTAGG_FN float value(int32_t number, float) { return float_from_bits(static_cast<uint32_t>(number)); }
};

struct BFloat16 : TwoPlanes<uint16_t> {
  static constexpr const char* kName = "bf16";
  static constexpr int32_t kLevels = 0;
  static constexpr bool kRandom = true;
  FASTAGG_FN int32_t put(float value, uint32_t random) {
    const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffffu;
    const uint32_t largest = 0x7f7fffffu;  // FLT_MAX: a finite number must not become infinity
    const uint32_t carried = magnitude + random;
    return static_cast<int32_t>(((bits & 0x80000000u) | (carried < largest ? carried : largest)) >> 16);
  }
  FASTAGG_FN float kept(int32_t put, float) { return float_from_bits(static_cast<uint32_t>(put) << 16); }
  FASTAGG_FN float value(int32_t number, float scale) { return kept(number, scale); }
};

// A format whose codes are integers in -kLevels..kLevels. A code stands for the integer times the scale.
template <int32_t Levels>
struct ScaledCodes {
  static constexpr int32_t kLevels = Levels;
  static constexpr bool kRandom = true;
  FASTAGG_FN int32_t put(float scaled, uint32_t random) { return round_up_or_down(scaled, random, kLevels); }
  FASTAGG_FN float kept(int32_t put, float scale) {
    return (float_from_bits(static_cast<uint32_t>(put)) - kWhole) * scale;
  }
  FASTAGG_FN float value(int32_t number, float scale) { return static_cast<float>(number) * scale; }
};

struct Int8 : ScaledCodes<127>, TwoPlanes<int8_t> {
  static constexpr const char* kName = "int8";
};

struct Int4 : ScaledCodes<7> {
  static constexpr const char* kName = "int4";
  static constexpr int kBits = 4, kPlanes = 1;
  typedef uint8_t Code;
  FASTAGG_FN void join(Code* codes, int64_t i, int64_t, int32_t first, int32_t second) {
    codes[i] = static_cast<Code>(static_cast<uint32_t>(number_of(first) + 8) |
                                 (static_cast<uint32_t>(number_of(second) + 8) << 4));
  }
  FASTAGG_FN void split(const Code* codes, int64_t i, int64_t, int32_t& first, int32_t& second) {
    first = static_cast<int32_t>(codes[i] & 15u) - 8;
    second = static_cast<int32_t>(codes[i] >> 4) - 8;
  }
};

using RowFormats = List<Float32, BFloat16, Int8, Int4>;
constexpr int kPlainRows = place_in<Float32>(RowFormats{}), kHalfRows = place_in<BFloat16>(RowFormats{});

struct Facts {
  const char* name;
  int64_t bits;         // bits per element
  bool scaled, random;  // whether the format has scales, and whether it rounds with random bits
};

// Returns the Facts of the format at place `format` in RowFormats.
FASTAGG_FN Facts format_facts(int format) {
  Facts facts{};
  visit_at(format, RowFormats{}, [&](auto kind) {
    facts = {decltype(kind)::kName, decltype(kind)::kBits, decltype(kind)::kLevels > 0, decltype(kind)::kRandom};
  });
  return facts;
}

FASTAGG_FN int64_t padded(int64_t n) { return (n + kScaleBlock - 1) / kScaleBlock * kScaleBlock; }

}  // namespace fastagg
