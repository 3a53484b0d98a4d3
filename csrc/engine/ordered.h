// A direction that wraps a buffer. Updates are stored until their round is complete. Then the buffer gets all updates,
// in the order of their clients' ids. So the result does not depend on the order in which different clients answer.
#pragma once

#include "answer.h"
#include "direction.h"

namespace fastagg::engine {

class OrderedDirection : public DirectionState, public Sums {
 public:
  struct WaitingAnswer {
    Answer answer;  // only the fields that are needed at the round's end
    Contribution brings;
  };
  explicit OrderedDirection(std::shared_ptr<DirectionState> round);
  void check(const ClientId& client, int64_t start, int64_t now) const override { round_->check(client, start, now); }
  Outcome plan(const Contributions& contributions, bool closes, ReadMode mode) override;
  void run(Runner& runner, const Optimizer& optimizer) override;
  void commit() noexcept override;
  void fields(Archive& archive) override { round_->fields(archive); }
  int64_t room() const override { return round_->is.sums->room() - static_cast<int64_t>(waiting_.size()); }
  double grace(int64_t more) const override {
    return round_->is.sums->grace(static_cast<int64_t>(waiting_.size()) + more);
  }

  const std::vector<WaitingAnswer>& waiting() const { return waiting_; }
  void load(std::vector<WaitingAnswer> waiting) { waiting_ = std::move(waiting); }

 private:
  const std::shared_ptr<DirectionState> round_;
  std::vector<WaitingAnswer> waiting_;
  // The plan for the next update:
  Outcome outcome_ = Outcome::kKept;
  const Contribution* last_ = nullptr;
  Contributions all_;  // if the round ends: its contributions, in the order of clients; else empty
};

}  // namespace fastagg::engine
