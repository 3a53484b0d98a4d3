// One block of a sum of whole numbers (math/fixed.h), for the passes that add a term or step along the sum.
#pragma once

#include <cstring>

#include "../math/fixed.h"
#include "blocks.h"
#include "cpu.h"

namespace fastagg::cpu {

// Adds a term to a block, or begins a new sum if acc is null. A lower half that the last term left nearly full is
// carried first. That changes how the sum is written, and not the sum; so it does no harm if `out` comes to nothing.
inline void add_fixed_block(const Kernels& table, const Upper& upper, Fixed run, int64_t at) {
  uint8_t& mark = upper.marks[at / kBlock];
  if (run.acc == nullptr) {
    mark = 0;
  } else if ((mark & kNearlyFullMark) != 0) {
    int32_t* const high = upper.values + at;
    if ((mark & kHasUpper) == 0) std::memset(high, 0, static_cast<size_t>(run.n) * sizeof(int32_t));
    table.carry_fixed(const_cast<float*>(run.acc), high, run.n);
    mark = kHasUpper;
  }
  if (table.add_fixed(run) >= kNearlyFull) mark |= kNearlyFullMark;
}

}  // namespace fastagg::cpu
