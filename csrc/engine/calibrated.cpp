#include "calibrated.h"

#include <algorithm>
#include <stdexcept>

namespace fastagg::engine {

CalibratedDirection::CalibratedDirection(double sign, const Setting& setting, const Rows& rows, uint64_t seed,
                                         float* sum, float* acc, std::shared_ptr<Resummation> resummation)
    : DirectionState(sign),
      setting_(setting),
      rows_(rows),
      seed_(seed),
      sum_(sum),
      acc_(acc),
      resummation_(std::move(resummation)),
      slots_(static_cast<size_t>(setting.clients), -1),
      weights_(static_cast<size_t>(rows.slots)) {
  is.rows = this;
  format = rows.format;
  for (int64_t slot = rows.slots; slot-- > 0;) free_.push_back(static_cast<int32_t>(slot));
  const auto capacity = static_cast<size_t>(std::min(setting.capacity, setting.clients));
  fresh_.reserve(capacity);
  next_.terms.reserve(2 * capacity);
  held_.reserve(static_cast<size_t>(setting.capacity));
}

CalibratedDirection::FreshUpdate* CalibratedDirection::fresh_of(int64_t client) {
  for (FreshUpdate& fresh : fresh_)
    if (fresh.client == client) return &fresh;
  return nullptr;
}

int64_t CalibratedDirection::writes(int64_t client) const {
  for (const FreshUpdate& fresh : fresh_)
    if (fresh.client == client) return fresh.slot;
  return free_.empty() ? -1 : free_.back();
}

Outcome CalibratedDirection::plan(const Contributions& contributions, bool, ReadMode) {
  const Contribution& contribution = next_.contribution = contributions.front();
  FreshUpdate* mine = fresh_of(contribution.client);
  next_.known = mine != nullptr;
  next_.read = slots_[static_cast<size_t>(contribution.client)];
  if (!setting_.from_start && next_.known) next_.read = mine->slot;
  next_.write = next_.known ? mine->slot : free_.back();
  versions_ = held_;
  versions_.push_back(contribution.start);
  next_.outcome = static_cast<int64_t>(versions_.size()) == setting_.capacity ? Outcome::kStep : Outcome::kKept;
  next_.terms.clear();
  double distinct = 0.0;  // the sum of the shares of the rows in `fresh_`, with this update's row
  for (const FreshUpdate& fresh : fresh_)
    distinct += fresh.client == contribution.client ? contribution.share : fresh.share;
  if (!next_.known) distinct += contribution.share;
  next_.divisor = setting_.from_start ? distinct : total_ + contribution.share;
  if (next_.outcome == Outcome::kStep) {
    for (const FreshUpdate& fresh : fresh_) next_.terms.emplace_back(fresh.slot, 1.0f);
    if (!next_.known) next_.terms.emplace_back(next_.write, 1.0f);
    for (size_t i = 0, count = next_.terms.size(); i < count; ++i) {
      const int64_t client = i < fresh_.size() ? fresh_[i].client : contribution.client;
      if (const int32_t slot = slots_[static_cast<size_t>(client)]; slot >= 0) next_.terms.emplace_back(slot, -1.0f);
    }
  }
  next_.row_bound = std::max(row_bound_, std::abs(contribution.weight) * contribution.norm);
  const double bound = 2.0 * next_.row_bound * (total_ + contribution.share);  // a bound on the buffer's sum
  bound_ = next_.row_bound + bound / next_.divisor;
  kept_bound_ = std::max(bound, next_.row_bound * static_cast<double>(setting_.clients));
  resummation_->begin(arrivals_);
  return next_.outcome;
}

void CalibratedDirection::run(Runner& runner, const Optimizer& optimizer) {
  const Update& update = *next_.contribution.update;
  const RandomKey key{seed_, static_cast<uint64_t>(arrivals_), static_cast<uint32_t>(next_.contribution.client)};
  Direction direction;
  direction.kind = kCalibrated;
  direction.gain = next_.contribution.gain * next_.contribution.weight;
  direction.weight = next_.contribution.share * is.sign;
  direction.row = {rows_.format, rows_.row(next_.read), rows_.row(next_.write), key};
  direction.row.coded =
      rows_.packed_at(const_cast<void*>(row_in(next_.contribution, rows_.format)));  // the kernel only reads this row
  direction.buffer.acc = held_.empty() ? nullptr : acc_;
  direction.buffer.out = acc_;
  if (next_.outcome == Outcome::kKept) {
    runner.step(update, direction, Optimizer{});
  } else {
    direction.buffer.scale = static_cast<float>(1.0 / next_.divisor);
    direction.sum = {sum_, 1.0f, 1.0f, static_cast<float>(is.sign / static_cast<double>(setting_.clients)), {}};
    for (const auto& [slot, weight] : next_.terms) direction.sum.terms.push_back({rows_.row(slot), weight});
    runner.step(update, direction, optimizer);
    for (const auto& [slot, weight] : next_.terms) {
      resummation_->enters(runner, slot, weight);
      weights_[static_cast<size_t>(slot)] = weight > 0 ? 1.0f : 0.0f;
    }
  }
  resummation_->advance(runner, weights_.data(), sum_);
}

void CalibratedDirection::commit() noexcept {
  ++arrivals_;
  row_bound_ = next_.row_bound;
  if (next_.known) {
    fresh_of(next_.contribution.client)->share = next_.contribution.share;
  } else {
    fresh_.push_back({next_.contribution.client, next_.write, next_.contribution.share});
    free_.pop_back();
  }
  held_.push_back(next_.contribution.start);
  total_ += next_.contribution.share;
  resummation_->put();
  if (next_.outcome != Outcome::kStep) return;
  for (const FreshUpdate& fresh : fresh_) {
    int32_t& slot = slots_[static_cast<size_t>(fresh.client)];
    if (slot >= 0) free_.push_back(slot);
    slot = static_cast<int32_t>(fresh.slot);
  }
  fresh_.clear();
  held_.clear();
  total_ = 0.0;
}

void CalibratedDirection::cancel() noexcept {
  for (const auto& [slot, weight] : next_.terms) weights_[static_cast<size_t>(slot)] = weight > 0 ? 0.0f : 1.0f;
  resummation_->cancel();
}

int64_t CalibratedDirection::nbytes() const {
  return static_cast<int64_t>(slots_.size() * sizeof(int32_t) + weights_.size() * sizeof(float)) +
         resummation_->nbytes();
}

void CalibratedDirection::fields(Archive& archive) {
  std::vector<std::pair<int64_t, int64_t>> slots;
  for (size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i] >= 0) slots.emplace_back(i, slots_[i]);
  std::vector<Archive::Entry> fresh;
  for (const FreshUpdate& fresh_update : fresh_)
    fresh.emplace_back(fresh_update.client, fresh_update.slot, fresh_update.share);
  std::vector<int64_t> free(free_.begin(), free_.end());
  archive.list("slots", slots);
  archive.list("fresh", fresh);
  archive.list("free", free);
  archive.list("versions", held_);
  archive.field("total", total_);
  archive.field("arrivals", arrivals_);
  archive.field("bound", row_bound_);
  if (!archive.loads) return;
  check_bound(row_bound_);
  take_slots(slots, fresh, free);
  held_.reserve(static_cast<size_t>(setting_.capacity));
  if (static_cast<int64_t>(held_.size()) >= setting_.capacity || held_.size() < fresh_.size())
    throw std::invalid_argument("a buffer of another size");
}

