// The kinds of buffers: what is left of the updates of a round, and how a step is made of it.
#pragma once

#include <atomic>

#include "../cpu/combine.h"
#include "../cpu/cpu.h"
#include "buffered.h"
#include "held.h"

namespace fastagg::engine {

// The sum of the updates so far. Encoded ones may also wait as they came, behind the sum, in less memory. The step's
// pass reads them. Those that wait are always the last that came, so everything is added in the order in which it came,
// and the bits do not tell who waited.
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
  bool fresh() const { return round.versions.size() == waiting_.size(); }  // nothing is in the sum

  std::vector<HeldUpdate> waiting_;
  // Planned:
  bool waits_ = false;                     // the update is kept as it came
  std::vector<WeightedUpdate> terms_;      // what is read as it came, besides the last one of a step
  bool in_place_ = false;                  // models are checked in a pass of their own, and then added where the sum is
  std::vector<cpu::TrainedModel> models_;  // or updates, without a base
  std::vector<std::atomic<int32_t>> largest_;  // of their elements
};

// Updates that wait as they came, because the round becomes something else than their sum (Combiner).
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
  // Combined updates are not weighted by samples: a number of samples could be a lie.
  float factor(const Contribution& contribution) const {
    return static_cast<float>(contribution.gain * is.sign * contribution.weight);
  }

  std::vector<HeldUpdate> waiting_;
  std::vector<WeightedUpdate> terms_;  // of a planned step
  std::unique_ptr<Desks> desks_;
};

// The kind that the setting asks for.
std::shared_ptr<BufferedDirection> buffer_of(double sign, const BufferedDirection::Setting& setting,
                                             const std::shared_ptr<store::Memory>& memory,
                                             const std::optional<Privacy::Setting>& privacy = std::nullopt);

}  // namespace fastagg::engine
