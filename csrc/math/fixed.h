// Sums of whole numbers, whose result does not depend on the order of their terms. A term is rounded once, to a
// multiple of a unit (a power of two), and is at most 2^30 of them:
//
//   q = round(by*u)                  by: the term's weight divided by the unit, in fp32; to nearest, ties to even
//   sum = high*2^24 + low            low as long as it suffices: 4 bytes a parameter, as of a sum in fp32
//
// A lower half that may leave 32 bits with the next term is carried first. So a sum holds 2^24 terms and more.
#pragma once

#include "portable.h"

namespace fastagg {

constexpr int kUpperBits = 24;
constexpr uint32_t kNearlyFull = 1u << 29;  // with one more term it is below 2^31
constexpr int64_t kMostTerms = (int64_t{1} << 24) + (int64_t{1} << 20);

// The largest magnitude that the sum of so many terms can have.
inline uint64_t fixed_limit(int64_t count) {
  return static_cast<uint64_t>(count) * (uint64_t{1} << 30) + 128 * static_cast<uint64_t>(count);
}

template <typename L>
FASTAGG_FN auto fixed_of(typename L::F u, float by) {
  return L::nearest(by * u);
}

}  // namespace fastagg
