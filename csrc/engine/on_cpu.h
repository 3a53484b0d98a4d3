// The Runner of a server on the CPU. Each kernel runs when it is called.
#pragma once

#include <cstring>

#include "../cpu/combine.h"
#include "../cpu/cpu.h"
#include "../math/reduce.h"
#include "device.h"

namespace fastagg::engine {

class CpuRunner : public Runner {
 public:
  void step(const Update& update, const Direction& direction, const Optimizer& optimizer) override {
    cpu::step(update, direction, optimizer);
  }
  std::vector<double> pair_sums(const std::vector<WeightedUpdate>& held, int64_t size, const uint8_t* wanted,
                                bool apart) override {
    return cpu::pair_sums(held, size, wanted, apart);
  }
  void accumulate(const Update& update, const float* acc, double weight, float* out) override {
    cpu::accumulate(update, acc, static_cast<float>(weight), out);
  }
  void recompute_sum(const Rows& rows, const float* weights, float* sum) override {
    cpu::recompute_sum(rows, weights, sum, 0, (rows.size + kBlock - 1) / kBlock, 1);
  }
  void add_rows(const Rows& rows, const std::vector<RowJob>& jobs, const float* weights, float weight) override {
    cpu::add_rows(rows, jobs.data(), static_cast<int64_t>(jobs.size()), weights, weight);
  }
  void settle_rows(const std::vector<RowJob>& jobs, float* sum, int64_t size) override {
    cpu::settle_rows(jobs.data(), static_cast<int64_t>(jobs.size()), sum, size);
  }
  void zero(void* memory, int64_t bytes) override { std::memset(memory, 0, static_cast<size_t>(bytes)); }
};

// Runs the kernels for an update to which the sender may still write. A kernel reads the update once, and in the same
// pass computes the sum of the elements' squares (`squares`).
class SinglePassRunner : public CpuRunner {
 public:
  double squares = 0.0;
  void step(const Update& update, const Direction& direction, const Optimizer& optimizer) override {
    squares = cpu::step_once(update, direction, optimizer);
  }
  void accumulate(const Update& update, const float* acc, double weight, float* out) override {
    squares = cpu::accumulate_once(update, acc, static_cast<float>(weight), out);
  }
};

inline Place on_cpu() { return {store::host_memory(), std::make_shared<CpuRunner>(), nullptr}; }

}  // namespace fastagg::engine
