// The fixed shape of every reduction, so that a norm has the same bits on every thread count, instruction set
// and device.
//
//   block   1,024 elements: 128 lanes (element index mod 128), each summing its 8 elements in order, in double;
//           lanes fold four by four, then the 32 quads fold in halves (16, 8, 4, 2, 1).
//   group   64 blocks, added in order.
//   total   256 slots, slot j adding groups j, j+256, ... in order; slots fold in halves.
//
// A warp maps onto a block as 32 threads of one float4 (a quad) each; a CPU core as 8 sweeps of 16 lanes.
// Missing elements count as +0, which changes no bit of a sum of squares.
#pragma once

#include "portable.h"

namespace fastagg {

constexpr int64_t kBlock = 1024;
constexpr int64_t kLanes = 128;
constexpr int64_t kQuads = kLanes / 4;
constexpr int64_t kGroupBlocks = 64;
constexpr int64_t kGroup = kBlock * kGroupBlocks;
constexpr int64_t kSlots = 256;

FASTAGG_FN double fold_quad(double a, double b, double c, double d) { return (a + b) + (c + d); }

}  // namespace fastagg
