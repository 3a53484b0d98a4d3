// Every update is a step of its own; with `blend` towards the client's model (FedAsync).
#pragma once

#include "direction.h"

namespace fastagg::engine {

class Single : public DirectionState {
 public:
  // `divisor`: a step is scaled by what its update counts for, divided by this. 0: it is not.
  Single(double sign, bool blend, double divisor)
      : DirectionState(blend ? 1.0 : sign), blend_(blend), divisor_(divisor) {}
  Outcome plan(const Given& given, bool closes) override;
  void run(Runner& runner, const Updates& updates, const Optimizer& optimizer) override;
  void commit() noexcept override {}
  bool sets_aside() const override { return true; }
  void measured(const Given& given) override { plan(given, true); }
  bool immediate() const override { return true; }
  double scale(const Contribution& one) const override { return divisor_ > 0.0 ? one.share / divisor_ : 1.0; }
  double bound() const override;
  double growth(double lr) const override;
  bool blends() const override { return blend_; }
  void fields(Archive&) override {}

 private:
  bool blend_;
  double divisor_;
  Direction direction_;
  double weight_ = 0.0;
};

}  // namespace fastagg::engine
