// Runs a server's kernels. On the CPU a kernel runs when it is called. On a device kernels are collected, and start
// together (engine/device.h).
#pragma once

#include <vector>

#include "plan.h"

namespace fastagg {

class Runner {
 public:
  virtual ~Runner() = default;
  virtual void step(const Update& update, const Direction& direction, const Optimizer& optimizer) = 0;
  // Returns [count, count] doubles, valid on and above the diagonal. Each is a sum over all elements for two updates,
  // both times their factors: of their products, or with `apart` of their squared differences. `wanted`, [count,
  // count], selects the pairs. Null selects all. Runs at once, also on a device.
  virtual std::vector<double> pair_sums(const std::vector<WeightedUpdate>& held, int64_t size, const uint8_t* wanted,
                                        bool apart) = 0;
  virtual void accumulate(const Update& update, const float* acc, double weight, float* out) = 0;
  virtual void recompute_sum(const Rows& rows, const float* weights, float* sum) = 0;
  virtual void add_rows(const Rows& rows, const std::vector<RowJob>& jobs, const float* weights, float weight) = 0;
  virtual void settle_rows(const std::vector<RowJob>& jobs, float* sum, int64_t size) = 0;
  virtual void zero(void* memory, int64_t bytes) = 0;
};

}  // namespace fastagg
