// Where a server's kernels run: on the processor, or on a CUDA device, whose launches go through Python.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>

#include "../cpu/cpu.h"
#include "books.h"

namespace fastagg::serving {

class OnCpu : public Runner {
 public:
  void step(const Update& update, const Direction& direction, const Optimizer& optimizer) override {
    cpu::step(update, direction, optimizer);
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
  void zero(float* vector, int64_t count) override { std::fill_n(vector, count, 0.0f); }
};

// CUDA's launches, by `call(name, ...)` of fastagg/serving/runner.py, which knows the current stream and the verdict
// that the kernels are to obey.
class InPython : public Runner {
 public:
  explicit InPython(py::function call) : call_(std::move(call)) {}
  void step(const Update& update, const Direction& direction, const Optimizer& optimizer) override {
    call_("step", update, direction, optimizer);
  }
  void accumulate(const Update& update, const float* acc, double weight, float* out) override {
    call_("accumulate", update, address(acc), weight, address(out));
  }
  void recompute_sum(const Rows& rows, const float* weights, float* sum) override {
    call_("recompute_sum", copy_of(rows, weights), address(sum));
  }
  void add_rows(const Rows& rows, const std::vector<RowJob>& jobs, const float* weights, float weight) override {
    py::list given;
    for (const RowJob& job : jobs)
      given.append(py::make_tuple(job.block, address(job.shadow), job.first_slot, job.last_slot));
    call_("add_rows", given, weights == nullptr ? py::object(py::none()) : copy_of(rows, weights), weight);
  }
  void settle_rows(const std::vector<RowJob>& jobs, float* sum, int64_t) override {
    py::list given;
    for (const RowJob& job : jobs) given.append(py::make_tuple(job.block, address(job.shadow)));
    call_("settle_rows", given, address(sum));
  }
  void zero(float* vector, int64_t) override { call_("zero", address(vector)); }
  bool needs_gil() const override { return true; }
  bool may_overwrite() const override { return false; }

 private:
  static uintptr_t address(const void* data) { return reinterpret_cast<uintptr_t>(data); }
  static py::object copy_of(const Rows& rows, const float* weights) { return py::array_t<float>(rows.slots, weights); }
  py::function call_;
};

}  // namespace fastagg::serving
