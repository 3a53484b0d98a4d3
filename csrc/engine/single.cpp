#include "single.h"

#include "../refusal.h"

namespace fastagg::engine {

Outcome SingleDirection::plan(const Contributions& contributions, bool, ReadMode) {
  const Contribution& contribution = contributions.front();
  update_ = contribution.update;
  direction_ = {};
  direction_.gain = contribution.gain * is.sign;
  direction_.weight = weight_ = contribution.weight * scale(contribution);
  bound_ = std::abs(weight_) * contribution.norm;
  if (is.blends) {
    direction_.kind = kBlend;
    direction_.base = contribution.base;
  }
  versions_.assign(1, contribution.start);
  return Outcome::kStep;
}

double SingleDirection::bound() const { return is.blends ? bound_ + std::abs(weight_) * 2.0 * model_bound : bound_; }

// With a mixing weight in [0, 1], an element of a blend is at most as large as the larger of the two blended elements.
// If samples give an answer a mixing weight above 1, the step would move the model beyond the client's model. Such an
// answer is refused.
double SingleDirection::growth(double lr) const {
  if (is.blends && is.divisor > 0.0 && lr * weight_ > 1.0 + 1e-9)
    throw Refusal(Why::kSetting,
                  "normalize: this answer's mixing weight would be " + std::to_string(lr * weight_) +
                      ", and it is at most 1; make normalize larger (the samples of all clients), or bound "
                      "a client's by max_samples");
  const bool between = is.blends && lr * weight_ >= 0.0 && lr * weight_ <= 1.0;
  return std::abs(lr) * (between ? bound_ : bound());
}

void SingleDirection::run(Runner& runner, const Optimizer& optimizer) { runner.step(*update_, direction_, optimizer); }

}  // namespace fastagg::engine
