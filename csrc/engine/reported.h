// The BatchNorm statistics and counters of one client, copied into the server's memory.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "../store/vector.h"

namespace fastagg::engine {

struct ReportedStatistics {
  store::Vector values;  // all floating-point statistics, in the model's order
  int64_t size = 0;      // the number of values
  std::vector<int64_t> counters;

  bool has_values() const { return size > 0 || !counters.empty(); }
};

// The limits of a model's statistics. Variances and counts must not be negative. (begin, end) are their places in the
// values.
struct StatisticsRules {
  double limit = 0.0;  // the largest magnitude, so that the mean of many clients' values stays finite
  std::vector<std::pair<int64_t, int64_t>> variances, counts;
};
bool fits(const ReportedStatistics& reported, const StatisticsRules& rules);

}  // namespace fastagg::engine
