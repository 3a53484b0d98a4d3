// What a delay changes: the weight of one update, and the learning rate of a step (fastagg/rules/staleness.py says who
// defined each rule). A rule of a user's own is asked for (extension.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace fastagg::engine {

struct Staleness {
  static constexpr double kPi = 3.14159265358979323846;
  enum Weight { kOne, kHinge, kPolynomial, kCosine, kCutoff, kAskWeight };
  enum Rate { kSame, kScaled, kReciprocal, kThreshold, kLipschitz, kDrop, kAskRate };
  static constexpr const char* kWeights[] = {"one", "hinge", "polynomial", "cosine", "cutoff", "ask"};
  static constexpr const char* kRates[] = {"same", "scaled", "reciprocal", "threshold", "lipschitz", "drop", "ask"};
  Weight weight = kOne;
  double a = 0.0, b = 0.0;
  Rate rate = kSame;
  double threshold = 0.0, lipschitz = 1.0;

  double weight_of(int64_t delay) const {
    const auto tau = static_cast<double>(delay);
    if (weight == kHinge) return tau <= b ? 1.0 : 1.0 / (a * (tau - b) + 1.0);
    if (weight == kPolynomial) return std::pow(tau + 1.0, -a);
    if (weight == kCosine) return tau < b ? std::exp(-a * tau) * 0.5 * (1.0 + std::cos(kPi * tau / b)) : 0.0;
    return 1.0;
  }
  bool drops(int64_t delay) const { return weight == kCutoff && static_cast<double>(delay) >= a; }

  double rate_of(double lr, const std::vector<int64_t>& delays) const {
    int64_t longest = 0;
    for (const int64_t one : delays) longest = std::max(longest, one);
    const auto tau = static_cast<double>(longest);
    if (tau <= threshold) return lr;
    switch (rate) {
      case kScaled: return std::min(lr, lr / tau);
      case kReciprocal: return std::min(lr, 1.0 / tau);
      case kThreshold: return lr * threshold / tau;
      case kLipschitz: return std::min(lr, 1.0 / (4.0 * lipschitz * tau));
      case kDrop: return 0.0;
      default: return lr;
    }
  }
};

}  // namespace fastagg::engine
