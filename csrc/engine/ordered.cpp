#include "ordered.h"

#include <algorithm>

namespace fastagg::engine {

OrderedDirection::OrderedDirection(std::shared_ptr<DirectionState> round)
    : DirectionState(round->is.sign), round_(std::move(round)) {
  is.keeps = true;
  is.sums = this;
  is.privacy = round_->is.privacy;
}

Outcome OrderedDirection::plan(const Contributions& contributions, bool closes, ReadMode) {
  all_.clear();
  for (WaitingAnswer& waiting : waiting_) {
    all_.push_back(waiting.brings);
    all_.back().answer = &waiting.answer;
    all_.back().update = &waiting.answer.update;
  }
  last_ = contributions.empty() ? nullptr : &contributions.front();
  if (last_ != nullptr) all_.push_back(*last_);
  std::stable_sort(all_.begin(), all_.end(), [](const Contribution& contribution, const Contribution& other) {
    return contribution.answer->client < other.answer->client;
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

void OrderedDirection::run(Runner& runner, const Optimizer& optimizer) {
  if (outcome_ == Outcome::kKept) return;
  if (is.place->device)
    for (const WaitingAnswer& waiting : waiting_) is.place->device->hold(waiting.answer.owner);
  round_->run(runner, optimizer);
}

void OrderedDirection::commit() noexcept {
  if (outcome_ != Outcome::kKept) {
    round_->commit();
    waiting_.clear();
    return;
  }
  if (last_ == nullptr) return;
  Answer& from = *last_->answer;
  WaitingAnswer& waiting = waiting_.emplace_back();
  waiting.brings = *last_;
  waiting.answer.client = std::move(from.client);
  waiting.answer.update = std::move(from.update);
  waiting.answer.owner = std::move(from.copy ? from.copy : from.owner);
  waiting.answer.reported = std::move(from.reported);
  waiting.answer.extra = std::move(from.extra);
}

}  // namespace fastagg::engine
