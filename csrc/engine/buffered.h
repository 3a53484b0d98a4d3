// The updates of a round (FedBuff, FADAS, FedAvg): their weights, and when they make a step. The kinds of buffers
// (buffers.h) store them: as a sum, or as they came.
#pragma once

#include <optional>
#include <vector>

#include "direction.h"
#include "privacy.h"

namespace fastagg::engine {

inline double weight_of(const Contribution& contribution) { return contribution.weight * contribution.share; }

class BufferedDirection : public DirectionState, public Sums {
 public:
  // `capacity`: the number of updates in a round; negative: no limit, and the round ends with `close_round`.
  // `synchronous`: only updates of the current version are taken. `at_least`: a round with this many updates may end
  // `grace` seconds later; 0: never.
  struct Setting {
    int64_t capacity;
    bool synchronous;
    int64_t size;               // the number of the vector's elements
    bool closes_first = false;  // whether a sum that does not fit into the round first ends the round
    int64_t at_least = 0;
    double grace = 0.0;
    double divisor = 0.0;  // of the sum; 0: the sum of shares; negative: the sum of shares times weights
    std::shared_ptr<const Combiner> combine = nullptr;  // combines a round's updates; null: the divided sum is used
  };
  BufferedDirection(double sign, const Setting& setting, std::shared_ptr<store::Memory> memory,
                    const std::optional<Privacy::Setting>& privacy);
  void check(const ClientId& client, int64_t start, int64_t now) const override;
  Outcome plan(const Contributions& contributions, bool closes, ReadMode mode) override;
  void commit() noexcept override;
  void measured(const Contributions& contributions) override {
    plan_numbers(contributions, outcome_ == Outcome::kStep);
  }
  int64_t room() const override;
  double grace(int64_t waiting) const override;
  bool closes_before(int64_t count) const override {
    return setting_.closes_first && !round.versions.empty() && count > room();
  }
  double total() const override { return round.total; }
  store::Vector along() const override { return sum.along.size > 0 ? sum.into() : store::Vector{}; }
  void hand_over() noexcept override { sum.acc = {}; }
  void fields(Archive& archive) override;
  int64_t nbytes() const override { return privacy_ ? privacy_->nbytes() : 0; }

  struct Round {
    std::vector<int64_t> versions;              // the versions that the updates so far were trained from
    std::vector<int64_t> clients;               // by place; empty if clients are not counted, or a leaf's sum came
    double total = 0.0, bound = 0.0;            // the sum of the updates' shares; a bound on the stored elements
    double next_total = 0.0, next_bound = 0.0;  // the same, including the planned updates,
    double divisor = 0.0;                       // and the divisor of their sum
  };
  Round round;
  // The sum, if there is one. The last update of a full round goes straight into the step, and never enters the sum.
  struct RunningSum {
    store::Vector acc, beside;  // `beside`: the place of the next sum if the plan may still fail
    Update along;               // the next sum, if the step is along that sum
    const store::Vector& into() const { return beside ? beside : acc; }
  };
  RunningSum sum;

 protected:
  // Refuses planned contributions that this kind of buffer cannot hold. The argument is the number of updates,
  // including earlier ones.
  virtual void check_sum(int64_t) const {}
  virtual void plan_sum(ReadMode mode) = 0;
  // Saves or loads the sum. Returns false if the loaded data does not fit the round's versions.
  virtual bool sum_fields(Archive& archive) = 0;
  void plan_numbers(const Contributions& contributions, bool steps);
  // Steps along the sum times `term` / divisor.
  void step_along(Runner& runner, double term, const Optimizer& optimizer);

  const Setting setting_;
  const std::shared_ptr<store::Memory> memory_;
  std::optional<Privacy> privacy_;
  // Planned:
  Outcome outcome_ = Outcome::kKept;
  Contributions contributions_;
};

}  // namespace fastagg::engine
