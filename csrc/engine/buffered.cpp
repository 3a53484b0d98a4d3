#include "buffered.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "../cpu/cpu.h"
#include "../refusal.h"

namespace fastagg::engine {
namespace {

double weight_of(const Contribution& one) { return one.weight * one.share; }

}  // namespace

void Buffered::check(const ClientId& client, int64_t start, int64_t now) const {
  if (setting_.synchronous && start != now)
    throw Refusal(Why::kUnknownVersion, "client " + shown(client) + ": its update is from round " +
                                            std::to_string(start) + ", this is round " + std::to_string(now));
}

int64_t Buffered::room() const {
  return setting_.capacity < 0 ? INT64_MAX : setting_.capacity - static_cast<int64_t>(held_.size());
}

double Buffered::grace(int64_t waiting) const {
  const bool enough = setting_.at_least > 0 && static_cast<int64_t>(held_.size()) + waiting >= setting_.at_least;
  return enough ? setting_.grace : HUGE_VAL;
}

// Adds all updates to the sum. If they make a step, the last one is not added: the step's kernel reads it directly.
Outcome Buffered::plan(const Given& given, bool closes) {
  int64_t count = 0;
  for (const Contribution& one : given) count += one.count;
  const bool steps = closes || count >= room();
  if (given.empty() && (!steps || held_.empty())) return outcome_ = Outcome::kKept;
  plan_numbers(given, steps);
  beside_ = {};
  const auto more = static_cast<size_t>(count);
  if (held_.capacity() < held_.size() + more) held_.reserve(2 * (held_.size() + more));
  const bool one_alone = steps && held_.empty() && given_.size() == 1;
  if (!one_alone && !acc_) acc_ = memory_->vector(setting_.size);
  return outcome_;
}

void Buffered::plan_numbers(const Given& given, bool steps) {
  given_ = given;
  outcome_ = steps ? Outcome::kStep : Outcome::kKept;
  versions_.clear();
  if (steps) versions_ = held_;
  total_next_ = total_;
  acc_bound_next_ = held_.empty() ? 0.0 : acc_bound_;
  for (const Contribution& one : given_) {
    if (steps) versions_.insert(versions_.end(), static_cast<size_t>(one.count), one.start);
    total_next_ += one.counts_for();
    acc_bound_next_ += std::abs(weight_of(one)) * one.norm;
  }
  // A waiting update must be fit for a step now. Otherwise it would block every later step.
  bound_ = acc_bound_next_ / total_next_;
  kept_bound_ = acc_bound_next_;
}

void Buffered::run(Runner& runner, const Updates& updates, const Optimizer& optimizer) {
  bool fresh = held_.empty();
  const bool steps = outcome_ == Outcome::kStep;
  const size_t into_sum = updates.size() - (steps && !updates.empty() ? 1 : 0);
  for (size_t i = 0; i < into_sum; ++i, fresh = false)
    runner.accumulate(*updates[i], fresh ? nullptr : acc_.data, given_[i].gain * sign_ * weight_of(given_[i]),
                      folded().data);
  if (!steps) return;
  Direction direction;
  if (updates.empty()) {  // the step is along the sum itself
    direction.weight = 1.0 / total_next_;
    sum_ = {};
    sum_.origin = setting_.origin;
    sum_.add(folded().data, setting_.size, kFloat32);
    return runner.step(sum_, direction, optimizer);
  }
  const Contribution& last = given_.back();
  direction.gain = last.gain * sign_;
  direction.weight = weight_of(last);
  if (fresh) {  // the sum is still empty
    direction.weight /= total_next_;
  } else {
    direction.kind = kFlush;
    direction.buffer.acc = acc_.data;
    direction.buffer.scale = static_cast<float>(1.0 / total_next_);
  }
  runner.step(*updates.back(), direction, optimizer);
}

void Buffered::plan_aside() {
  if (outcome_ != Outcome::kStep && !held_.empty()) beside_ = memory_->vector(setting_.size);
}

void Buffered::commit() noexcept {
  if (beside_) acc_ = std::move(beside_);
  beside_ = {};
  if (outcome_ == Outcome::kStep) {
    held_.clear();
    total_ = acc_bound_ = 0.0;
    return;
  }
  for (const Contribution& one : given_) held_.insert(held_.end(), static_cast<size_t>(one.count), one.start);
  total_ = total_next_;
  acc_bound_ = acc_bound_next_;
}

void Buffered::plan_fold() {
  if (!acc_) acc_ = memory_->vector(setting_.size);
  // The old sum is only read, so a model that turns out to be unfit leaves it as it was.
  if (!held_.empty()) beside_ = memory_->vector(setting_.size);
}

std::vector<bool> Buffered::run_fold(const std::vector<Trained>& trained) {
  std::vector<cpu::Trained> models;
  for (size_t i = 0; i < trained.size(); ++i)
    models.push_back(
        {*trained[i].update, trained[i].base, static_cast<float>(given_[i].gain * sign_ * weight_of(given_[i]))});
  std::vector<std::atomic<int32_t>> largest(models.size());
  cpu::fold(models, held_.empty() ? nullptr : acc_.data, folded().data, largest);
  std::vector<bool> fit;
  for (const auto& bits : largest) fit.push_back(bits <= kLargestElementBits);
  return fit;
}

void Buffered::commit_fold(bool gives_up_sum) noexcept {
  commit();
  if (gives_up_sum) acc_ = {};
}

void Buffered::fields(Archive& archive) {
  archive.list("versions", held_);
  archive.field("total", total_);
  if (archive.loads() && !held_.empty() && !acc_) acc_ = memory_->vector(setting_.size);
  const bool there = archive.vector("acc", acc_, setting_.size, !held_.empty());  // between rounds the sum is empty
  if (!archive.loads()) return;
  if (held_.empty() == there) throw std::invalid_argument("a buffer without its sum");
  if (setting_.capacity >= 0 && static_cast<int64_t>(held_.size()) >= setting_.capacity)
    throw std::invalid_argument("a buffer that is full");
  if (!held_.empty() && !(total_ > 0.0)) throw std::invalid_argument("a buffer's weight");
}

}  // namespace fastagg::engine
