// CombinedBuffer (buffers.h): the buffer of robust rules, which stores every update of a round.
#include "../math/combine.h"
#include "buffers.h"

namespace fastagg::engine {

void CombinedBuffer::check_sum(int64_t count) const {
  if (!contributions_.empty() && contributions_.back().total >= 0.0)
    throw Refusal(Why::kSetting, "receive_partial: a sum of updates, and this rule needs every single one");
  if (count > kMostCombined)
    throw Refusal(Why::kSetting, "the round has as many updates as can be combined; call close_round()");
}

void CombinedBuffer::plan_sum(ReadMode) {
  terms_.clear(), desks_.reset();
  if (outcome_ == Outcome::kKept) return waiting_.reserve(waiting_.size() + 1);
  if (outcome_ == Outcome::kIdle) return;
  for (const HeldUpdate& held : waiting_) terms_.push_back({&held.update, held.by});
  for (const Contribution& contribution : contributions_) terms_.push_back({contribution.update, factor(contribution)});
  desks_ = std::make_unique<Desks>(terms_.size(), memory_->is_host());
  shares = setting_.combine->weigh(terms_, setting_.size, *is.place->runner, desks_->weights());
}

void CombinedBuffer::run(Runner& runner, const Optimizer& optimizer) {
  if (terms_.empty()) return;
  Direction direction;
  direction.kind = kFlush;
  direction.buffer.held = &terms_;
  direction.buffer.combine = setting_.combine.get();
  direction.buffer.desks = desks_.get();
  if (is.place->device)
    for (const HeldUpdate& held : waiting_) is.place->device->hold(held.owner);
  runner.step(*terms_.back().update, direction, optimizer);
}

void CombinedBuffer::commit() noexcept {
  if (outcome_ == Outcome::kKept) {
    waiting_.push_back(taken(contributions_.front(), factor(contributions_.front())));
  } else {
    waiting_.clear();
  }
  BufferedDirection::commit();
}

bool CombinedBuffer::sum_fields(Archive& archive) {
  held_fields(archive, waiting_, *memory_);
  const bool summed = archive.vector("acc", {}, setting_.size, false);  // only the state of a SummedBuffer has a sum
  if (!archive.loads) return true;
  if (summed || waiting_.size() != round.versions.size()) return false;
  for (HeldUpdate& held : waiting_) {
    round.bound = std::max(round.bound, bound_of(held, setting_.size));
    if (!memory_->is_host()) held = moved(held, *memory_, true);
  }
  return true;
}

}  // namespace fastagg::engine
