// Runs a server's kernels on a CUDA device. The launches are collected, and all of them start in one call when all data
// that they need is on the device.
#pragma once

#include <functional>
#include <vector>

#include "../cuda/cuda.h"
#include "../runner.h"

namespace fastagg::engine {

class OnCuda : public Runner {
 public:
  struct There {
    int device;
    void* stream;       // the current one
    const char* bytes;  // on the device
  };
  // Copies bytes of the host to the device, where they stay until the next call. May fail.
  using Place = std::function<There(const char* bytes, size_t count)>;
  explicit OnCuda(Place place) : place_(std::move(place)) {}

  void step(const Update& update, const Direction& direction, const Optimizer& optimizer) override;
  void accumulate(const Update& update, const float* acc, double weight, float* out, const Upper&) override;
  void recompute_sum(const Rows& rows, const float* weights, float* sum) override;
  void add_rows(const Rows& rows, const std::vector<RowJob>& jobs, const float* weights, float weight) override;
  void settle_rows(const std::vector<RowJob>& jobs, float* sum, int64_t size) override;
  void zero(void* memory, int64_t bytes) override;
  void also(std::function<void(void* stream)> act) override;
  bool at_once() const override { return false; }
  void obey(const void* verdict) override { verdict_ = static_cast<const cuda::Verdict*>(verdict); }
  void prepare() override;
  void launch() override;
  void forget() noexcept override;

 private:
  using Launch = std::function<void(const cuda::Where& where, const char* bytes)>;
  // Appends the values to the bytes, unless they are the last ones again. Returns where they begin.
  template <typename T>
  size_t pack(const T* values, size_t count);

  Place place_;
  std::vector<Launch> launches_;
  std::vector<char> bytes_;  // what the launches read on the device
  size_t last_ = 0;          // where the last of them begin
  const cuda::Verdict* verdict_ = nullptr;
  cuda::Where where_{};
  const char* on_device_ = nullptr;
};

}  // namespace fastagg::engine
