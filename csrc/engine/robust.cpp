#include "robust.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "../refusal.h"

namespace fastagg::engine {
namespace {

// A squared distance below this share of both squares has lost 20 bits of 53.
constexpr double kLost = 0x1p-20;

// How far each row is from the sum of all with these shares, from the products of all pairs of rows. A row that is far
// away has a small share, so no term is much larger than a distance. Squared distances of pairs would cancel.
std::vector<double> distances_from_point(const std::vector<double>& products, const std::vector<double>& shares) {
  const size_t count = shares.size();
  std::vector<double> distances(count);
  double square = 0.0;  // of the point's norm
  for (size_t i = 0; i < count; ++i) {
    for (size_t k = 0; k < count; ++k) distances[i] += shares[k] * products[std::min(i, k) * count + std::max(i, k)];
    square += shares[i] * distances[i];
  }
  for (size_t i = 0; i < count; ++i)
    distances[i] = std::sqrt(std::max(0.0, products[i * count + i] - 2.0 * distances[i] + square));
  return distances;
}

}  // namespace

std::vector<double> squared_distances(const std::vector<Held>& held, int64_t size, Runner& runner) {
  const size_t count = held.size();
  std::vector<double> found = runner.pair_sums(held, size, nullptr, false);
  std::vector<uint8_t> near(count * count);
  bool any = false;
  for (size_t i = 0; i < count; ++i)
    for (size_t k = i + 1; k < count; ++k) {
      double& square = found[i * count + k];
      const double both = found[i * count + i] + found[k * count + k];
      square = both - 2.0 * square;
      any |= near[i * count + k] = square < kLost * both ? 1 : 0;
    }
  if (any) {
    const std::vector<double> again = runner.pair_sums(held, size, near.data(), true);
    for (size_t pair = 0; pair < near.size(); ++pair)
      if (near[pair] != 0) found[pair] = again[pair];
  }
  for (size_t i = 0; i < count; ++i)
    for (size_t k = i + 1; k < count; ++k) found[k * count + i] = found[i * count + k];
  return found;
}

std::vector<double> Robust::weigh(const std::vector<Held>& held, int64_t size, Runner& runner, float* weights) const {
  const auto count = static_cast<int64_t>(held.size());
  const bool krum = setting_.rule == kKrum || setting_.rule == kMultiKrum;
  const int64_t least = krum ? std::max(2 * setting_.f + 3, setting_.keep)
                             : (setting_.rule == kMeanAroundMedian ? 2 * setting_.f + 1 : 1);
  if (count < least || count > kMostCombined)
    throw Refusal(Why::kSetting, std::string(kRobustNames[setting_.rule]) + " needs " + std::to_string(least) + ".." +
                                     std::to_string(kMostCombined) + " updates, and the round has " +
                                     std::to_string(count));
  for (size_t k = 0; k < held.size(); ++k) weights[k] = held[k].by;
  if (sorts()) return {};
  const std::vector<double> found = krum ? nearest_to_others(squared_distances(held, size, runner), held.size())
                                         : moved_from_zero(runner.pair_sums(held, size, nullptr, false), held.size());
  for (size_t k = 0; k < held.size(); ++k) weights[k] = static_cast<float>(found[k] * static_cast<double>(weights[k]));
  return found;
}

Combining Robust::how(int64_t count) const {
  if (setting_.rule == kMeanAroundMedian) return {place_in<Around>(Combines{}), setting_.f};
  if (!sorts()) return {};
  const int64_t cut =
      setting_.rule == kMedian ? (count - 1) / 2 : static_cast<int64_t>(setting_.trim * static_cast<double>(count));
  return {place_in<Trimmed>(Combines{}), cut};
}

// What each update counts for.
std::vector<double> Robust::nearest_to_others(const std::vector<double>& apart, size_t count) const {
  const auto others = static_cast<std::ptrdiff_t>(count) - setting_.f - 2;
  std::vector<double> scores(count), near;
  for (size_t i = 0; i < count; ++i) {
    near.clear();
    for (size_t k = 0; k < count; ++k)
      if (k != i) near.push_back(apart[i * count + k]);
    std::sort(near.begin(), near.end());
    scores[i] = std::accumulate(near.begin(), near.begin() + others, 0.0);
  }
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] < scores[b]; });
  const auto all_but_f = count - static_cast<size_t>(setting_.f);
  const auto keep = setting_.rule == kKrum ? 1 : setting_.keep > 0 ? static_cast<size_t>(setting_.keep) : all_but_f;
  std::vector<double> shares(count);
  for (size_t k = 0; k < keep; ++k) shares[order[k]] = 1.0 / static_cast<double>(keep);
  return shares;
}

// The same of rules that move a point from zero, so that nothing large draws it away at the start.
std::vector<double> Robust::moved_from_zero(const std::vector<double>& products, size_t count) const {
  std::vector<double> shares(count), moves(count);
  for (int64_t turn = 0; turn < setting_.iterations; ++turn) {
    const std::vector<double> distances = distances_from_point(products, shares);
    double moved = 0.0;
    for (size_t i = 0; i < count; ++i)
      moved += moves[i] = setting_.rule == kGeometricMedian ? 1.0 / std::max(setting_.smoothing, distances[i])
                          : distances[i] > setting_.radius  ? setting_.radius / distances[i]
                                                            : 1.0;
    const double whole = setting_.rule == kGeometricMedian ? moved : static_cast<double>(count);
    for (size_t i = 0; i < count; ++i) shares[i] = shares[i] * (1.0 - moved / whole) + moves[i] / whole;
  }
  return shares;
}

}  // namespace fastagg::engine
