// Runs a server's kernels on a CUDA device. The launches are collected, and all of them start in one call when all data
// that they need is on the device.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <vector>

#include "../cuda/cuda.h"
#include "books.h"

namespace fastagg::serving {

class OnCuda : public Runner {
 public:
  // `there(bytes)` copies the bytes, a NumPy array or None, to the device. It returns the device, its current stream,
  // the address of the verdict to obey (0: none) and the address of the bytes. They stay there until the next call.
  explicit OnCuda(py::function there) : there_(std::move(there)) {}

  void step(const Update& update, const Direction& direction, const Optimizer& optimizer) override;
  void accumulate(const Update& update, const float* acc, double weight, float* out) override;
  void recompute_sum(const Rows& rows, const float* weights, float* sum) override;
  void add_rows(const Rows& rows, const std::vector<RowJob>& jobs, const float* weights, float weight) override;
  void settle_rows(const std::vector<RowJob>& jobs, float* sum, int64_t size) override;
  void zero(void* memory, int64_t bytes) override;
  void also(std::function<void(void* stream)> act) override;
  bool at_once() const override { return false; }
  void prepare() override;
  void launch() override;
  void forget() noexcept override;

 private:
  using Launch = std::function<void(const cuda::Where& where, const char* bytes)>;
  // Appends the values to the bytes, unless they are the last ones again. Returns where they begin.
  template <typename T>
  size_t pack(const T* values, size_t count);

  py::function there_;
  std::vector<Launch> launches_;
  std::vector<char> bytes_;  // what the launches read on the device
  size_t last_ = 0;          // where the last of them begin
  cuda::Where where_{};
  const char* on_device_ = nullptr;
};

}  // namespace fastagg::serving
