#include "robust.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "../refusal.h"

namespace fastagg::engine {
namespace {

// A squared distance is computed as |a|^2 + |b|^2 - 2ab. If the result is below this share of |a|^2 + |b|^2, the
// result has lost at least 20 of its 53 bits.
constexpr double kLost = 0x1p-20;

using Names = std::vector<std::string>;

// -- rules that combine updates element by element

struct MedianRule {
  static constexpr const char* kName = "median";
  static Names settings() { return {}; }
  static int64_t least(const RobustSetting&) { return 1; }
  static CombineSetting combining(const RobustSetting&, int64_t count) {
    return {place_in<TrimmedMean>(CombineKinds{}), (count - 1) / 2};
  }
};

// For each element, the mean without the int(trim*count) smallest and as many largest values (Yin et al. 2018).
struct TrimmedRule {
  static constexpr const char* kName = "trimmed";
  static Names settings() { return {"trim"}; }
  static int64_t least(const RobustSetting&) { return 1; }
  static CombineSetting combining(const RobustSetting& setting, int64_t count) {
    return {place_in<TrimmedMean>(CombineKinds{}), static_cast<int64_t>(setting.trim * static_cast<double>(count))};
  }
};

// For each element, the mean of the count - f values that are nearest to the median (Xie et al. 2018).
struct MeanAroundMedianRule {
  static constexpr const char* kName = "mean_around_median";
  static Names settings() { return {"f"}; }
  static int64_t least(const RobustSetting& setting) { return 2 * setting.f + 1; }
  static CombineSetting combining(const RobustSetting& setting, int64_t) {
    return {place_in<MeanAroundMedian>(CombineKinds{}), setting.f};
  }
};

// -- rules that weigh whole updates

// Returns equal shares for `keep` updates, and 0 for the others. An update's score is the sum of its squared distances
// to the count - f - 2 nearest updates. The updates with the smallest scores are kept.
std::vector<double> nearest_to_others(int64_t f, size_t keep, const std::vector<WeightedUpdate>& held, int64_t size,
                                      Runner& runner) {
  const std::vector<double> distances = squared_distances(held, size, runner);
  const size_t count = held.size();
  const auto others = static_cast<std::ptrdiff_t>(count) - f - 2;
  std::vector<double> scores(count), near;
  for (size_t i = 0; i < count; ++i) {
    near.clear();
    for (size_t k = 0; k < count; ++k)
      if (k != i) near.push_back(distances[i * count + k]);
    std::sort(near.begin(), near.end());
    scores[i] = std::accumulate(near.begin(), near.begin() + others, 0.0);
  }
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] < scores[b]; });
  std::vector<double> shares(count);
  for (size_t k = 0; k < keep; ++k) shares[order[k]] = 1.0 / static_cast<double>(keep);
  return shares;
}

// Krum: the update with the smallest score of `nearest_to_others` (Blanchard et al. 2017).
struct KrumRule {
  static constexpr const char* kName = "krum";
  static Names settings() { return {"f"}; }
  static int64_t least(const RobustSetting& setting) { return 2 * setting.f + 3; }
  static std::vector<double> shares(const RobustSetting& setting, const std::vector<WeightedUpdate>& held, int64_t size,
                                    Runner& runner) {
    return nearest_to_others(setting.f, 1, held, size, runner);
  }
};

struct MultiKrumRule {
  static constexpr const char* kName = "multi_krum";
  static Names settings() { return {"f", "keep"}; }
  static int64_t least(const RobustSetting& setting) { return std::max(2 * setting.f + 3, setting.keep); }
  static std::vector<double> shares(const RobustSetting& setting, const std::vector<WeightedUpdate>& held, int64_t size,
                                    Runner& runner) {
    const auto all_but_f = static_cast<int64_t>(held.size()) - setting.f;
    const auto keep = static_cast<size_t>(setting.keep > 0 ? setting.keep : all_but_f);
    return nearest_to_others(setting.f, keep, held, size, runner);
  }
};

// Returns the distance of each update u_i from the point p = sum of shares[k]*u_k, as sqrt(|u_i|^2 - 2*u_i.p + |p|^2).
// `products`: the inner products of all pairs of updates. An update far from p has a small share, so it adds little to
// u_i.p and |p|^2. A formula from the pairs' squared distances would be less precise, because an outlier's large
// squared distances would have to cancel.
std::vector<double> distances_from_point(const std::vector<double>& products, const std::vector<double>& shares) {
  const size_t count = shares.size();
  std::vector<double> distances(count);
  double square = 0.0;  // the square of the point's norm
  for (size_t i = 0; i < count; ++i) {
    for (size_t k = 0; k < count; ++k) distances[i] += shares[k] * products[std::min(i, k) * count + std::max(i, k)];
    square += shares[i] * distances[i];
  }
  for (size_t i = 0; i < count; ++i)
    distances[i] = std::sqrt(std::max(0.0, products[i * count + i] - 2.0 * distances[i] + square));
  return distances;
}

// Returns the shares of the updates in a point that starts at zero. In every iteration the point moves towards each
// update by the fraction move(distance) / whole(sum of all moves). The mean would be a worse start, because one large
// update could move the mean far away.
template <typename Move, typename Whole>
std::vector<double> moved_from_zero(int64_t iterations, const std::vector<WeightedUpdate>& held, int64_t size,
                                    Runner& runner, Move move, Whole whole) {
  const std::vector<double> products = runner.pair_sums(held, size, nullptr, false);
  std::vector<double> shares(held.size()), moves(held.size());
  for (int64_t turn = 0; turn < iterations; ++turn) {
    const std::vector<double> distances = distances_from_point(products, shares);
    double sum = 0.0;
    for (size_t i = 0; i < moves.size(); ++i) sum += moves[i] = move(distances[i]);
    const double divisor = whole(sum);
    for (size_t i = 0; i < moves.size(); ++i) shares[i] = shares[i] * (1.0 - sum / divisor) + moves[i] / divisor;
  }
  return shares;
}

