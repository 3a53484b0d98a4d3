// BatchNorm's running statistics and counters, as one client sent them: copies of the server's own.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "../store/vector.h"

namespace fastagg::engine {

struct ReportedStatistics {
  store::Vector values;  // all floating-point statistics, in the model's order
  int64_t size = 0;      // of the values
  std::vector<int64_t> counters;

  bool has_values() const { return size > 0 || !counters.empty(); }
};

// The limits of a model's statistics. Variances and counts cannot be below zero. Places are (begin, end).
struct StatisticsRules {
  double limit = 0.0;  // of the magnitudes, so that the mean of many clients' stays finite
  std::vector<std::pair<int64_t, int64_t>> variances, counts;
};
bool fits(const ReportedStatistics& reported, const StatisticsRules& rules);

}  // namespace fastagg::engine
