// The fixed order of additions in every reduction. It gives a norm the same bits with every thread count, instruction
// set and device.
//
//   strand  2,048 elements: 32 lanes (element index mod 32), each summing its 64 elements in order, in double; lanes
//           fold four by four, then the 8 quads fold in halves (4, 2, 1).
//   group   32 strands, added in order.
//   total   256 slots, slot j adding groups j, j+256, ... in order; slots fold in halves.
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

// The total of the groups' sums, in an order that does not depend on who computed them. of(g) is the sum of group g.
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
