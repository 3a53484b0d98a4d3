// The direction of CA2FL: the mean of all clients' rows, plus the mean of the buffered updates, each minus its client's
// row. A client's row is the client's previous update. During a round the rows from before the round stay in their
// slots, and new rows go to spare slots. The step then gives the new slots to the clients. No row is moved.
#pragma once

#include <memory>

#include "direction.h"
#include "resummation.h"

namespace fastagg::engine {

class CalibratedDirection : public DirectionState, public RowKeeper {
 public:
  struct Setting {
    int64_t clients, capacity;
    bool from_start;  // true: an update minus its client's row from before the round; false: minus the newest row
  };
  CalibratedDirection(double sign, const Setting& setting, const Rows& rows, uint64_t seed, float* sum, float* acc,
                      std::shared_ptr<Resummation> resummation);
  Outcome plan(const Contributions& contributions, bool closes, ReadMode mode) override;
  void run(Runner& runner, const Optimizer& optimizer) override;
  void commit() noexcept override;
  void cancel() noexcept override;
  int64_t writes(int64_t client) const override;
  void fields(Archive& archive) override;
  int64_t nbytes() const override;

 private:
  struct FreshUpdate {
    int64_t client, slot;
    double share;
  };
  FreshUpdate* fresh_of(int64_t client);
  void take_slots(const std::vector<std::pair<int64_t, int64_t>>& slots, const std::vector<Archive::Entry>& fresh,
                  const std::vector<int64_t>& free);

  Setting setting_;
  Rows rows_;
  uint64_t seed_;
  float *sum_, *acc_;
  std::shared_ptr<Resummation> resummation_;
  std::vector<int32_t> slots_;      // by client: the slot of the row from before the round; negative: no row
  std::vector<FreshUpdate> fresh_;  // the rows of this round, in the order of the clients' first answers
  std::vector<int32_t> free_;
  std::vector<float> weights_;  // by slot: the row's weight in the sum of rows, 0 or 1
  std::vector<int64_t> held_;
  double total_ = 0.0, row_bound_ = 0.0;
  int64_t arrivals_ = 0;
  struct PlannedStep {
    Contribution contribution;
    Outcome outcome = Outcome::kKept;
    int64_t read = -1, write = -1;
    bool known = false;
    std::vector<std::pair<int64_t, float>> terms;
    double divisor = 1.0, row_bound = 0.0;
  };
  PlannedStep next_;
};

}  // namespace fastagg::engine
