// The formats of encoded updates, which clients send in place of fp32. A format is a struct that defines an update's
// arrays and how an element is decoded. docs/encoding.md describes the bytes. The checks of received bytes, the
// kernels, Python and the tests use the lists of formats in this file.
//
//   int8, int4  the codes and scales of a client's row (rows.h), rounded without bias
//   tensor      int8 codes, rounded to nearest. Each of the model's arrays has the scale absmax/127.
//   sign        the sign bit of each element. The scale of every 256 elements is their mean magnitude.
//   bf16        bfloat16, rounded without bias, and padded like a row
//   topk        the k elements of largest magnitude, by rising index. All others are zero. The k values are stored as
//               a row in fp32, bf16 or int8, or as int2: two bits each, for absmax*{-1, -1/3, 1/3, 1} of every 256
//               values, rounded without bias
//
// To add a format with a code for every element, write a codec and append DenseFormat<codec> to WireFormats. The place
// in this list is the format's number in the header. Then add a plain version to tests/support/wire.py. A format of
// another kind is a struct like TensorFormat, with its own `encode` in cpu/wire.cpp and `decode_wire` in cpu/wire.inl.
#pragma once

#include <float.h>

#include "rows.h"

namespace fastagg {

constexpr int64_t kWireAligned = 64;  // each array begins at a multiple of this number of bytes
constexpr uint8_t kWireVersion = 1;

// The first bytes of an encoded update, little endian. `format` and `values` are as in Wire. `size` is the number of
// elements. `count` is the number of a top-k's values, or for int8-tensor the number of arrays, otherwise 0.
struct WireHead {
  char magic[4];  // "FAEU"
  uint8_t version, format, values, zero;
  int64_t size, count;
  uint8_t rest[40];  // all zeros
};
static_assert(sizeof(WireHead) == kWireAligned);

// An encoded update whose bytes have been checked. All addresses point into `bytes`. The owner of the update
// (store/encoded.h) keeps the bytes alive.
struct Wire {
  int format = 0;  // the place in WireFormats
  int values = 0;  // the place in ValueCodecs, for a top-k
  int64_t size = 0, count = 0;
  const uint8_t* bytes = nullptr;
  int64_t nbytes = 0;
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
  const int32_t* indices = nullptr;  // the elements that a top-k stores, rising; null: all elements are stored
  const int64_t* ends = nullptr;     // where the model's arrays end, rising; null: the format does not need them
};

// Returns the first place in `values` with a value above `limit`, or `count` if there is none. The values must rise.
template <typename T>
FASTAGG_FN int64_t first_above(const T* values, int64_t count, int64_t limit) {
  int64_t low = 0;
  for (int64_t high = count; low < high;) {
    const int64_t middle = low + (high - low) / 2;
    if (static_cast<int64_t>(values[middle]) > limit)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// -- codecs, which convert numbers to codes and back

// Every codec defines:
//   kName, kType  the codec's name, and NumPy's name for the type of the codes
//   kBits         the number of bits of a code
//   kScaled       whether each scale block (256 elements) has a scale
//   kBlocks       whether the codes are padded to whole scale blocks
//   kRandom       whether numbers are rounded with random bits, without bias
//   kRow          the place in RowFormats of the row format with the same codes; negative: there is none

template <typename Format>
struct RowCodec {
  typedef Format Row;
  static constexpr const char* kName = Format::kName;
  static constexpr int kBits = Format::kBits, kRow = place_in<Format>(RowFormats{});
  static constexpr bool kScaled = Format::kLevels > 0, kBlocks = Format::kRandom, kRandom = Format::kRandom;
};
struct Float32Codec : RowCodec<Float32> {
  static constexpr const char* kType = "f4";
};
struct BFloat16Codec : RowCodec<BFloat16> {
  static constexpr const char* kType = "u2";
};
struct Int8Codec : RowCodec<Int8> {
  static constexpr const char* kType = "i1";
};
struct Int4Codec : RowCodec<Int4> {
  static constexpr const char* kType = "u1";
};

// A codec with codes of `Bits` bits. The first code is in the first byte's lowest bits. Such a codec also defines:
//   scale  returns the scale for n numbers, at most a scale block
//   code   encodes a number with 16 random bits; `inverse` is 1/scale
//   value  decodes a code
template <int Bits>
struct BitCodec {
  static constexpr const char* kType = "u1";
  static constexpr int kBits = Bits, kRow = -1;
  static constexpr bool kScaled = true, kBlocks = true;
};

// Returns the bits of the largest magnitude of n numbers. Infinity and NaN have larger bits than any finite number.
FASTAGG_FN uint32_t largest_bits(const float* in, int64_t n) {
  int32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t pattern = static_cast<int32_t>(bits_of(in[i]) & 0x7fffffffu);
    largest = pattern > largest ? pattern : largest;
  }
  return static_cast<uint32_t>(largest);
}

// Returns the sum of the magnitudes of n numbers, each times `unit`. The number of partial sums is fixed, so the result
// has the same bits for every vector width.
FASTAGG_FN float sum_of_magnitudes(const float* in, int64_t n, float unit) {
  constexpr int64_t kWidth = 32;
  float lanes[kWidth] = {};
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth)
    for (int64_t k = 0; k < kWidth; ++k) lanes[k] += fabsf(in[i + k]) * unit;
  for (int64_t k = 0; i + k < n; ++k) lanes[k] += fabsf(in[i + k]) * unit;
  for (int64_t half = kWidth / 2; half > 0; half /= 2)
    for (int64_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  return lanes[0];
}

struct SignCodec : BitCodec<1> {
  static constexpr const char* kName = "sign";
  static constexpr bool kRandom = false;
  // Returns the mean magnitude. If the sum overflows fp32, adds again, with each number divided by 256.
  FASTAGG_FN float scale(const float* in, int64_t n) {
    constexpr float kLargestCount = static_cast<float>(kScaleBlock);
    const float mean = sum_of_magnitudes(in, n, 1.0f) / static_cast<float>(n);
    if (mean <= FLT_MAX) return mean;
    const float smaller = sum_of_magnitudes(in, n, 1.0f / kLargestCount) / static_cast<float>(n);
    return smaller < FLT_MAX / kLargestCount ? smaller * kLargestCount : FLT_MAX;
  }
  FASTAGG_FN uint32_t code(float value, float, uint32_t) { return bits_of(value) >> 31; }
  FASTAGG_FN float value(uint32_t code, float scale) { return float_from_bits(bits_of(scale) | code << 31); }
};

struct Int2Codec : BitCodec<2> {
  static constexpr const char* kName = "int2";
  static constexpr bool kRandom = true;
  FASTAGG_FN float scale(const float* in, int64_t n) { return scale_of(float_from_bits(largest_bits(in, n)), 1.0f); }
  FASTAGG_FN uint32_t code(float value, float inverse, uint32_t random) {
    const float level = (value * inverse + 1.0f) * 1.5f + dither(random);
    const int32_t code = number_of(static_cast<Whole>(bits_of(level + kWhole)));
    return static_cast<uint32_t>(code < 0 ? 0 : code > 3 ? 3 : code);
  }
  FASTAGG_FN float value(uint32_t code, float scale) {
    return (static_cast<float>(2 * static_cast<int32_t>(code) - 3) * (1.0f / 3.0f)) * scale;
  }
};

// Decodes number i of an array of codes.
template <typename Codec>
FASTAGG_FN float value_at(const uint8_t* codes, const float* scales, int64_t i) {
  const float scale = Codec::kScaled ? scales[i / kScaleBlock] : 1.0f;
  if constexpr (Codec::kRow >= 0) {
    using Row = typename Codec::Row;
    constexpr bool kPairs = Row::kPlanes == 1;  // whether elements i and i+128 share a code
    int32_t first, second;
    Row::split(reinterpret_cast<const typename Row::Code*>(codes), kPairs ? i / kScaleBlock * kHalf + i % kHalf : i, 0,
               first, second);
    return Row::value(kPairs && i % kScaleBlock >= kHalf ? second : first, scale);
  } else {
    constexpr int kBits = Codec::kBits;
    const int64_t byte = i * kBits / 8;
    const auto shift = static_cast<int>(i * kBits % 8);
    uint32_t code = static_cast<uint32_t>(codes[byte]) >> shift;
    if (8 % kBits != 0 && shift + kBits > 8) code |= static_cast<uint32_t>(codes[byte + 1]) << (8 - shift);
    return Codec::value(code & ((1u << kBits) - 1u), scale);
  }
}

// -- formats, which define the arrays of an encoded update

enum WirePart { kCodes, kScales, kIndices, kEnds };
constexpr const char* kWireParts[] = {"codes", "scales", "indices", "ends"};

// Calls visit(part, type, size) for each array that a codec needs for `count` numbers. An array has `size` items.
template <typename Codec, typename Visit>
void visit_codes(int64_t count, Visit visit) {
  const int64_t width = Codec::kType[1] - '0';
  visit(kCodes, Codec::kType, (Codec::kBlocks ? padded(count) : count) * Codec::kBits / 8 / width);
  if (Codec::kScaled) visit(kScales, "f4", padded(count) / kScaleBlock);
}

// Every format defines:
//   kName      the format's name in Python
//   kRow       the place in RowFormats of the format with the same codes and scales; negative: there is none
//   kUnbiased  whether the expected value of a decoded element is the element
//   kSparse    whether only some elements are stored, with their indices; `count` is then their number
//   kTensors   whether the ends of the model's arrays are stored; `count` is then the number of arrays
//   arrays     calls visit(part, type, size) for the arrays of an update, in the order of their bytes
//   element    decodes element i of an update

template <typename Codec>
struct DenseFormat {
  static constexpr const char* kName = Codec::kName;
  static constexpr int kRow = Codec::kRow;
  static constexpr bool kUnbiased = Codec::kRandom, kSparse = false, kTensors = false;
  template <typename Visit>
  static void arrays(const WireHead& head, Visit visit) {
    visit_codes<Codec>(head.size, visit);
  }
  FASTAGG_FN float element(const Wire& wire, int64_t i) { return value_at<Codec>(wire.codes, wire.scales, i); }
};

struct TensorFormat {
  static constexpr const char* kName = "int8-tensor";
  static constexpr int kRow = -1;
  static constexpr bool kUnbiased = false, kSparse = false, kTensors = true;
  template <typename Visit>
  static void arrays(const WireHead& head, Visit visit) {
    visit(kCodes, "i1", head.size), visit(kScales, "f4", head.count), visit(kEnds, "i8", head.count);
  }
  FASTAGG_FN float element(const Wire& wire, int64_t i) {
    return Int8::value(static_cast<int8_t>(wire.codes[i]), wire.scales[first_above(wire.ends, wire.count, i)]);
  }
};

using ValueCodecs = List<Float32Codec, BFloat16Codec, Int8Codec, Int2Codec>;  // the codecs for the values of a top-k

// Decodes value k of a top-k.
FASTAGG_FN float value_of(const Wire& wire, int64_t k) {
  float value = 0.0f;
  visit_at(wire.values, ValueCodecs{},
           [&](auto codec) { value = value_at<decltype(codec)>(wire.codes, wire.scales, k); });
  return value;
}

struct TopKFormat {
  static constexpr const char* kName = "topk";
  static constexpr int kRow = -1;
  static constexpr bool kUnbiased = false, kSparse = true, kTensors = false;
  template <typename Visit>
  static void arrays(const WireHead& head, Visit visit) {
    visit(kIndices, "i4", head.count);
    visit_at(head.values, ValueCodecs{}, [&](auto codec) { visit_codes<decltype(codec)>(head.count, visit); });
  }
  FASTAGG_FN float element(const Wire& wire, int64_t i) {
    const int64_t k = first_above(wire.indices, wire.count, i) - 1;
    return k >= 0 && wire.indices[k] == i ? value_of(wire, k) : 0.0f;
  }
};

using WireFormats = List<DenseFormat<Int8Codec>, DenseFormat<Int4Codec>, TensorFormat, DenseFormat<SignCodec>,
                         TopKFormat, DenseFormat<BFloat16Codec>>;

struct WireFacts {
  const char* name;
  int row;
  bool unbiased, sparse, tensors;
};

// Returns the WireFacts of the format at place `format` in WireFormats.
FASTAGG_FN WireFacts wire_facts(int format) {
  WireFacts facts{};
  visit_at(format, WireFormats{}, [&](auto kind) {
    using Format = decltype(kind);
    facts = {Format::kName, Format::kRow, Format::kUnbiased, Format::kSparse, Format::kTensors};
  });
  return facts;
}

// Decodes element i of an update in any format.
FASTAGG_FN float number_at(const Wire& wire, int64_t i) {
  float number = 0.0f;
  visit_at(wire.format, WireFormats{}, [&](auto format) { number = decltype(format)::element(wire, i); });
  return number;
}

}  // namespace fastagg
