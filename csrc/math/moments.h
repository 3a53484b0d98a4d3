// The 8-bit form of an optimizer's moments. A code is a small float with three bits of mantissa. The 256 elements of a
// block share a unit c, which is a power of two.
//
//   v, vhat  value = c*2^k*(1 + j/8) - c, code 8k + j, with k in 0..31 and j in 0..7. No value is negative.
//   m        the magnitude has this form with k in 0..15. The code's top bit is the sign.
//
// c is the block's largest magnitude divided by 2^31 (m: 2^15), rounded to a power of two, and at least 2^-100
// (unit_bits). Because c is subtracted, the smallest values are multiples of c/8. Zero is one of these, and needs no
// special case. The encoding is the mu-law, with a float's exponent as the logarithm. Neighbouring values differ by at
// most 1/8 of value + c. The largest value is about 2^35 (m: 2^19) times the smallest one above zero.
//
// To encode a value, c is added to the value. Then random bits are added below the third mantissa bit of the sum, and
// all bits below the third are cut off. So a number between the values of two codes is rounded up with a probability
// equal to its distance from the lower value, as a fraction of the distance of the two values. A number that is the
// value of a code does not change. Rounding is unbiased, E[decode(encode(y))] = y. A moving average that changes by a
// hundredth per step needs this property, because rounding to nearest would never change the average. v and vhat use
// the same c and the same random bits, so v <= vhat stays true. v and vhat are stored as at least c/8, because v = 0
// with m != 0 would make a very large step.
//
// Byte 4j + i of a block has the code of element j + 64i. So shifts of neighbouring 32-bit words extract codes of
// neighbouring elements.
#pragma once

#include "portable.h"

namespace fastagg {

constexpr int kCut = 20;  // the number of mantissa bits that are cut off
constexpr uint32_t kCutMask = (1u << kCut) - 1u;
constexpr uint32_t kSmallestField = 27;       // the least exponent field of c, which stands for 2^-100
constexpr uint32_t kSpanM = 15, kSpanV = 31;  // the largest k of m, and of v

// A block uses 16 Philox calls. Word w of call j has the random bits of the elements 64i + 16w + j, with i in 0..3.
constexpr uint32_t kMomentCalls = 16;

// The bits of 1.5*2^127. If a moment's magnitude is larger, or infinite, this value is stored in its place.
constexpr uint32_t kLargest = 0x7f400000u;

// Returns the bits of c for a block whose largest magnitude has the bits `largest`. Let 2^e be the largest power of two
// that is at most this magnitude. c is 2^(e - span) up to a magnitude of 1.75*2^e, and otherwise 2^(e + 1 - span), but
// at least 2^-100. So the largest magnitude plus c has a code even if the sum is rounded up. The limit 1.75*2^e itself
// belongs to the smaller c, because an earlier step may have rounded up to this value. So unchanged blocks keep c.
FASTAGG_FN uint32_t unit_bits(uint32_t largest, uint32_t span) {
  const uint32_t field = (largest + 0x1fffffu) >> 23;
  return (field > span + kSmallestField ? field - span : kSmallestField) << 23;
}

// Returns c*2^span, exactly. `unit` is c.
FASTAGG_FN float full_of(float unit, uint32_t span) { return unit * float_from_bits((127u + span) << 23); }

}  // namespace fastagg
