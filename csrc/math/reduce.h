// The fixed order of additions in every reduction. With this order a norm has the same bits for every thread count,
// instruction set and device.
//
//   strand  2,048 elements. Lane k of 32 sums elements k, k+32, ... in order, in double. Lanes fold four by four, then
//           the 8 quads fold in halves (4, 2, 1).
//   group   32 strands, added in order.
//   total   256 slots. Slot j adds groups j, j+256, ... in order. Slots fold in halves.
//
// A CPU core keeps the lanes in its registers and reads a strand from start to end. On a GPU eight threads process a
// strand, with four neighbouring lanes each, and 256 threads process a group. Missing elements count as +0, which
// changes no bit of a sum of squares.
#pragma once

#include "portable.h"

namespace fastagg {

constexpr int64_t kBlock = 1024;
constexpr int64_t kLanes = 32;
constexpr int64_t kQuads = kLanes / 4;
constexpr int64_t kStrand = 2048;
constexpr int64_t kGroupStrands = 32;
constexpr int64_t kGroup = kStrand * kGroupStrands;
constexpr int64_t kSlots = 256;

// Returns the total of the groups' sums, in an order that does not depend on threads. of(g) is the sum of group g.
template <typename Of>
double total_of_groups(size_t groups, Of of) {
  double slots[kSlots] = {};
  for (size_t g = 0; g < groups; ++g) slots[g % kSlots] += of(g);
  for (int64_t half = kSlots / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) slots[i] += slots[i + half];
  return slots[0];
}

FASTAGG_FN double fold_quad(double a, double b, double c, double d) { return (a + b) + (c + d); }

}  // namespace fastagg
