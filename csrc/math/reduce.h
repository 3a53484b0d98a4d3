// The order of additions in norms, inner products and similar sums over vectors. The order is fixed, so a sum has the
// same bits on every processor and for every number of threads.
//
//   strand  2,048 elements in 32 partial sums in double, the lanes. Lane k sums elements k, k+32, ... in order. Every
//           four neighbouring lanes are added up to a quad. The 8 quads are then folded: the upper half of the quads
//           is added to the lower half, until one quad is left.
//   group   32 strands, added in order.
//   total   256 partial sums, the slots. Slot j adds groups j, j+256, ... in order. The slots are folded like quads.
//
// A CPU core keeps the lanes in registers and reads a strand from start to end. On a GPU, eight threads process a
// strand, with four neighbouring lanes each. 256 threads process a group. Missing elements at the end count as +0. This
// changes no bit, because every sum starts from +0.
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

// Returns the total of the groups' sums, in the order above. of(g) is the sum of group g.
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
