// What a round's updates become if some clients may send anything. robust.cpp has a struct for each rule, with what it
// needs and its source. Python takes names, settings and needs from `robust_rules()`.
#pragma once

#include <string>
#include <vector>

#include "../runner.h"

namespace fastagg::engine {

// The settings of all rules; each has a few of them.
struct RobustSetting {
  double trim = 0.0;       // in [0, 1/2)
  int64_t f = 0;           // how many may send anything
  int64_t keep = 0;        // 0: all but f
  int64_t iterations = 0;  // at least 1
  double smoothing = 0.0, radius = 0.0;
};

// A rule combines each element alone, or gives every update a share. The other function is null.
struct RobustRule {
  const char* name;
  std::vector<std::string> settings;               // names of those that it has
  int64_t (*least)(const RobustSetting& setting);  // how many updates it needs
  CombineSetting (*combining)(const RobustSetting& setting, int64_t count);
  std::vector<double> (*shares)(const RobustSetting& setting, const std::vector<WeightedUpdate>& held, int64_t size,
                                Runner& runner);
};
const std::vector<RobustRule>& robust_rules();

class RobustCombiner : public Combiner {
 public:
  // Throws Refusal, kSetting: there is no such rule.
  RobustCombiner(const std::string& rule, const RobustSetting& setting);
  // Throws Refusal, kSetting: there are too few updates, or too many.
  void check(int64_t count) const;
  // Throws as `check`.
  std::vector<double> weigh(const std::vector<WeightedUpdate>& held, int64_t size, Runner& runner,
                            float* weights) const override;
  CombineSetting how(int64_t count) const override;

 private:
  const RobustRule* rule_;
  RobustSetting setting_;
};

// [count, count]: the squared distances of all updates; where two are so near that their difference is lost in their
// products, it is added up itself. On the diagonal is the square of the update's own norm.
std::vector<double> squared_distances(const std::vector<WeightedUpdate>& held, int64_t size, Runner& runner);

}  // namespace fastagg::engine
