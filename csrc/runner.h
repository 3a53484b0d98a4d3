// Where a server's kernels run: at once, or written down until `launch`. In between `prepare` gets ready what they
// need. It may fail, and then nothing has been done and `forget` drops what was asked for.
#pragma once

#include <functional>
#include <vector>

#include "plan.h"

namespace fastagg {

class Runner {
 public:
  virtual ~Runner() = default;
  virtual void step(const Update& update, const Direction& direction, const Optimizer& optimizer) = 0;
  // `upper` is for the processor alone.
  virtual void accumulate(const Update& update, const float* acc, double weight, float* out, const Upper& upper) = 0;
  virtual void recompute_sum(const Rows& rows, const float* weights, float* sum) = 0;
  virtual void add_rows(const Rows& rows, const std::vector<RowJob>& jobs, const float* weights, float weight) = 0;
  virtual void settle_rows(const std::vector<RowJob>& jobs, float* sum, int64_t size) = 0;
  virtual void zero(void* memory, int64_t bytes) = 0;
  // Something else that is to be done in order with the kernels, on their stream.
  virtual void also(std::function<void(void* stream)> act) { act(nullptr); }
  virtual bool at_once() const { return true; }
  // What the kernels of the next `prepare` obey, in the device's memory (cuda.h: Verdict). Null: nothing.
  virtual void obey(const void*) {}
  virtual void prepare() {}
  virtual void launch() {}
  virtual void forget() noexcept {}
};

}  // namespace fastagg
