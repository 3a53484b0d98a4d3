// 8-bit optimizer moments: a float with three bits of mantissa, in units of one power of two for every 256 elements.
//
//   v, vhat  value = c*2^k*(1 + j/8) - c, code 8k + j, k in 0..31   never negative
//   m        the same with k in 0..15, and the sign in the top bit
//
// c is fp32 and a power of two: the block's largest value divided by 2^31 (m: 2^15), or a little more, and at least
// 2^-100. The subtraction of c makes steps below c equal and puts zero on the grid, so zero is no special case. This is
// the mu-law, with a float's exponent as the logarithm. Above c, neighbours differ by at most 1/8. The range is 2^34
// (m: 2^18).
//
// To encode a value, c is added to it. Then random bits below the third mantissa bit are added, and these bits are cut
// off. So a value is rounded up with probability equal to its fraction. A grid point has no fraction, so an unchanged
// value stays the same. Rounding is unbiased, E[decode(encode(y))] = y. An average that changes by a hundredth in a
// step needs this, because rounding to nearest would never change the average. v and vhat share c and the random bits,
// so v <= vhat stays true. v and vhat are never stored below c/8, because v = 0 with m != 0 would make an unbounded
// step.
//
// Byte 4j + i of a block of 256 holds element j + 64i. So codes are extracted from 32-bit words with shifts, in the
// same way on every instruction set.
#pragma once

#include "portable.h"

namespace fastagg {

constexpr int kCut = 20;  // bits of the mantissa that are cut off
constexpr uint32_t kCutMask = (1u << kCut) - 1u;
constexpr uint32_t kSmallestField = 27;       // the least exponent field of c, which stands for 2^-100
constexpr uint32_t kSpanM = 15, kSpanV = 31;  // the number of binades above c

// 16 calls of Philox serve a block. Word w of call j belongs to elements i*64 + 16w + j, i in 0..3.
constexpr uint32_t kMomentCalls = 16;

// The bits of 1.5*2^127, which is stored in place of anything larger, including infinity and NaN.
constexpr uint32_t kLargest = 0x7f400000u;

// Returns the bits of c for a block whose largest magnitude has the bits `largest`. If that magnitude is above 1.75
// times a power of two, c is that of the next power. So the largest value plus c has a code even if it is rounded up.
// Exactly 1.75 does not count as above, because a largest value may have been rounded up to it. So a block that does
// not change keeps its unit.
FASTAGG_FN uint32_t unit_bits(uint32_t largest, uint32_t span) {
  const uint32_t field = (largest + 0x1fffffu) >> 23;
  return (field > span + kSmallestField ? field - span : kSmallestField) << 23;
}

// Returns c*2^span, exactly.
FASTAGG_FN float full_of(float unit, uint32_t span) { return unit * float_from_bits((127u + span) << 23); }

}  // namespace fastagg
