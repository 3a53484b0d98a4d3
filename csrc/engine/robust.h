// What a round's updates become if some clients may send anything. Of the rules, and what each needs:
//
//   median              of every element
//   trimmed             trim < 1/2: the mean without the int(trim*count) smallest and largest (Yin et al. 2018)
//   mean_around_median  count > 2*f: of every element the mean of the count - f values nearest to the median
//                       (Xie et al. 2018)
//   krum, multi_krum    count >= 2*f + 3: the one update, or the mean of `keep`, with the smallest sum of squared
//                       distances to its count - f - 2 nearest others (Blanchard et al. 2017)
//   geometric_median    Weiszfeld's iteration from the mean, with distances of at least `smoothing`
//                       (Pillutla et al. 2022)
//   centered_clip       v <- v + mean of (update - v), each clipped to `radius`, from zero (Karimireddy et al. 2021)
#pragma once

#include "../runner.h"

namespace fastagg::engine {

enum RobustRule : int {
  kMedian,
  kTrimmed,
  kMeanAroundMedian,
  kKrum,
  kMultiKrum,
  kGeometricMedian,
  kCenteredClip,
  kRobustRules
};
constexpr const char* kRobustNames[kRobustRules] = {"median",     "trimmed",          "mean_around_median", "krum",
                                                    "multi_krum", "geometric_median", "centered_clip"};

class Robust : public Combine {
 public:
  struct Setting {
    RobustRule rule;
    double trim;
    int64_t f;     // how many may send anything
    int64_t keep;  // 0: all but f
    int64_t iterations;
    double smoothing, radius;
  };
  explicit Robust(const Setting& setting) : setting_(setting) {}
  // Throws Refusal: there are too few updates, or too many.
  std::vector<double> weigh(const std::vector<Held>& held, int64_t size, Runner& runner, float* weights) const override;
  Combining how(int64_t count) const override;

 private:
  bool sorts() const { return setting_.rule <= kMeanAroundMedian; }
  std::vector<double> nearest_to_others(const std::vector<double>& apart, size_t count) const;
  std::vector<double> moved_from_zero(const std::vector<double>& products, size_t count) const;

  Setting setting_;
};

// [count, count]: the squared distances of all updates; where two are so near that their difference is lost in their
// products, it is added up itself. On the diagonal is the square of the update's own norm.
std::vector<double> squared_distances(const std::vector<Held>& held, int64_t size, Runner& runner);

}  // namespace fastagg::engine
