// Runs a server's kernels on a CUDA device. The launches are collected, and all of them start in one call when all data
// that they need is where the device reads it.
#pragma once

#include <functional>
#include <vector>

#include "../cuda/queue.h"
#include "../runner.h"

namespace fastagg::engine {

class OnCuda : public Runner {
 public:
  // `stream` gives the caller's current one. `memory` is the device's, for a model of `size` parameters.
  struct Place {
    int device;
    std::function<void*()> stream;
    std::shared_ptr<cuda::Queue> queue;
    std::shared_ptr<store::Memory> memory;
  };
  OnCuda(Place place, int64_t size);

  void step(const Update& update, const Direction& direction, const Optimizer& optimizer) override;
  void accumulate(const Update& update, const float* acc, double weight, float* out, const Upper&) override;
  void recompute_sum(const Rows& rows, const float* weights, float* sum) override;
  void add_rows(const Rows& rows, const std::vector<RowJob>& jobs, const float* weights, float weight) override;
  void settle_rows(const std::vector<RowJob>& jobs, float* sum, int64_t size) override;
  void zero(void* memory, int64_t bytes) override;
  bool synchronous() const override { return false; }
  void settle() noexcept override { place_.queue->settle(); }
  void begin() override;
  void end() noexcept override { place_.queue->end(); }
  void follow() override;
  void hold(const store::Owner& owner) override { place_.queue->hold(owner); }
  void load(const Optimizer& optimizer, const Needs& needs) override;
  std::shared_ptr<Judgement> judge(const Unread& unread) override;
  std::vector<double> pair_sums(const std::vector<Held>& held, int64_t size, const uint8_t* wanted,
                                bool apart) override;
  void keep(Update& update, store::Owner& owner) override;
  void sum_tensors(const Update& update, cpu::Tensors& tensors) override;
  const void* verdict() const override { return verdict_; }
  std::shared_ptr<Judgement> coming(const void* verdict) override;
  void obey(const void* verdict) override { obeyed_ = static_cast<const Verdict*>(verdict); }
  void prepare() override;
  void launch() override;
  void forget() noexcept override;

 private:
  using Launch = std::function<void(const cuda::Where& where, const char* bytes)>;
  // Appends the values to the bytes. Returns where they begin.
  template <typename T>
  size_t pack(const T* values, size_t count);

  std::vector<cuda::HeldRow> rows_of(const std::vector<Held>& held, const float* weights);
  void combined(const Buffer& buffer, const Optimizer& optimizer);
  void hold_theirs(const Update& update, const store::Owner& owner);
  void bring(const Unread& unread);
  void bring_encoded(const Unread& unread);
  void check_whole() const;
  cuda::Where where() const { return {place_.device, place_.stream()}; }

  Place place_;
  store::Vector own_;  // the verdict, and scratch of a judge
  Verdict* verdict_;
  double* scratch_;
  store::Vector parts_;  // of tensors: where they begin, and their sums
  store::Vector sent_;   // what launches read on the device, if it is more than a little
  size_t room_ = 0;
  std::vector<Launch> launches_;
  std::vector<char> bytes_;  // what the launches read on the device
  const Verdict* obeyed_ = nullptr;
  bool torn_ = false;  // a launch failed behind others: the device's memory is between two versions
  cuda::Where where_{};
  const char* on_device_ = nullptr;
};

}  // namespace fastagg::engine
