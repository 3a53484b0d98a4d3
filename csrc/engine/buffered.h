// The base class of all buffers (FedBuff, FADAS, FedAvg). The base class has the total weight of a round's updates, and
// decides when the updates make a step. The derived classes (buffers.h) store the sum of the updates, or every update.
#pragma once

#include <optional>
#include <vector>

#include "direction.h"
#include "privacy.h"

namespace fastagg::engine {

inline double weight_of(const Contribution& contribution) { return contribution.weight * contribution.share; }

class BufferedDirection : public DirectionState, public Sums {
 public:
  // `capacity`: the number of updates that make a step; negative: no limit, and only `close_round` ends a round.
  // `synchronous`: whether updates of earlier versions are refused. `at_least`: a round that has had this many
  // updates for `grace` seconds may end; 0: rounds never end by time.
  struct Setting {
    int64_t capacity;
    bool synchronous;
    int64_t size;               // the number of elements of the model's vector
    bool closes_first = false;  // whether a round without room for a leaf server's sum ends before that sum is added
    int64_t at_least = 0;
    double grace = 0.0;
    double divisor = 0.0;  // the sum's divisor; 0: the sum of shares; negative: the sum of (share * weight)
    std::shared_ptr<const Combiner> combine = nullptr;  // combines the updates; null: the step uses the divided sum
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

  // `total`: the sum of shares, or of share * weight if Setting::divisor < 0. `bound`: a bound on the stored elements.
  struct Round {
    std::vector<int64_t> versions;  // the versions that the updates so far were trained from
    std::vector<int64_t> clients;   // the places of these updates' clients, without updates in leaf servers' sums
    double total = 0.0, bound = 0.0;
    double next_total = 0.0, next_bound = 0.0;  // `total` and `bound` with the planned updates
    double divisor = 0.0;                       // the divisor of the sum with the planned updates
  };
  Round round;
  // The sum of the round's updates, if the buffer needs one. Usually the update that completes a round is not added to
  // the sum, because the step's kernel reads that update directly.
  struct RunningSum {
    store::Vector acc, beside;  // `acc`: the sum; `beside`: memory for the next sum; empty: `acc` is overwritten
    Update along;               // the planned sum, if the step uses no other vector; otherwise empty
    const store::Vector& into() const { return beside ? beside : acc; }
  };
  RunningSum sum;

 protected:
  // Refuses planned updates that this kind of buffer cannot store. The argument is the number of the round's updates,
  // including the planned ones.
  virtual void check_sum(int64_t) const {}
  virtual void plan_sum(ReadMode mode) = 0;
  // Saves or loads the sum and the stored updates. Returns false if the loaded data does not fit `round.versions`.
  virtual bool sum_fields(Archive& archive) = 0;
  void plan_numbers(const Contributions& contributions, bool steps);
  // Makes the step whose direction is `sum.along` times `term` / `round.divisor`, plus the noise of `privacy_`.
  void step_along(Runner& runner, double term, const Optimizer& optimizer);

  const Setting setting_;
  const std::shared_ptr<store::Memory> memory_;
  std::optional<Privacy> privacy_;
  // The plan for the next updates:
  Outcome outcome_ = Outcome::kKept;
  Contributions contributions_;
};

}  // namespace fastagg::engine
