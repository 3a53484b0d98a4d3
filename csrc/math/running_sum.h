// A sum over clients that is updated millions of times and does not drift.
//
// An fp32 sum `high` and one signed byte `low`, in units of ulp(high)/256: each update is added exactly (two-sum) and
// only the byte rounds, by at most 1/512 ulp of the sum. One byte more to read and to write; plain
// fp32 would be off by tens of ulp after a few thousand updates when all clients agree.
#pragma once

#include "quantise.h"

namespace fastagg {

// The exponent field of `high`, kept above 31 so that the unit below is a normal number.
FASTAGG_FN uint32_t exponent_field(float high) {
  uint32_t bits;
  memcpy(&bits, &high, sizeof bits);
  const int32_t field = static_cast<int32_t>(bits & 0x7f800000u);
  return static_cast<uint32_t>(field > (32 << 23) ? field : (32 << 23));
}

// ulp(high)/256 and its inverse, powers of two.
FASTAGG_FN float low_unit(float high) { return float_from_bits(exponent_field(high) - (31u << 23)); }
FASTAGG_FN float low_unit_inverse(float high) { return float_from_bits((285u << 23) - exponent_field(high)); }

// a + b = sum + error exactly.
FASTAGG_FN float two_sum(float a, float b, float& error) {
  const float sum = a + b;
  const float part = sum - a;
  error = (a - (sum - part)) + (b - part);
  return sum;
}

// `rest` is at most half an ulp of `high`, which is 128 units. The product is exact.
FASTAGG_FN int8_t low_of(float high, float rest) {
  const Whole whole = whole_bits(add_exact_product(rest, low_unit_inverse(high), kWhole));
  return static_cast<int8_t>(number_of(at_most(whole, kWholeZero + 127)));
}

// sum += change. The sum's own rounding, up to half an ulp of a number n times a row, is what would drift, and it is
// kept; the rounding of `change` itself is an ulp of a row, 1/n of that in the mean. What was kept is added to the
// change first: it is at most half an ulp of the sum, so this too rounds in the row's last place and not in the sum's.
FASTAGG_FN void add_change(float& high, int8_t& low, float change) {
  change = add_exact_product(static_cast<float>(static_cast<int32_t>(low)), low_unit(high), change);
  float error;
  high = two_sum(high, change, error);
  low = low_of(high, error);
}

}  // namespace fastagg
