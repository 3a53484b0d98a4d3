// The BatchNorm statistics that a client reports, copied to the server's memory, and their limits.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "../store/vector.h"

namespace fastagg::engine {

struct ReportedStatistics {
  store::Vector values;  // all statistics in floating point, in the model's order
  int64_t size = 0;      // the number of elements of `values`
  std::vector<int64_t> counters;

  bool has_values() const { return size > 0 || !counters.empty(); }
};

// The limits of a model's statistics. Variances and counts must not be negative. Each pair (begin, end) is the range
// begin..end-1 of variances in ReportedStatistics::values, or of counts in `counters`.
struct StatisticsRules {
  double limit = 0.0;  // the largest allowed norm of all values, so that the mean of many clients stays finite
  std::vector<std::pair<int64_t, int64_t>> variances, counts;
};
bool fits(const ReportedStatistics& reported, const StatisticsRules& rules);  // whether all limits hold

}  // namespace fastagg::engine