void CalibratedDirection::take_slots(const std::vector<std::pair<int64_t, int64_t>>& slots,
                                     const std::vector<Archive::Entry>& fresh, const std::vector<int64_t>& free) {
  const auto require = [](bool holds) {
    if (!holds) throw std::invalid_argument("rows that are nobody's, or two clients'");
  };
  std::vector<char> used(static_cast<size_t>(rows_.slots));
  const auto use = [&](int64_t slot) {
    require(slot >= 0 && slot < rows_.slots && !used[static_cast<size_t>(slot)]);
    used[static_cast<size_t>(slot)] = 1;
  };
  for (const auto& [client, slot] : slots) {
    use(slot);
    require(client >= 0 && client < setting_.clients && slots_[static_cast<size_t>(client)] < 0);
    slots_[static_cast<size_t>(client)] = static_cast<int32_t>(slot);
    weights_[static_cast<size_t>(slot)] = 1.0f;
  }
  for (const auto& [client, slot, share] : fresh) {
    use(slot);
    require(client >= 0 && client < setting_.clients && fresh_of(client) == nullptr);
    fresh_.push_back({client, slot, share});
  }
  free_.clear();
  for (const int64_t slot : free) {
    use(slot);
    free_.push_back(static_cast<int32_t>(slot));
  }
  require(std::find(used.begin(), used.end(), 0) == used.end());
}

}  // namespace fastagg::engine
