#include "ordered.h"

#include <algorithm>

namespace fastagg::engine {

Ordered::Ordered(std::shared_ptr<DirectionState> round) : DirectionState(round->is.sign), round_(std::move(round)) {
  is.keeps = true;
  is.sums = this;
  is.privacy = round_->is.privacy;
}

Outcome Ordered::plan(const Contributions& given, bool closes, ReadMode) {
  all_.clear();
  for (Waiting& one : waiting_) {
    all_.push_back(one.brings);
    all_.back().answer = &one.answer;
    all_.back().update = &one.answer.update;
  }
  last_ = given.empty() ? nullptr : &given.front();
  if (last_ != nullptr) all_.push_back(*last_);
  std::stable_sort(all_.begin(), all_.end(), [](const Contribution& one, const Contribution& other) {
    return one.answer->client < other.answer->client;
  });
  round_->is.place = is.place;
  outcome_ = round_->plan(all_, closes, ReadMode::kMeasured);
  versions_ = round_->versions();
  shares = round_->is.sums->shares;
  bound_ = round_->bound(), kept_bound_ = round_->kept_bound();
  if (outcome_ == Outcome::kKept) {
    all_.clear();
    waiting_.reserve(waiting_.size() + 1);
  }
  counted_ = &all_;
  return outcome_;
}

void Ordered::run(Runner& runner, const Optimizer& optimizer) {
  if (outcome_ == Outcome::kKept) return;
  if (is.place->device)
    for (const Waiting& one : waiting_) is.place->device->hold(one.answer.owner);
  round_->run(runner, optimizer);
}

void Ordered::commit() noexcept {
  if (outcome_ != Outcome::kKept) {
    round_->commit();
    waiting_.clear();
    return;
  }
  if (last_ == nullptr) return;
  Answer& from = *last_->answer;
  Waiting& one = waiting_.emplace_back();
  one.brings = *last_;
  one.answer.client = std::move(from.client);
  one.answer.update = std::move(from.update);
  one.answer.owner = std::move(from.copy ? from.copy : from.owner);
  one.answer.reported = std::move(from.reported);
  one.answer.extra = std::move(from.extra);
}

}  // namespace fastagg::engine
