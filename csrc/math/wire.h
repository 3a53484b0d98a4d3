// The formats of encoded updates. Each is a struct that defines an update's arrays and how an element is decoded. The
// bytes are described in docs/encoding.md. The header's checks, the kernels for CPU and CUDA, Python and the tests read
// the lists here.
//
//   int8, int4  the codes and scales of a client's row (rows.h), rounded without bias
//   tensor      int8 with one scale for each of the model's arrays: absmax/127, rounded to the nearest
//   sign        a bit for each element, 1 if negative, and for every 256 elements a scale: their mean magnitude
//   bf16        rounded to bfloat16 without bias, padded as a row
//   topk        the k largest elements by rising index; all others are zero. Their values are a row of k elements in
//               fp32, bf16 or int8, or two bits each and, for every 256, a scale: absmax*{-1, -1/3, 1/3, 1}, unbiased
//
// To add a format in which every element has a code, write its codec, append DenseFormat<codec> to WireFormats (the
// place there is the number in the header), and its plain version to tests/support/wire.py. A format of another kind is
// a struct like TensorFormat, with its own `encode` in cpu/wire.cpp and `decode_wire` in cpu/wire.inl.
#pragma once

#include <float.h>

#include "rows.h"

namespace fastagg {

constexpr int64_t kWireAligned = 64;
constexpr uint8_t kWireVersion = 1;

// The first bytes, little endian. `count`: the number of a top-k's values, or of the model's arrays, otherwise 0.
struct WireHead {
  char magic[4];  // FAEU
  uint8_t version, format, values, zero;
  int64_t size, count;
  uint8_t rest[40];  // zeros
};
static_assert(sizeof(WireHead) == kWireAligned);

// An encoded update whose bytes were checked. The addresses are within these bytes, which the holder keeps alive
// (store/encoded.h).
struct Wire {
  int format = 0;  // the place in WireFormats
  int values = 0;  // the place in ValueCodecs, for a top-k
  int64_t size = 0, count = 0;
  const uint8_t* bytes = nullptr;
  int64_t nbytes = 0;
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
  const int32_t* indices = nullptr;  // the places of a top-k's values, rising; null: all elements are stored
  const int64_t* ends = nullptr;     // where the model's arrays end, rising; null: the format does not need them
};

// Returns the first place with a value above `limit`. The values must be rising.
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
//   kName, kType  its name, and NumPy's name for the type of its codes
//   kBits         the number of bits of a code
//   kScaled       whether each scale block (256 elements) has a scale
//   kBlocks       whether its codes fill whole scale blocks
//   kRandom       whether it rounds with random bits, without bias
//   kRow          the place in RowFormats of the format whose kernels read and write it; negative: there is none

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

// Codes of `Bits` bits. The first code is in the lowest bits of a byte. Each such codec also defines:
//   scale  the scale of the numbers of a scale block, or of fewer
//   code   the code of a number, from 16 random bits; `inverse` is 1/scale
//   value  the number of a code
template <int Bits>
struct BitCodec {
  static constexpr const char* kType = "u1";
  static constexpr int kBits = Bits, kRow = -1;
  static constexpr bool kScaled = true, kBlocks = true;
};

// Returns the bits of the largest magnitude. The bits of infinity and NaN are larger than any number's.
FASTAGG_FN uint32_t largest_bits(const float* in, int64_t n) {
  int32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t pattern = static_cast<int32_t>(bits_of(in[i]) & 0x7fffffffu);
    largest = pattern > largest ? pattern : largest;
  }
  return static_cast<uint32_t>(largest);
}

// Returns the sum of magnitudes times `unit`. The number of lanes is fixed, so the bits do not depend on the vector
// width.
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
  // The mean magnitude. The sum of finite numbers may exceed fp32's range, but their mean does not.
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

// Decodes code i.
template <typename Codec>
FASTAGG_FN float value_at(const uint8_t* codes, const float* scales, int64_t i) {
  const float scale = Codec::kScaled ? scales[i / kScaleBlock] : 1.0f;
  if constexpr (Codec::kRow >= 0) {
    using Row = typename Codec::Row;
    constexpr bool kPairs = Row::kPlanes == 1;  // elements i and i+128 share a code
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

// Calls visit(part, type, size) for the arrays that hold `count` codes.
template <typename Codec, typename Visit>
void visit_codes(int64_t count, Visit visit) {
  const int64_t width = Codec::kType[1] - '0';
  visit(kCodes, Codec::kType, (Codec::kBlocks ? padded(count) : count) * Codec::kBits / 8 / width);
  if (Codec::kScaled) visit(kScales, "f4", padded(count) / kScaleBlock);
}

// Every format defines:
//   kName      its name in Python
//   kRow       the row format with the same codes and scales; negative: there is none
//   kUnbiased  whether decoded numbers are, on average, the update's
//   kSparse    whether it has indices, and `values` in its header; `count` is then the number of indices
//   kTensors   whether it has the ends of the model's arrays; `count` is then the number of arrays
//   arrays     visits the arrays of an update, in their order
//   element    returns number i of the update

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

// Returns the facts of the format at this place in WireFormats.
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
