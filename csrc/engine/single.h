// A direction in which every update makes a step. `blend`: whether the step is towards the client's model (FedAsync).
#pragma once

#include "direction.h"

namespace fastagg::engine {

class SingleDirection : public DirectionState {
 public:
  // The step is multiplied by the update's share / `divisor`. `divisor` = 0: the step is not multiplied.
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
