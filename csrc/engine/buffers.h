// The kinds of buffers: how they store the updates of a round, and make a step from them.
#pragma once

#include <atomic>

#include "../cpu/combine.h"
#include "../cpu/cpu.h"
#include "buffered.h"
#include "held.h"

namespace fastagg::engine {

// Stores the sum of the updates so far. To save memory, encoded updates may instead wait as they came, until the step's
// pass reads them. The waiting updates are always the last that came. So updates are added in order of arrival, and the
// sum's bits do not depend on which updates waited.
class SummedBuffer : public BufferedDirection {
 public:
  using BufferedDirection::BufferedDirection;
  void run(Runner& runner, const Optimizer& optimizer) override;
  void commit() noexcept override;
  size_t fold(std::vector<double>* squares) override;
  int64_t nbytes() const override { return nbytes_of(waiting_) + BufferedDirection::nbytes(); }

 private:
  void plan_sum(ReadMode mode) override;
  bool sum_fields(Archive& archive) override;
  float factor(const Contribution& contribution) const {
    return static_cast<float>(contribution.gain * is.sign * weight_of(contribution));
  }
  bool may_wait(const Contribution& contribution) const;
  void run_last(Runner& runner, const Update& update, bool none, const Optimizer& optimizer);
  void add_loaded();
  void tell_traits() noexcept;
  bool fresh() const { return round.versions.size() == waiting_.size(); }  // the sum has no update yet

  std::vector<HeldUpdate> waiting_;
  // Planned:
  bool waits_ = false;                 // whether the update is stored as it came
  std::vector<WeightedUpdate> terms_;  // the updates that are read as they came, except the last update of a step
  bool in_place_ = false;  // whether models are first checked in a separate pass, and then added to the sum in place
  std::vector<cpu::TrainedModel> models_;      // the planned models, or updates without a base
  std::vector<std::atomic<int32_t>> largest_;  // the largest magnitude of each model's elements
};

// Stores updates as they came, because the round needs another combination than their sum (Combiner).
class CombinedBuffer : public BufferedDirection {
 public:
  using BufferedDirection::BufferedDirection;
  void run(Runner& runner, const Optimizer& optimizer) override;
  void commit() noexcept override;
  int64_t nbytes() const override { return nbytes_of(waiting_) + BufferedDirection::nbytes(); }

 private:
  void check_sum(int64_t count) const override;
  void plan_sum(ReadMode mode) override;
  bool sum_fields(Archive& archive) override;
  // Samples do not weigh combined updates, because a client could lie about its number of samples.
  float factor(const Contribution& contribution) const {
    return static_cast<float>(contribution.gain * is.sign * contribution.weight);
  }

  std::vector<HeldUpdate> waiting_;
  std::vector<WeightedUpdate> terms_;  // the updates of the planned step
  std::unique_ptr<Desks> desks_;
};

// Makes the kind of buffer that the setting needs.
std::shared_ptr<BufferedDirection> buffer_of(double sign, const BufferedDirection::Setting& setting,
                                             const std::shared_ptr<store::Memory>& memory,
                                             const std::optional<Privacy::Setting>& privacy = std::nullopt);

}  // namespace fastagg::engine
