// SummedBuffer (buffers.h): the buffer that adds up a round's updates.
#include <algorithm>
#include <cmath>

#include "../store/encoded.h"
#include "answer.h"
#include "buffers.h"

namespace fastagg::engine {
namespace {

// At most kMostWaiting updates wait, because each of them makes the step longer. Together they have at
// most kMostBytes bytes per parameter. The sum has 4 bytes per parameter.
constexpr size_t kMostWaiting = 32;
constexpr int64_t kMostBytes = 16;

}  // namespace

// Sets the traits that depend on whether updates wait.
void SummedBuffer::tell_traits() noexcept {
  is.reads_once = waiting_.empty();
  folds = is.reads_once && setting_.capacity != 1;
}

// Whether an update may be stored as it came, and be added to the sum later.
bool SummedBuffer::may_wait(const Contribution& contribution) const {
  if (contribution.total >= 0.0 || !store::is_encoded(*contribution.update) || waiting_.size() >= kMostWaiting)
    return false;
  return nbytes_of(waiting_) + store::encoded_in(*contribution.update)->nbytes <= kMostBytes * setting_.size;
}

// Plans whether the update is stored as it came, and to which memory the sum is written. If the update is not stored
// and makes no step, one pass adds all waiting updates and this update to the sum. A step's kernel reads these updates.
void SummedBuffer::plan_sum(ReadMode mode) {
  const bool moves = outcome_ == Outcome::kStep, models = mode >= ReadMode::kUpdates;
  waits_ = outcome_ == Outcome::kKept && contributions_.size() == 1 && may_wait(contributions_.front());
  terms_.clear(), models_.clear();
  if (waits_) return waiting_.reserve(waiting_.size() + 1);
  if (!waiting_.empty() && outcome_ != Outcome::kIdle) {
    for (const HeldUpdate& held : waiting_) terms_.push_back({&held.update, held.by});
    for (const Contribution& contribution : contributions_)
      terms_.push_back({contribution.update, factor(contribution)});
  }
  const bool one_alone = moves && fresh() && contributions_.size() == 1 && !models;
  if (!one_alone && !sum.acc) sum.acc = memory_->vector(setting_.size);
  // Adding in place needs no memory for a second sum, but reads each model twice.
  in_place_ = mode == ReadMode::kStillModels && !round.versions.empty() && !moves;
  // If a later stage can fail, the old sum must stay as it is.
  const bool may_fail = models  ? !in_place_ && !round.versions.empty()
                        : moves ? contributions_.empty() && !terms_.empty()
                                : mode == ReadMode::kReadOnce && !round.versions.empty();
  if (may_fail) sum.beside = memory_->vector(setting_.size);
  if (moves && (models || contributions_.empty())) sum.along.add(sum.into().data, setting_.size, kFloat32);
  if (!models) return;
  for (const Contribution& contribution : contributions_)
    models_.push_back({*contribution.update, contribution.base, factor(contribution), contribution.answer->base.dtype});
  largest_ = std::vector<std::atomic<int32_t>>(models_.size());
}

void SummedBuffer::run(Runner& runner, const Optimizer& optimizer) {
  const bool steps = outcome_ == Outcome::kStep;
  if (waits_ || (outcome_ == Outcome::kIdle && !waiting_.empty())) return;
  bool none = round.versions.empty();  // whether the sum is still empty
  if (in_place_) cpu::fold(models_, sum.acc.data, sum.acc.data, largest_);
  if (!terms_.empty() && (!steps || contributions_.empty())) {
    cpu::add_held(terms_, fresh() ? nullptr : sum.acc.data, sum.into().data);
  } else if (!terms_.empty()) {
    terms_.pop_back();  // the step's kernel reads the last update separately
    return run_last(runner, *contributions_.back().update, false, optimizer);
  } else if (models_.empty() && !contributions_.empty()) {
    for (size_t i = 0; i + (steps ? 1 : 0) < contributions_.size(); ++i, none = false)
      runner.accumulate(*contributions_[i].update, none ? nullptr : sum.acc.data,
                        contributions_[i].gain * is.sign * weight_of(contributions_[i]), sum.into().data);
    if (steps) return run_last(runner, *contributions_.back().update, none, optimizer);
  }
  if (steps) step_along(runner, 1.0, optimizer);
}

// Makes a step along the sum of all earlier updates and one more update. `none`: whether there is no earlier update.
void SummedBuffer::run_last(Runner& runner, const Update& update, bool none, const Optimizer& optimizer) {
  const Contribution& last = contributions_.back();
  Direction direction;
  direction.gain = last.gain * is.sign;
  direction.weight = weight_of(last);
  if (privacy_) direction.noise = privacy_->noise(round.divisor);
  if (none) {
    direction.weight /= round.divisor;
  } else {
    direction.kind = kFlush;
    direction.buffer.acc = fresh() && !terms_.empty() ? nullptr : sum.acc.data;
    direction.buffer.scale = static_cast<float>(1.0 / round.divisor);
    if (!terms_.empty()) direction.buffer.held = &terms_;
  }
  runner.step(update, direction, optimizer);
}

// An invalid model or update has no effect, because the old sum is not changed. If models are to be added in place,
// this pass only checks them.
size_t SummedBuffer::fold(std::vector<double>* squares) {
  const float* const acc = round.versions.empty() ? nullptr : sum.acc.data;
  if (squares != nullptr) {
    cpu::fold_once(models_, acc, sum.into().data, *squares);
    const auto is_finite = [](double number) { return std::isfinite(number); };
    return static_cast<size_t>(std::find_if_not(squares->begin(), squares->end(), is_finite) - squares->begin());
  }
  cpu::fold(models_, acc, in_place_ ? nullptr : sum.into().data, largest_);
  const auto fit = [](const std::atomic<int32_t>& bits) { return bits <= kLargestElementBits; };
  return static_cast<size_t>(std::find_if_not(largest_.begin(), largest_.end(), fit) - largest_.begin());
}

void SummedBuffer::commit() noexcept {
  if (waits_) {
    waiting_.push_back(taken(contributions_.front(), factor(contributions_.front())));
  } else {
    waiting_.clear();
  }
  tell_traits();
  BufferedDirection::commit();
}

bool SummedBuffer::sum_fields(Archive& archive) {
  held_fields(archive, waiting_, *memory_);
  if (archive.loads) {
    if (waiting_.size() > round.versions.size()) return false;
    for (const HeldUpdate& held : waiting_) round.bound += bound_of(held, setting_.size);
    tell_traits();
    if (!fresh() && !sum.acc) sum.acc = memory_->vector(setting_.size);
  }
  // There is no sum between rounds, or while all updates wait.
  const bool there = archive.vector("acc", sum.acc, setting_.size, !fresh());
  if (fresh() == there) return false;
  if (archive.loads && !memory_->is_host() && !waiting_.empty()) add_loaded();
  return true;
}

// On a device encoded updates never wait. So updates from a checkpoint are added to the sum on the host, and the sum is
// copied to the device.
void SummedBuffer::add_loaded() {
  const int64_t nbytes = setting_.size * static_cast<int64_t>(sizeof(float));
  const store::Vector here = store::new_vector(setting_.size);
  if (!fresh()) memory_->get(here.data, sum.acc.data, nbytes);
  terms_.clear();
  for (const HeldUpdate& held : waiting_) terms_.push_back({&held.update, held.by});
  cpu::add_held(terms_, fresh() ? nullptr : here.data, here.data);
  if (!sum.acc) sum.acc = memory_->vector(setting_.size);
  memory_->put(sum.acc.data, here.data, nbytes);
  terms_.clear(), waiting_.clear();
  tell_traits();
}

}  // namespace fastagg::engine
