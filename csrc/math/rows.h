// The formats of a client's row. Each format is a struct.
//
//   fp32   the number itself
//   bf16   the lower 16 bits are cut off; if they and the random bits overflow, 1 is added to the rest
//   int8   scale = max(absmax/127, FLT_MIN) for every 256 elements, q = round(x/scale + r - 1/2), in -127..127
//   int4   the same with 7; byte i of a scale block holds element i (low nibble) and element i+128 (high)
//
// Rounding is stochastic and unbiased, E[deq(q)] = x. It rounds up with probability equal to the fraction, by 16 random
// bits. Integer multiples of the scale, including zero, are stored exactly. For other values |deq(q) - x| < scale, even
// if one element of the block is huge. The scale's lower limit keeps 1/scale finite. Blocks of denormals round to 0 or
// FLT_MIN.
//
// Elements i and i+128 of a scale block (256 elements) are processed as a pair. The two share a random word, and in
// int4 a byte. A format has `kPlanes` codes for a pair. These are `plane` codes apart.
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

// Uniform in (-1/2, 1/2) without the ends, so that a whole number plus this value rounds to the whole number itself.
// The value is (random + 1/2) / 2^16 - 1/2. The random bits become the mantissa of a number from 1 to 2.
FASTAGG_FN float dither(uint32_t random) { return float_from_bits(0x3f800000u | random << 7) - 1.49999237060546875f; }

// An integer below 2^21 in magnitude, as the bits of the float 1.5*2^23 + number. The addition that makes this float
// rounds to nearest. The baseline instruction set has no such conversion. The low byte is that of the number, and the
// bits have the order of the numbers.
typedef int32_t Whole;

constexpr float kWhole = 12582912.0f;
constexpr Whole kWholeZero = 0x4b400000;

FASTAGG_FN int32_t number_of(Whole whole) { return whole - kWholeZero; }

// The limits are needed because absmax/scale may exceed the levels by an ulp. They compare integers, because for floats
// a compiler must treat NaN separately, which is slower.
FASTAGG_FN Whole round_up_or_down(float scaled, uint32_t random, int32_t levels) {
  const Whole whole = static_cast<Whole>(bits_of(scaled + dither(random) + kWhole));
  const Whole limited = whole < kWholeZero + levels ? whole : kWholeZero + levels;
  return limited > kWholeZero - levels ? limited : kWholeZero - levels;
}

// Every format defines:
//   kLevels  the largest code; 0: there is no scale, and `put` takes the value itself
//   put      rounds a value that was divided by its scale, with 16 random bits
//   kept     returns the value of a result of `put`
//   join     stores the two results of a pair; split reads them back as numbers, and value decodes one of these

// Stores one code for each element: the lowest bits of `put`'s result.
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
    const uint32_t largest = 0x7f7fffffu;  // a finite number must not carry into infinity
    const uint32_t carried = magnitude + random;
    return static_cast<int32_t>(((bits & 0x80000000u) | (carried < largest ? carried : largest)) >> 16);
  }
  FASTAGG_FN float kept(int32_t put, float) { return float_from_bits(static_cast<uint32_t>(put) << 16); }
  FASTAGG_FN float value(int32_t number, float scale) { return kept(number, scale); }
};

// Codes that are integers in -kLevels..kLevels, times a scale.
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
  int64_t bits;  // per element
  bool scaled, random;
};

// Returns the facts of the format at this place in RowFormats.
FASTAGG_FN Facts format_facts(int format) {
  Facts facts{};
  visit_at(format, RowFormats{}, [&](auto kind) {
    facts = {decltype(kind)::kName, decltype(kind)::kBits, decltype(kind)::kLevels > 0, decltype(kind)::kRandom};
  });
  return facts;
}

FASTAGG_FN int64_t padded(int64_t n) { return (n + kScaleBlock - 1) / kScaleBlock * kScaleBlock; }

}  // namespace fastagg
