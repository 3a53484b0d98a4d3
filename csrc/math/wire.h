// What a client sends in place of its numbers: formats of encoded updates, and how one element is read back. Bytes:
// docs/encoding.md.
//
//   int8, int4  the codes and scales of a client's row (rows.h), rounded without bias
//   tensor      int8 with one scale for each of the model's arrays: absmax/127, rounded to the nearest
//   sign        a bit for each element, 1 is negative, and for every 256 a scale: their mean magnitude
//   bf16        rounded to bfloat16 without bias, padded as a row
//   topk        the k largest by rising index; all others are zero. Their values are a row of k elements in fp32, bf16
//               or int8, or have two bits each and, for every 256, a scale: absmax*{-1, -1/3, 1/3, 1}, without bias
#pragma once

#include "rows.h"

namespace fastagg {

enum WireFormat : uint8_t { kWireInt8 = 0, kWireInt4, kWireTensor, kWireSign, kWireTopK, kWireBf16, kWireFormats };
constexpr const char* kWireNames[kWireFormats] = {"int8", "int4", "int8-tensor", "sign", "topk", "bf16"};
enum WireValues : uint8_t { kValuesFp32 = 0, kValuesBf16, kValuesInt8, kValuesInt2, kWireValues };
constexpr const char* kValueNames[kWireValues] = {"fp32", "bf16", "int8", "int2"};

constexpr int64_t kWireAligned = 64;
constexpr uint8_t kWireVersion = 1;

// The first bytes; little endian. `count`: of a top-k's values, or of arrays; otherwise 0.
struct WireHead {
  char magic[4];  // FAEU
  uint8_t version, format, values, zero;
  int64_t size, count;
  uint8_t rest[40];  // zeros
};
static_assert(sizeof(WireHead) == kWireAligned);

// An encoded update, checked. Its addresses lie in its bytes. Who holds it holds them (store/encoded.h).
struct Wire {
  WireFormat format = kWireInt8;
  WireValues values = kValuesFp32;
  int64_t size = 0, count = 0;
  const uint8_t* bytes = nullptr;
  int64_t nbytes = 0;
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
  const int32_t* indices = nullptr;  // rising
  const int64_t* ends = nullptr;     // of the arrays, rising
};

// The row format with the same codes; negative: none.
constexpr int row_of_wire(WireFormat format) {
  switch (format) {
    case kWireInt8: return place_in<Int8>(RowFormats{});
    case kWireInt4: return place_in<Int4>(RowFormats{});
    case kWireBf16: return place_in<BFloat16>(RowFormats{});
    default: return -1;
  }
}

// The first place whose value is above `limit`, of rising ones.
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

// Two bits: up with probability equal to the fraction.
FASTAGG_FN uint32_t put_two_bits(float value, float inverse, uint32_t random) {
  const float at = (value * inverse + 1.0f) * 1.5f + dither(random);
  const int32_t code = number_of(static_cast<Whole>(bits_of(at + kWhole)));
  return static_cast<uint32_t>(code < 0 ? 0 : code > 3 ? 3 : code);
}
FASTAGG_FN float two_bits(uint32_t code, float scale) {
  return (static_cast<float>(2 * static_cast<int32_t>(code) - 3) * (1.0f / 3.0f)) * scale;
}

FASTAGG_FN float bf16_at(const uint8_t* codes, int64_t i) {
  return widen_bf16(static_cast<uint16_t>(codes[2 * i] | codes[2 * i + 1] << 8));
}

// Element i, if all are there. Only a top-k leaves some out.
FASTAGG_FN float element_of(const Wire& wire, int64_t i) {
  if (wire.format == kWireBf16) return bf16_at(wire.codes, i);
  const float scale = wire.scales[wire.format == kWireTensor ? first_above(wire.ends, wire.count, i) : i / kScaleBlock];
  if (wire.format == kWireSign)
    return float_from_bits(bits_of(scale) | static_cast<uint32_t>(wire.codes[i / 8] >> (i % 8) & 1) << 31);
  if (wire.format != kWireInt4) return Int8::value(static_cast<int8_t>(wire.codes[i]), scale);
  int32_t pair[2];
  Int4::split(wire.codes, i / kScaleBlock * kHalf + i % kHalf, 0, pair[0], pair[1]);
  return Int4::value(i % kScaleBlock < kHalf ? pair[0] : pair[1], scale);
}

// Value k of a top-k.
FASTAGG_FN float value_of(const Wire& wire, int64_t k) {
  const uint8_t* const codes = wire.codes;
  switch (wire.values) {
    case kValuesBf16: return bf16_at(codes, k);
    case kValuesInt8: return Int8::value(static_cast<int8_t>(codes[k]), wire.scales[k / kScaleBlock]);
    case kValuesInt2: return two_bits((codes[k / 4] >> (2 * (k % 4))) & 3u, wire.scales[k / kScaleBlock]);
    default: {
      float value;
      memcpy(&value, codes + 4 * k, sizeof value);
      return value;
    }
  }
}

// Element i of any.
FASTAGG_FN float number_at(const Wire& wire, int64_t i) {
  if (wire.format != kWireTopK) return element_of(wire, i);
  const int64_t k = first_above(wire.indices, wire.count, i) - 1;
  return k >= 0 && wire.indices[k] == i ? value_of(wire, k) : 0.0f;
}

}  // namespace fastagg
