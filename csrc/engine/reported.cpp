#include "reported.h"

#include <algorithm>
#include <cmath>

#include "../cpu/cpu.h"

namespace fastagg::engine {
namespace {

Update update_of(const ReportedStatistics& reported) {
  Update update;
  update.add(reported.values.data, reported.size, kFloat32);
  return update;
}

}  // namespace

bool fits(const ReportedStatistics& reported, const StatisticsRules& rules) {
  // The norm of all values is at least their largest magnitude. If a value is not finite, the norm is not finite.
  if (reported.size > 0 && !(std::sqrt(cpu::sum_squares(update_of(reported))) <= rules.limit)) return false;
  const auto negative = [](auto number) { return number < 0; };
  for (const auto& [begin, end] : rules.variances)
    if (end <= reported.size && std::any_of(reported.values.data + begin, reported.values.data + end, negative))
      return false;
  const auto count = static_cast<int64_t>(reported.counters.size());
  for (const auto& [begin, end] : rules.counts)
    if (end <= count && std::any_of(reported.counters.begin() + begin, reported.counters.begin() + end, negative))
      return false;
  return true;
}

}  // namespace fastagg::engine
