#include <cmath>

#include "books.h"

namespace fastagg::serving {

Outcome Single::plan(const Facts& facts) {
  direction_ = {};
  direction_.gain = facts.gain * sign_;
  direction_.weight = facts.weight;
  weight_ = facts.weight;
  bound_ = std::abs(facts.weight) * facts.norm;
  if (blend_) {
    direction_.kind = kBlend;
    direction_.base = facts.base;
  }
  versions_.assign(1, facts.start);
  return Outcome::kStep;
}

double Single::bound() const { return blend_ ? bound_ + std::abs(weight_) * 2.0 * model_bound : bound_; }

// A value between two versions is not larger than both.
double Single::growth(double lr) const {
  const bool between = blend_ && lr * weight_ >= 0.0 && lr * weight_ <= 1.0;
  return std::abs(lr) * (between ? bound_ : bound());
}

void Single::run(Runner& runner, const Update& update, const Optimizer& optimizer) {
  runner.step(update, direction_, optimizer);
}

}  // namespace fastagg::serving
