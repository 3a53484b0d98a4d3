#include "all_clients.h"

#include <algorithm>
#include <cstring>

#include "../store/encoded.h"
#include "on_cpu.h"

namespace fastagg::engine {
namespace {

Outcome outcome_of(const RowWeights& weights, bool full) {
  if (full && weights.next.heard < weights.clients()) return Outcome::kKept;
  return weights.next.total == 0.0 ? Outcome::kIdle : Outcome::kStep;
}

}  // namespace

AllClients::AllClients(double sign, const Setting& setting, const Rows& rows, std::shared_ptr<Resummation> resummation)
    : DirectionState(sign),
      setting_(setting),
      rows_(rows),
      resummation_(std::move(resummation)),
      weights_(setting.clients) {
  is.rows = this;
  if (setting.max_delay >= 0) ages_.emplace(weights_, setting.max_delay, setting.by_dispatch, setting.full);
  if (ages_ && setting.by_dispatch) is.ages = &*ages_;
  format = rows.format;
  mean_.pieces.reserve(1);
}

Outcome AllClients::plan(const Contributions& contributions, bool, ReadMode) {
  contributions_ = contributions.front();
  const bool enters = !ages_ || ages_->plan(contributions_);
  weights_.plan(contributions_.client, contributions_.share, enters);
  plan_bounds();
  versions_.assign(1, contributions_.start);
  if (resummation_) resummation_->begin(weights_.arrivals);
  return outcome_ = outcome_of(weights_, setting_.full);
}

void AllClients::plan_bounds() {
  const double rows = std::max(weights_.row_bound, std::abs(contributions_.weight) * contributions_.norm);
  kept_bound_ = rows * weights_.next.total;
  bound_ = weights_.bound(rows, kept_bound_, setting_.direct);
  const bool fell = resummation_ && weights_.fell();
  if (fell) weights_.next.peak = kept_bound_;
  direct_ = setting_.direct || fell;
}

// Returns what the kernel needs to replace the client's previous row by the update's row.
Direction AllClients::exchange() const {
  const RowWeights::PlannedWeights& next = weights_.next;
  Direction direction;
  direction.kind = kMean;
  direction.gain = contributions_.gain * contributions_.weight;
  direction.sum = {setting_.sum, next.entering, next.leaving, 1.0f, {}};
  direction.row.format = format;
  direction.row.key = key(next.client);
  direction.row.coded =
      rows_.packed_at(const_cast<void*>(row_in(contributions_, format)));  // the kernel only reads this row
  if (next.leaving != 0.0f) direction.row.read = rows_.row(next.client);
  direction.row.write = rows_.row(next.client);
  return direction;
}

void AllClients::run(Runner& runner, const Optimizer& optimizer) {
  const RowWeights::PlannedWeights& next = weights_.next;
  const int64_t size = contributions_.update->size;
  const bool steps = outcome_ == Outcome::kStep;
  Direction direction = exchange();
  for (const auto& [other, weight] : next.terms) direction.sum.terms.push_back({rows_.row(other), weight});
  if (resummation_) resummation_->leaves(runner, next.client, next.leaving);
  if (!steps || direct_) {
    runner.step(*contributions_.update, direction, Optimizer{});
  } else {
    direction.sum.scale = static_cast<float>(is.sign / next.total);
    runner.step(*contributions_.update, direction, optimizer);
  }
  if (next.total == 0.0) runner.zero(setting_.sum, size * static_cast<int64_t>(sizeof(float)));
  weights_.put();
  const float* const weights = weights_.weights.data();
  if (direct_ && next.total != 0.0) runner.recompute_sum(rows_, weights, setting_.sum);
  if (resummation_) {
    resummation_->enters(runner, next.client, next.entering);
    for (const auto& [other, weight] : next.terms) resummation_->enters(runner, other, weight);
    resummation_->advance(runner, weights, setting_.sum);
  }
  if (!direct_ || !steps) return;
  mean_.pieces.clear();  // the capacity stays, so `add` allocates nothing
  mean_.size = 0;
  mean_.add(setting_.sum, size, kFloat32);
  Direction along;
  along.gain = is.sign / next.total;
  runner.step(mean_, along, optimizer);
}

void AllClients::commit() noexcept {
  weights_.commit(direct_);
  if (ages_) ages_->commit(contributions_);
  if (resummation_) resummation_->put();
}

void AllClients::cancel() noexcept {
  weights_.take_back();
  if (resummation_) resummation_->cancel();
}

void AllClients::fields(Archive& archive) {
  weights_.fields(archive);
  if (ages_) ages_->fields(archive);
  weights_.fields_of_totals(archive, resummation_ != nullptr);
}

// -- Differences: clients store their own rows

Differences::Differences(double sign, int64_t clients, bool full, float* sum)
    : DirectionState(sign), full_(full), sum_(sum), weights_(clients) {
  is.rows = this;
}

Outcome Differences::plan(const Contributions& contributions, bool, ReadMode) {
  const Contribution& contribution = contributions.front();
  update_ = contribution.update;
  weights_.plan(contribution.client, 1.0, true);
  kept_bound_ = weights_.row_bound + contribution.norm;  // a bound on the sum with this update
  bound_ = weights_.bound(kept_bound_, kept_bound_, false);
  versions_.assign(1, contribution.start);
  outcome_ = outcome_of(weights_, full_);
  direction_ = {};
  direction_.kind = kMean;
  direction_.gain = contribution.gain * contribution.weight;
  const double scale = outcome_ == Outcome::kStep ? is.sign / weights_.next.total : 1.0;
  direction_.sum = {sum_, 1.0f, 0.0f, static_cast<float>(scale), {}};
  direction_.row.key = {0, static_cast<uint64_t>(weights_.arrivals), 0};
  return outcome_;
}

void Differences::run(Runner& runner, const Optimizer& optimizer) {
  runner.step(*update_, direction_, outcome_ == Outcome::kStep ? optimizer : Optimizer{});
  weights_.put();
}

}  // namespace fastagg::engine
