// Robust rules combine a round's updates so that arbitrary updates of a few clients have little influence. robust.cpp
// has a struct for each rule: its name, its settings, how many updates it needs, and its function. Python reads the
// rules from `robust_rules()`.
#pragma once

#include <string>
#include <vector>

#include "../runner.h"

namespace fastagg::engine {

// The settings of all rules. Each rule uses the settings that RobustRule::settings names.
struct RobustSetting {
  double trim = 0.0;                     // the share of values that is left out at each end, in [0, 1/2)
  int64_t f = 0;                         // the number of updates that may be arbitrary
  int64_t keep = 0;                      // the number of updates that are kept; 0: all except f
  int64_t iterations = 0;                // the number of iterations, at least 1
  double smoothing = 0.0, radius = 0.0;  // the least distance (geometric median); the norm of a clipped difference
};

// A rule either combines updates element by element (`combining`), or gives every update a share (`shares`). The
// pointer to the other function is null.
struct RobustRule {
  const char* name;
  std::vector<std::string> settings;               // the names of the settings that the rule uses
  int64_t (*least)(const RobustSetting& setting);  // returns the least number of updates that the rule needs
  CombineSetting (*combining)(const RobustSetting& setting, int64_t count);
  std::vector<double> (*shares)(const RobustSetting& setting, const std::vector<WeightedUpdate>& held, int64_t size,
                                Runner& runner);
};
const std::vector<RobustRule>& robust_rules();

class RobustCombiner : public Combiner {
 public:
  // Throws Refusal, kSetting, if there is no rule of this name.
  RobustCombiner(const std::string& rule, const RobustSetting& setting);
  // Throws Refusal, kSetting, if this number of updates is too small or too large.
  void check(int64_t count) const;
  // Throws as `check` does.
  std::vector<double> weigh(const std::vector<WeightedUpdate>& held, int64_t size, Runner& runner,
                            float* weights) const override;
  CombineSetting how(int64_t count) const override;

 private:
  const RobustRule* rule_;
  RobustSetting setting_;
};

// Returns the squared distances of all pairs of updates, [count, count]. The diagonal has the squares of the updates'
// norms. Distances are computed from inner products. A distance that would lose precision is computed from differences.
std::vector<double> squared_distances(const std::vector<WeightedUpdate>& held, int64_t size, Runner& runner);

}  // namespace fastagg::engine
