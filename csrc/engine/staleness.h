// The formulas of staleness policies: an update's weight, and a step's learning rate, for given delays in versions.
// fastagg/rules/staleness.py names each formula's source, and calls the formula. The extension has users' own formulas.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "../math/list.h"

namespace fastagg::engine {

struct StalenessSetting {
  double a = 0.0, b = 0.0;                  // the settings of the weight formula; kSettings has their names in Python
  double threshold = 0.0, lipschitz = 1.0;  // the settings of the rate formula
};

// -- weights: `of` returns the weight of an update that is tau versions old. None: the update is dropped. kSettings has
// the names of a and b in Python. Null: the formula does not use the setting.

struct ConstantWeight {
  static constexpr const char* kName = "constant";
  static constexpr const char* kSettings[2] = {nullptr, nullptr};
  static std::optional<double> of(double, const StalenessSetting&) { return 1.0; }
};
struct HingeWeight {
  static constexpr const char* kName = "hinge";
  static constexpr const char* kSettings[2] = {"a", "b"};
  static std::optional<double> of(double tau, const StalenessSetting& s) {
    return tau <= s.b ? 1.0 : 1.0 / (s.a * (tau - s.b) + 1.0);
  }
};
struct PolynomialWeight {
  static constexpr const char* kName = "polynomial";
  static constexpr const char* kSettings[2] = {"a", nullptr};
  static std::optional<double> of(double tau, const StalenessSetting& s) { return std::pow(tau + 1.0, -s.a); }
};
struct CosineWeight {
  static constexpr const char* kName = "cosine";
  static constexpr const char* kSettings[2] = {"alpha", "cutoff"};
  static std::optional<double> of(double tau, const StalenessSetting& s) {
    constexpr double kPi = 3.14159265358979323846;
    return tau < s.b ? std::exp(-s.a * tau) * 0.5 * (1.0 + std::cos(kPi * tau / s.b)) : 0.0;
  }
};
struct CutoffWeight {
  static constexpr const char* kName = "cutoff";
  static constexpr const char* kSettings[2] = {"delay", nullptr};
  static std::optional<double> of(double tau, const StalenessSetting& s) {
    return tau < s.a ? std::optional<double>(1.0) : std::nullopt;
  }
};
using Weights = List<ConstantWeight, HingeWeight, PolynomialWeight, CosineWeight, CutoffWeight>;

// -- rates: `of` returns the rate of a step whose oldest update is tau versions old, more than the threshold. lr is the
// optimizer's rate.

struct SameRate {
  static constexpr const char* kName = "same";
  static double of(double lr, double, const StalenessSetting&) { return lr; }
};
struct ScaledRate {
  static constexpr const char* kName = "scaled";
  static double of(double lr, double tau, const StalenessSetting&) { return std::min(lr, lr / tau); }
};
struct ReciprocalRate {
  static constexpr const char* kName = "reciprocal";
  static double of(double lr, double tau, const StalenessSetting&) { return std::min(lr, 1.0 / tau); }
};
struct ThresholdRate {
  static constexpr const char* kName = "threshold";
  static double of(double lr, double tau, const StalenessSetting& s) { return lr * s.threshold / tau; }
};
struct LipschitzRate {
  static constexpr const char* kName = "lipschitz";
  static double of(double lr, double tau, const StalenessSetting& s) {
    return std::min(lr, 1.0 / (4.0 * s.lipschitz * tau));
  }
};
struct DropRate {
  static constexpr const char* kName = "drop";
  static double of(double, double, const StalenessSetting&) { return 0.0; }
};
using Rates = List<SameRate, ScaledRate, ReciprocalRate, ThresholdRate, LipschitzRate, DropRate>;

// The formulas of a server. If a formula is null, the extension computes the value.
struct Staleness {
  std::optional<double> (*weight)(double tau, const StalenessSetting& setting) = ConstantWeight::of;
  double (*rate)(double lr, double tau, const StalenessSetting& setting) = SameRate::of;
  StalenessSetting setting;

  std::optional<double> weight_of(int64_t delay) const { return weight(static_cast<double>(delay), setting); }
  bool changes_rate() const { return rate != SameRate::of; }
  double rate_of(double lr, const std::vector<int64_t>& delays) const {
    const auto longest = std::max_element(delays.begin(), delays.end());
    const double tau = longest == delays.end() ? 0.0 : static_cast<double>(*longest);
    return tau <= setting.threshold ? lr : rate(lr, tau, setting);
  }
};

}  // namespace fastagg::engine
