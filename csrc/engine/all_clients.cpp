#include "all_clients.h"

#include <algorithm>
#include <stdexcept>

#include "../store/encoded.h"
#include "on_cpu.h"

namespace fastagg::engine {
namespace {

Outcome outcome_of(const RowWeights& weights, bool full) {
  if (full && weights.next.heard < weights.clients()) return Outcome::kKept;
  return weights.next.total == 0.0 ? Outcome::kIdle : Outcome::kStep;
}

}  // namespace

AllClients::AllClients(double sign, const Setting& setting, std::shared_ptr<store::RowStore> rows)
    : DirectionState(sign), setting_(setting), rows_(std::move(rows)), weights_(setting.clients) {
  is.rows = this;
  if (setting.max_delay >= 0) ages_.emplace(weights_, setting.max_delay, setting.by_dispatch, setting.full);
  if (ages_ && setting.by_dispatch) is.ages = &*ages_;
  format = rows_->shape().format;
  // An fp32 row is as long as the update.
  if (format != kPlainRows) coded.format = format, coded.size = rows_->shape().size;
  mean_.pieces.reserve(1);
}

double AllClients::encode(const Update& update, const Contribution& one, void* place) {
  Contribution brings = one;
  brings.update = &update;
  if (const void* const row = row_in(brings, format)) {  // it came as the row
    std::memcpy(place, row, static_cast<size_t>(coded.packed_bytes()));
    return store::encoded_in(update)->squares();
  }
  return cpu::encode(update, one.gain * one.weight, format, key(one.client), coded.packed_at(place));
}

Outcome AllClients::plan(const Contributions& given, bool, ReadMode) {
  given_ = given.front();
  if (given_.row == nullptr && coded.size > 0) given_.row = row_in(given_, format);
  const bool enters = !ages_ || ages_->plan(given_);
  weights_.plan(given_.client, given_.share, enters);
  plan_bounds();
  versions_.assign(1, given_.start);
  plan_rows();
  return outcome_ = outcome_of(weights_, setting_.full);
}

void AllClients::plan_bounds() {
  const double rows = std::max(weights_.row_bound, std::abs(given_.weight) * given_.norm);
  kept_bound_ = in_memory() ? rows * weights_.next.total : rows;
  bound_ = weights_.bound(rows, kept_bound_, setting_.direct);
  const bool fell = setting_.resums && weights_.fell();
  if (fell) weights_.next.peak = kept_bound_;
  direct_ = setting_.direct || fell;
}

// What the arrival reads is in memory then. Terms that are on a disk are added up ahead of the step, to a sum beside
// the old one, because reading them may fail. Its bits are those that `run` makes.
void AllClients::plan_rows() {
  const auto& next = weights_.next;
  aside_.reset();
  try {
    rows_->plan({weights_.arrivals, next.client, next.leaving != 0.0f, next.entering, &next.terms, &weights_.weights});
    if (!rows_->is_aside()) return;
    OnCpu runner;
    const int64_t size = given_.update->size;
    aside_ = store::new_memory(size * static_cast<int64_t>(sizeof(float)));
    auto* const sum = static_cast<float*>(aside_.get());
    std::copy(setting_.sum, setting_.sum + size, sum);
    Direction direction = exchange();
    direction.sum.values = sum;
    if (next.leaving != 0.0f) rows_->leaves(runner, next.client, next.leaving);
    runner.step(*given_.update, direction, Optimizer{});
    rows_->enters(runner, next.client, next.entering);
    rows_->add_terms(runner, sum);
  } catch (const store::RowDamaged& damaged) {
    RowsLost lost{rows_->find_lost(weights_.weights)};
    if (std::find(lost.slots.begin(), lost.slots.end(), damaged.client) == lost.slots.end())
      lost.slots.push_back(damaged.client);
    throw lost;
  }
}

// How the update's row replaces its client's last one.
Direction AllClients::exchange() const {
  const RowWeights::Next& next = weights_.next;
  Direction direction;
  direction.kind = kMean;
  direction.gain = given_.gain * given_.weight;
  direction.sum = {setting_.sum, next.entering, next.leaving, 1.0f, {}};
  direction.row.format = format;
  direction.row.key = key(next.client);
  direction.row.coded = coded.packed_at(const_cast<void*>(given_.row));  // it is only read
  if (next.leaving != 0.0f) direction.row.read = rows_->read(next.client);
  direction.row.write = rows_->place(next.client);
  return direction;
}

void AllClients::run(Runner& runner, const Optimizer& optimizer) {
  const Update& update = *given_.update;
  const RowWeights::Next& next = weights_.next;
  Direction direction = exchange();
  const bool steps = outcome_ == Outcome::kStep, here = !aside_;
  for (const auto& [other, weight] : next.terms)
    if (here) direction.sum.terms.push_back({rows_->read(other), weight});
  if (next.leaving != 0.0f && here) rows_->leaves(runner, next.client, next.leaving);
  if (!here) {
    const auto* const sum = static_cast<const float*>(aside_.get());
    std::copy(sum, sum + update.size, setting_.sum);
  } else if (!steps || direct_) {
    runner.step(update, direction, Optimizer{});
  } else {
    direction.sum.scale = static_cast<float>(is.sign / next.total);
    runner.step(update, direction, optimizer);
  }
  const auto step_along_sum = [&] {
    mean_.pieces.clear();  // which keeps its memory
    mean_.size = 0;
    mean_.add(setting_.sum, update.size, kFloat32);
    Direction along;
    along.gain = is.sign / next.total;
    runner.step(mean_, along, optimizer);
  };
  if (!here && steps) step_along_sum();
  if (next.total == 0.0) runner.zero(setting_.sum, update.size * static_cast<int64_t>(sizeof(float)));
  weights_.put();
  if (direct_ && next.total != 0.0) runner.recompute_sum(rows_->shape(), weights_.weights.data(), setting_.sum);
  if (here) rows_->enters(runner, next.client, next.entering);
  for (const auto& [other, weight] : next.terms)
    if (here) rows_->enters(runner, other, weight);
  rows_->advance(runner, weights_.weights.data(), setting_.sum);
  if (direct_ && steps) step_along_sum();
}

void AllClients::commit() noexcept {
  weights_.commit(direct_);
  if (ages_) ages_->commit(given_);
  aside_.reset();
  rows_->put();
}

void AllClients::cancel() noexcept {
  weights_.take_back();
  rows_->cancel();
}

// The sum is made anew without these rows, and their clients are as if they were never heard.
void AllClients::give_up(const std::vector<int64_t>& lost) {
  if (in_memory()) return RowKeeper::give_up(lost);
  std::vector<int64_t> held;
  for (const int64_t one : lost) {
    if (one < 0 || one >= setting_.clients) throw Refusal(Why::kDamaged, "a lost row of a client that is not there");
    if (weights_.shares[static_cast<size_t>(one)] > 0.0f) held.push_back(one);
  }
  if (held.empty()) return;  // a checkpoint's damaged rows were given up when it was loaded
  OnCpu runner;
  rows_->give_up(runner, weights_.weights, held, setting_.sum);
  for (const int64_t one : held) weights_.drop(one);
}

void AllClients::fields(Archive& archive) {
  weights_.fields(archive);
  if (ages_) ages_->fields(archive);
  weights_.fields_of_totals(archive, setting_.resums);
}

// -- clients that keep their rows

Differences::Differences(double sign, int64_t clients, bool full, float* sum)
    : DirectionState(sign), full_(full), sum_(sum), weights_(clients) {
  is.rows = this;
}

Outcome Differences::plan(const Contributions& given, bool, ReadMode) {
  const Contribution& one = given.front();
  update_ = one.update;
  weights_.plan(one.client, 1.0, true);
  kept_bound_ = weights_.row_bound + one.norm;  // differences add up
  bound_ = weights_.bound(kept_bound_, kept_bound_, false);
  versions_.assign(1, one.start);
  outcome_ = outcome_of(weights_, full_);
  direction_ = {};
  direction_.kind = kMean;
  direction_.gain = one.gain * one.weight;
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
