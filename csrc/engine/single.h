// A direction in which every update makes a step: along the update, or towards the client's model (FedAsync).
#pragma once

#include "direction.h"

namespace fastagg::engine {

class SingleDirection : public DirectionState {
 public:
  // `blend`: whether steps are towards the client's model. `divisor`: steps are multiplied by the update's share /
  // `divisor`; 0: steps are not multiplied.
  SingleDirection(double sign, bool blend, double divisor) : DirectionState(blend ? 1.0 : sign) {
    is.immediate = is.reads_once = true;
    is.blends = blend;
    is.divisor = divisor;
  }
  Outcome plan(const Contributions& contributions, bool closes, ReadMode mode) override;
  void measured(const Contributions& contributions) override { plan(contributions, true, ReadMode::kReadOnce); }
  void run(Runner& runner, const Optimizer& optimizer) override;
  void commit() noexcept override {}
  double bound() const override;
  double growth(double lr) const override;
  void fields(Archive&) override {}

 protected:
  const Update* update_ = nullptr;
  Direction direction_;
  double weight_ = 0.0;
};

}  // namespace fastagg::engine
