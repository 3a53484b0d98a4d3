// BatchNorm's running statistics and counters, as one client sent them. They are read where they lie.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "../plan.h"
#include "records.h"

namespace fastagg::serving {

// What an array of an update is. Variances and counts cannot be below zero.
enum class ArrayRole { kParameter, kStatistic, kVariance, kCounter, kCount };

class Reported {
 public:
  void clear();
  void add(ArrayRole role, const void* data, int64_t size);  // fp32, or int64 for counters; in the model's order
  bool given() const { return values_.size > 0 || !counters_.empty(); }

  // Whether a model can have them, and the mean of many clients' that are like them. If not, check_statistics
  // (fastagg/layout/statistics.py) says what is wrong. `limit`: of the magnitudes.
  bool fits(double limit) const;

  // Returns a new vector: these statistics added to the sum of others, a tensor or None. None without statistics.
  py::object add_to(py::handle sum) const;
  // Returns a new vector: for every counter the larger of this and of another, a tensor or None. None without counters.
  py::object largest(py::handle most) const;

  // Adds them to what a journal's record holds.
  void describe(std::vector<Sent>& to) const;

 private:
  struct Variances {
    const float* data;
    int64_t size;
  };
  struct Counter {
    const int64_t* data;
    int64_t size;
    bool counts;  // so it cannot be below zero
  };
  Update values_;
  std::vector<Variances> variances_;  // those of the values that are variances
  std::vector<Counter> counters_;
};

}  // namespace fastagg::serving
