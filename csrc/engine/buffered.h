// The sum of the updates so far (FedBuff, FADAS, FedAvg). The last update of a full round never enters it: it goes
// straight into the step.
//
// Updates may also wait as they came, behind the sum: in less memory, if they are encoded, or because the round becomes
// something else than their sum (Combine). The step's pass reads them. Those that wait are always the last that came,
// so everything is added in the order in which it came, and the bits do not tell who waited.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "../cpu/cpu.h"
#include "../cpu/desks.h"
#include "direction.h"
#include "held.h"
#include "privacy.h"

namespace fastagg::engine {

class Buffered : public DirectionState, public Sums {
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
    double largest = 0.0, unit = 0.0;  // of an exact sum: the largest norm of a term, and the unit. 0: a sum of floats
    double divisor = 0.0;              // of the sum. 0: what updates count for; negative: that times their weights
    std::shared_ptr<const Combine> combine = nullptr;  // what a round becomes; null: the sum, divided
  };
  Buffered(double sign, const Setting& setting, std::shared_ptr<store::Memory> memory,
           const std::optional<Privacy::Setting>& privacy = std::nullopt);
  void check(const ClientId& client, int64_t start, int64_t now) const override;
  Outcome plan(const Contributions& given, bool closes, Way way) override;
  void run(Runner& runner, const Updates& updates, const Optimizer& optimizer) override;
  void commit() noexcept override;
  void measured(const Contributions& given) override { plan_numbers(given, outcome_ == Outcome::kStep); }
  int64_t room() const override;
  double grace(int64_t waiting) const override;
  bool closes_before(int64_t count) const override { return setting_.closes_first && !held_.empty() && count > room(); }

  size_t fold(std::vector<double>* squares) override;
  store::Vector along() const override;
  void hand_over() noexcept override { acc_ = {}; }

  Privacy* privacy() { return privacy_ ? &*privacy_ : nullptr; }
  double total() const override { return total_; }
  const store::Vector& acc() const { return acc_; }
  // After loading: a bound of the sum's elements.
  void bound_sum(double bound) { acc_bound_ += bound; }
  void fields(Archive& archive) override;
  int64_t nbytes() const override;

 private:
  void plan_numbers(const Contributions& given, bool steps);
  void check_exact(const Contributions& given) const;
  int64_t waiting_nbytes() const;
  void plan_held();
  void run_held(Runner& runner, const Updates& updates, const Optimizer& optimizer);
  float factor(const Contribution& one) const;
  bool may_wait(const Contribution& one) const;
  void tell_traits() noexcept;
  bool fresh() const { return held_.size() == waiting_.size(); }  // nothing is in the sum
  bool exact() const { return setting_.unit > 0.0; }
  double divisor() const { return setting_.divisor > 0.0 ? setting_.divisor : total_next_; }
  Upper upper() { return exact() ? Upper{reinterpret_cast<int32_t*>(high_.data), marks_.data()} : Upper{}; }
  void begin_sum();
  void plan_memory(Way way);
  void run_last(Runner& runner, const Update& update, bool fresh, const Optimizer& optimizer);
  void step_along(Runner& runner, const Optimizer& optimizer);
  const store::Vector& into() const { return beside_ ? beside_ : acc_; }
  void exact_fields(Archive& archive);
  void load_held();
  void add_loaded();
  void check_loaded(bool there) const;
  bool settles(const Contributions& given) const { return exact() && (given.empty() || given.back().total >= 0.0); }

  Setting setting_;
  std::shared_ptr<store::Memory> memory_;
  std::optional<Privacy> privacy_;
  store::Vector acc_, beside_;
  store::Vector high_;  // of an exact sum, whose lower halves are in acc_
  std::vector<uint8_t> marks_;
  std::vector<int64_t> held_;  // versions of what is in the sum, and of what waits
  std::vector<HeldUpdate> waiting_;
  double total_ = 0.0, acc_bound_ = 0.0;
  // Planned:
  Outcome outcome_ = Outcome::kKept;
  Contributions given_;
  Update sum_;               // as a step along it reads it
  bool waits_ = false;       // the update is kept as it came
  std::vector<Held> terms_;  // what is read as it came, besides the last one of a step
  std::unique_ptr<Desks> desks_;
  bool in_place_ = false;             // models are checked in a pass of their own, and then added where the sum is
  std::vector<cpu::Trained> models_;  // or updates, without a base
  std::vector<std::atomic<int32_t>> largest_;  // of their elements
  double total_next_ = 0.0, acc_bound_next_ = 0.0;
};

}  // namespace fastagg::engine
