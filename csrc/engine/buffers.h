// The two kinds of buffers. SummedBuffer stores the sum of a round's updates, and CombinedBuffer every single update.
#pragma once

#include <atomic>

#include "../cpu/combine.h"
#include "../cpu/cpu.h"
#include "buffered.h"
#include "held.h"

namespace fastagg::engine {

// Stores the sum of the updates so far. Encoded updates may instead be stored as they came (`waiting_`), until one pass
// adds all of them. The waiting updates are always the latest ones. So updates are added in order of arrival, and the
// bits of the sum do not depend on which updates waited.
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
  bool fresh() const { return round.versions.size() == waiting_.size(); }  // whether the sum is empty

  std::vector<HeldUpdate> waiting_;
  // The plan for the next updates:
  bool waits_ = false;                 // whether the planned update is stored as it came
  std::vector<WeightedUpdate> terms_;  // the waiting and the planned updates, in order; empty if no update waits
  bool in_place_ = false;  // whether one pass checks the models, and a second pass adds the models to the sum in place
  std::vector<cpu::TrainedModel> models_;      // a batch's models with their bases, or a batch's updates
  std::vector<std::atomic<int32_t>> largest_;  // by model: the largest magnitude of model - base, as a float's bits
};

// Stores each update as it came, because a Combiner needs every single update of the round.
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
  // The factor does not contain the number of samples, because a client could lie about that number.
  float factor(const Contribution& contribution) const {
    return static_cast<float>(contribution.gain * is.sign * contribution.weight);
  }

  std::vector<HeldUpdate> waiting_;
  std::vector<WeightedUpdate> terms_;  // all updates of the planned step; empty: no step
  std::unique_ptr<Desks> desks_;
};

// Makes the kind of buffer that the setting needs.
std::shared_ptr<BufferedDirection> buffer_of(double sign, const BufferedDirection::Setting& setting,
                                             const std::shared_ptr<store::Memory>& memory,
                                             const std::optional<Privacy::Setting>& privacy = std::nullopt);

}  // namespace fastagg::engine
