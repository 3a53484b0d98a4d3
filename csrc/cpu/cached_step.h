// A server step through a client cache, in one pass: read the update and the old row, write the new row, the sum over
// clients and the model. Bytes per parameter into SGD: 28 fp32, 24 bf16, 22 int8, 21 int4, plus scales (1.6% of a byte
// per byte of row at most) and the sum's low byte (2).
#pragma once

#include <cstdint>
#include <vector>

#include "../math/philox.h"
#include "../math/quantise.h"
#include "step.h"

namespace fastagg::cpu {

// The rows of all clients: slot s starts at data + s*row_bytes, its scales at scales + s*row_scales.
struct Rows {
  RowFormat format;
  void* data;
  float* scales;
  int64_t row_bytes;
  int64_t row_scales;
};

struct Term {
  int64_t slot;
  float weight;
};

// sum over clients as running_sum.h keeps it
struct RunningSum {
  float* high;
  int8_t* low;
};

enum CachedKind : int {
  // sum += entering*row(write) - leaving*row(read) + terms; D = sum*sum_scale
  kMean = 0,
  // c = acc + weight*(update - row(read)); without a step acc = c;
  // with one D = sum*sum_scale + c*acc_scale, and then sum += terms
  kCalibrated,
};

struct CachedDirection {
  CachedKind kind;
  float gain;     // on the update: what is stored is gain*update
  int64_t write;  // slot that takes the update; -1: none, the update itself enters the sum
  int64_t read;   // slot that leaves the sum, or is calibrated against; -1: none
  RandomKey random;
  RunningSum sum;
  float entering, leaving;  // kMean
  float sum_scale;
  const float* acc;  // kCalibrated; null means zero
  float* acc_out;
  float weight, acc_scale;
  std::vector<Term> terms;
};

// optimizer.x null: no step, only the cache moves.
void cached_step(const Update& update, const Rows& rows, const CachedDirection& direction, const Optimizer& optimizer);

// high, low = sum of weights[s]*row(s) over all slots with a weight other than 0, recomputed exactly for the blocks
// first..last-1 of 1,024 elements.
void recompute_sum(int64_t size, const Rows& rows, const float* weights, int64_t slots, const RunningSum& sum,
                   int64_t first, int64_t last);

// out = row(slot), dequantised
void read_row(int64_t size, const Rows& rows, int64_t slot, float* out);

}  // namespace fastagg::cpu