// The geometric median by Weiszfeld's iteration, with distances of at least `smoothing` (Pillutla et al. 2022).
struct GeometricMedianRule {
  static constexpr const char* kName = "geometric_median";
  static Names settings() { return {"iterations", "smoothing"}; }
  static int64_t least(const RobustSetting&) { return 1; }
  static std::vector<double> shares(const RobustSetting& setting, const std::vector<WeightedUpdate>& held, int64_t size,
                                    Runner& runner) {
    const auto move = [&](double distance) { return 1.0 / std::max(setting.smoothing, distance); };
    return moved_from_zero(setting.iterations, held, size, runner, move, [](double sum) { return sum; });
  }
};

// Centered clipping (Karimireddy et al. 2021): from v = 0, repeats v <- v + mean of (update - v, clipped to `radius`).
struct CenteredClipRule {
  static constexpr const char* kName = "centered_clip";
  static Names settings() { return {"iterations", "radius"}; }
  static int64_t least(const RobustSetting&) { return 1; }
  static std::vector<double> shares(const RobustSetting& setting, const std::vector<WeightedUpdate>& held, int64_t size,
                                    Runner& runner) {
    const auto move = [&](double distance) { return distance > setting.radius ? setting.radius / distance : 1.0; };
    const auto count = static_cast<double>(held.size());
    return moved_from_zero(setting.iterations, held, size, runner, move, [=](double) { return count; });
  }
};

// To add a rule, write a struct and add it here. Add its name to fastagg/ops/combine.py, and its plain version to
// tests/support/formulas.py.
using Rules =
    List<MedianRule, TrimmedRule, MeanAroundMedianRule, KrumRule, MultiKrumRule, GeometricMedianRule, CenteredClipRule>;

template <typename Rule, typename = void>
struct RuleEntry {
  static RobustRule rule() { return {Rule::kName, Rule::settings(), Rule::least, nullptr, Rule::shares}; }
};
template <typename Rule>
struct RuleEntry<Rule, decltype(void(&Rule::combining))> {
  static RobustRule rule() { return {Rule::kName, Rule::settings(), Rule::least, Rule::combining, nullptr}; }
};

template <typename... Each>
std::vector<RobustRule> table_of(List<Each...>) {
  return {RuleEntry<Each>::rule()...};
}

}  // namespace

const std::vector<RobustRule>& robust_rules() {
  static const std::vector<RobustRule> rules = table_of(Rules{});
  return rules;
}

std::vector<double> squared_distances(const std::vector<WeightedUpdate>& held, int64_t size, Runner& runner) {
  const size_t count = held.size();
  std::vector<double> squares = runner.pair_sums(held, size, nullptr, false);
  std::vector<uint8_t> near(count * count);
  bool any = false;
  for (size_t i = 0; i < count; ++i)
    for (size_t k = i + 1; k < count; ++k) {
      double& square = squares[i * count + k];
      const double both = squares[i * count + i] + squares[k * count + k];
      square = both - 2.0 * square;
      any |= near[i * count + k] = square < kLost * both ? 1 : 0;
    }
  if (any) {
    const std::vector<double> again = runner.pair_sums(held, size, near.data(), true);
    for (size_t pair = 0; pair < near.size(); ++pair)
      if (near[pair] != 0) squares[pair] = again[pair];
  }
  for (size_t i = 0; i < count; ++i)
    for (size_t k = i + 1; k < count; ++k) squares[k * count + i] = squares[i * count + k];
  return squares;
}

RobustCombiner::RobustCombiner(const std::string& rule, const RobustSetting& setting) : setting_(setting) {
  const auto& rules = robust_rules();
  const auto entry =
      std::find_if(rules.begin(), rules.end(), [&](const RobustRule& each) { return rule == each.name; });
  if (entry == rules.end()) throw Refusal(Why::kSetting, "rule: unknown '" + rule + "'");
  rule_ = &*entry;
}

void RobustCombiner::check(int64_t count) const {
  const int64_t least = rule_->least(setting_);
  if (count < least || count > kMostCombined)
    throw Refusal(Why::kSetting, std::string(rule_->name) + " needs " + std::to_string(least) + ".." +
                                     std::to_string(kMostCombined) + " updates, got " + std::to_string(count));
}

std::vector<double> RobustCombiner::weigh(const std::vector<WeightedUpdate>& held, int64_t size, Runner& runner,
                                          float* weights) const {
  check(static_cast<int64_t>(held.size()));
  for (size_t k = 0; k < held.size(); ++k) weights[k] = held[k].by;
  if (rule_->shares == nullptr) return {};
  const std::vector<double> shares = rule_->shares(setting_, held, size, runner);
  for (size_t k = 0; k < held.size(); ++k) weights[k] = static_cast<float>(shares[k] * static_cast<double>(weights[k]));
  return shares;
}

CombineSetting RobustCombiner::how(int64_t count) const {
  return rule_->combining == nullptr ? CombineSetting{} : rule_->combining(setting_, count);
}

}  // namespace fastagg::engine
