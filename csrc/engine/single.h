// Every update is a step of its own; with `blend` towards the client's model (FedAsync).
#pragma once

#include "direction.h"

namespace fastagg::engine {

class Single : public DirectionState {
 public:
  Single(double sign, bool blend) : DirectionState(blend ? 1.0 : sign), blend_(blend) {}
  Outcome plan(const Given& given, bool closes) override;
  void run(Runner& runner, const Updates& updates, const Optimizer& optimizer) override;
  void commit() noexcept override {}
  bool sets_aside() const override { return true; }
  void measured(const Given& given) override { plan(given, true); }
  bool immediate() const override { return true; }
  double bound() const override;
  double growth(double lr) const override;
  bool blends() const override { return blend_; }
  void fields(Archive&) override {}

 private:
  bool blend_;
  Direction direction_;
  double weight_ = 0.0;
};

}  // namespace fastagg::engine
