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

// The squares of how far each row is from a point: a mean of the rows, with these shares, which add up to 1. `apart`:
// their squared distances from each other.
std::vector<double> squares_from(const std::vector<double>& apart, const std::vector<double>& shares) {
  const size_t count = shares.size();
  std::vector<double> found(count);
  double spread = 0.0;
  for (size_t i = 0; i < count; ++i) {
    for (size_t k = 0; k < count; ++k)
      if (k != i) found[i] += shares[k] * apart[i * count + k];
    spread += shares[i] * found[i];
  }
  for (double& one : found) one = std::max(0.0, one - 0.5 * spread);
  return found;
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
  std::vector<double> found = shares(squared_distances(held, size, runner), held.size());
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

// What each update counts for. They add up to 1, or to less if updates are clipped.
std::vector<double> Robust::shares(const std::vector<double>& apart, size_t count) const {
  const bool krum = setting_.rule == kKrum || setting_.rule == kMultiKrum;
  return krum ? nearest_to_others(apart, count) : moved_from_zero(apart, count);
}

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

// The rules that move a point, which begins at zero: one more row. So nothing large draws it away at the start.
std::vector<double> Robust::moved_from_zero(const std::vector<double>& apart, size_t count) const {
  const size_t all = count + 1;
  std::vector<double> wider(all * all), shares(all), moves(all);
  for (size_t i = 0; i < count; ++i) {
    for (size_t k = 0; k < count; ++k) wider[i * all + k] = apart[i * count + k];
    wider[i * all + count] = wider[count * all + i] = apart[i * count + i];
  }
  shares.back() = 1.0;
  for (int64_t turn = 0; turn < setting_.iterations; ++turn) {
    const std::vector<double> squares = squares_from(wider, shares);
    double moved = 0.0;
    for (size_t i = 0; i < count; ++i) {
      const double length = std::sqrt(squares[i]);
      moved += moves[i] = setting_.rule == kGeometricMedian ? 1.0 / std::max(setting_.smoothing, length)
                          : length > setting_.radius        ? setting_.radius / length
                                                            : 1.0;
    }
    const double whole = setting_.rule == kGeometricMedian ? moved : static_cast<double>(count);
    for (size_t i = 0; i < all; ++i) shares[i] = shares[i] * (1.0 - moved / whole) + moves[i] / whole;
  }
  shares.pop_back();
  return shares;
}

}  // namespace fastagg::engine
