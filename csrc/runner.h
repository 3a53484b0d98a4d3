// The interface through which the engine runs a server's kernels. On the CPU a method runs its kernel at once. On a
// device most methods only collect kernels, which Device::launch starts together (engine/device.h).
#pragma once

#include <vector>

#include "plan.h"

namespace fastagg {

class Runner {
 public:
  virtual ~Runner() = default;
  virtual void step(const Update& update, const Direction& direction, const Optimizer& optimizer) = 0;
  // Returns [count, count] doubles, of which only those on and above the diagonal are valid. Each is the inner product
  // of two updates, or with `apart` the sum of squared differences. Each update is multiplied by its factor first.
  // `wanted`, also [count, count], selects the pairs (null: all). Runs at once, also on a device.
  virtual std::vector<double> pair_sums(const std::vector<WeightedUpdate>& held, int64_t size, const uint8_t* wanted,
                                        bool apart) = 0;
  virtual void accumulate(const Update& update, const float* acc, double weight, float* out) = 0;
  virtual void recompute_sum(const Rows& rows, const float* weights, float* sum) = 0;
  virtual void add_rows(const Rows& rows, const std::vector<RowJob>& jobs, const float* weights, float weight) = 0;
  virtual void settle_rows(const std::vector<RowJob>& jobs, float* sum, int64_t size) = 0;
  virtual void zero(void* memory, int64_t bytes) = 0;
};

}  // namespace fastagg
