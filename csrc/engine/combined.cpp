#include "../math/combine.h"
#include "buffers.h"

namespace fastagg::engine {

void Combined::check_sum(int64_t count) const {
  if (!given_.empty() && given_.back().total >= 0.0)
    throw Refusal(Why::kSetting, "receive_partial: a sum of updates, and this rule needs every single one");
  if (count > kMostCombined)
    throw Refusal(Why::kSetting, "the round has as many updates as can be combined; call close_round()");
}

void Combined::plan_sum(ReadMode) {
  terms_.clear(), desks_.reset();
  if (outcome_ == Outcome::kKept) return waiting_.reserve(waiting_.size() + 1);
  if (outcome_ == Outcome::kIdle) return;
  for (const HeldUpdate& one : waiting_) terms_.push_back({&one.update, one.by});
  for (const Contribution& one : given_) terms_.push_back({one.update, factor(one)});
  desks_ = std::make_unique<Desks>(terms_.size(), memory_->is_host());
  shares = setting_.combine->weigh(terms_, setting_.size, *is.place->runner, desks_->weights());
}

void Combined::run(Runner& runner, const Optimizer& optimizer) {
  if (terms_.empty()) return;
  Direction direction;
  direction.kind = kFlush;
  direction.buffer.held = &terms_;
  direction.buffer.combine = setting_.combine.get();
  direction.buffer.desks = desks_.get();
  if (is.place->device)
    for (const HeldUpdate& one : waiting_) is.place->device->hold(one.owner);
  runner.step(*terms_.back().update, direction, optimizer);
}

void Combined::commit() noexcept {
  if (outcome_ == Outcome::kKept) {
    waiting_.push_back(taken(given_.front(), factor(given_.front())));
  } else {
    waiting_.clear();
  }
  Buffered::commit();
}

bool Combined::sum_fields(Archive& archive) {
  held_fields(archive, waiting_, *memory_);
  const bool summed = archive.vector("acc", {}, setting_.size, false);  // as other buffers have one
  if (!archive.loads) return true;
  if (summed || waiting_.size() != round.versions.size()) return false;
  for (HeldUpdate& one : waiting_) {
    round.bound = std::max(round.bound, bound_of(one, setting_.size));
    if (!memory_->is_host()) one = moved(one, *memory_, true);
  }
  return true;
}

}  // namespace fastagg::engine
