// The updates of a round (FedBuff, FADAS, FedAvg): which they are, what they count for, and when they make a step. What
// is left of them is for the kinds of buffers (buffers.h): a sum, or updates that wait as they came.
#pragma once

#include <optional>
#include <vector>

#include "direction.h"
#include "privacy.h"

namespace fastagg::engine {

inline double weight_of(const Contribution& contribution) { return contribution.weight * contribution.share; }

class BufferedDirection : public DirectionState, public Sums {
 public:
  // A negative capacity: however many come until `close_round`. `synchronous`: only updates of the current version.
  // `at_least`: so many are enough for a step, `grace` seconds later; 0: never.
  struct Setting {
    int64_t capacity;
    bool synchronous;
    int64_t size;               // of the vector
    bool closes_first = false;  // a sum for which the round has no room ends it, and begins the next one
    int64_t at_least = 0;
    double grace = 0.0;
    double divisor = 0.0;  // of the sum. 0: what updates count for; negative: that times their weights
    std::shared_ptr<const Combiner> combine = nullptr;  // what a round becomes; null: the sum, divided
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
    std::vector<int64_t> versions;              // of its updates
    std::vector<int64_t> clients;               // their places; none: nobody counts them, or a leaf's sum came
    double total = 0.0, bound = 0.0;            // what they count for; of the elements of what is kept of them
    double next_total = 0.0, next_bound = 0.0;  // with those that are planned,
    double divisor = 0.0;                       // and what their sum is then divided by
  };
  Round round;
  // The sum, if there is one. The last update of a full round never enters it: it goes straight into the step.
  struct RunningSum {
    store::Vector acc, beside;  // `beside`: where the next one is made, if what is planned may still fail
    Update along;               // the next one, if the step is along it
    const store::Vector& into() const { return beside ? beside : acc; }
  };
  RunningSum sum;

 protected:
  // Refuses what this kind cannot hold: `contributions_`, which are so many with those before.
  virtual void check_sum(int64_t) const {}
  virtual void plan_sum(ReadMode mode) = 0;
  // False: what was loaded does not belong to these versions.
  virtual bool sum_fields(Archive& archive) = 0;
  void plan_numbers(const Contributions& contributions, bool steps);
  // `term`: what 1 in the sum means.
  void step_along(Runner& runner, double term, const Optimizer& optimizer);

  const Setting setting_;
  const std::shared_ptr<store::Memory> memory_;
  std::optional<Privacy> privacy_;
  // Planned:
  Outcome outcome_ = Outcome::kKept;
  Contributions contributions_;
};

}  // namespace fastagg::engine
