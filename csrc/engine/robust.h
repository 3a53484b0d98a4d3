// Rules that combine a round's updates when some clients may send anything. robust.cpp has a struct for each rule, with
// its needs and its source. Python takes names, settings and needs from `robust_rules()`.
#pragma once

#include <string>
#include <vector>

#include "../runner.h"

namespace fastagg::engine {

// The settings of all rules. Each rule uses a few of them.
struct RobustSetting {
  double trim = 0.0;       // in [0, 1/2)
  int64_t f = 0;           // how many updates may be arbitrary
  int64_t keep = 0;        // how many updates are kept; 0: all except f
  int64_t iterations = 0;  // at least 1
  double smoothing = 0.0, radius = 0.0;
};

// A rule combines updates element by element (`combining`), or gives every update a share (`shares`). The other
// function is null.
struct RobustRule {
  const char* name;
  std::vector<std::string> settings;               // names of the settings that the rule uses
  int64_t (*least)(const RobustSetting& setting);  // how many updates the rule needs
  CombineSetting (*combining)(const RobustSetting& setting, int64_t count);
  std::vector<double> (*shares)(const RobustSetting& setting, const std::vector<WeightedUpdate>& held, int64_t size,
                                Runner& runner);
};
const std::vector<RobustRule>& robust_rules();

class RobustCombiner : public Combiner {
 public:
  // Throws Refusal, kSetting, if there is no such rule.
  RobustCombiner(const std::string& rule, const RobustSetting& setting);
  // Throws Refusal, kSetting, if there are too few updates, or too many.
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
// norms. A distance that is too small to be exact from products is summed directly.
std::vector<double> squared_distances(const std::vector<WeightedUpdate>& held, int64_t size, Runner& runner);

}  // namespace fastagg::engine
