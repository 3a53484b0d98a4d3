// A server's kernels. On the processor they run when they are called. On a device they are written down, and start
// together (engine/device.h).
#pragma once

#include <vector>

#include "plan.h"

namespace fastagg {

class Runner {
 public:
  virtual ~Runner() = default;
  virtual void step(const Update& update, const Direction& direction, const Optimizer& optimizer) = 0;
  // [count, count], in double, on the diagonal and above it: the sums over all elements of the products of two updates,
  // each times what it is multiplied by; if `apart`, of the squares of their differences. `wanted`, [count, count]: the
  // pairs; null: all. At once, everywhere.
  virtual std::vector<double> pair_sums(const std::vector<WeightedUpdate>& held, int64_t size, const uint8_t* wanted,
                                        bool apart) = 0;
  virtual void accumulate(const Update& update, const float* acc, double weight, float* out) = 0;
  virtual void recompute_sum(const Rows& rows, const float* weights, float* sum) = 0;
  virtual void add_rows(const Rows& rows, const std::vector<RowJob>& jobs, const float* weights, float weight) = 0;
  virtual void settle_rows(const std::vector<RowJob>& jobs, float* sum, int64_t size) = 0;
  virtual void zero(void* memory, int64_t bytes) = 0;
};

}  // namespace fastagg
