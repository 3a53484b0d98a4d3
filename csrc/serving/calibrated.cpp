#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "books.h"

namespace fastagg::serving {

Calibrated::Calibrated(double sign, const Setting& setting, const Rows& rows, uint64_t seed, float* sum, float* acc,
                       Scrub* scrub)
    : Book(sign),
      setting_(setting),
      rows_(rows),
      seed_(seed),
      sum_(sum),
      acc_(acc),
      scrub_(scrub),
      slots_(static_cast<size_t>(setting.clients), -1),
      weights_(static_cast<size_t>(rows.slots)) {
  for (int64_t slot = rows.slots; slot-- > 0;) free_.push_back(static_cast<int32_t>(slot));
  const auto most = static_cast<size_t>(std::min(setting.capacity, setting.clients));
  fresh_.reserve(most);
  terms_.reserve(2 * most);
  held_.reserve(static_cast<size_t>(setting.capacity));
}

Calibrated::Fresh* Calibrated::fresh_of(int64_t client) {
  for (Fresh& fresh : fresh_)
    if (fresh.client == client) return &fresh;
  return nullptr;
}

int64_t Calibrated::writes(int64_t client) const {
  for (const Fresh& fresh : fresh_)
    if (fresh.client == client) return fresh.slot;
  return free_.empty() ? -1 : free_.back();
}

Outcome Calibrated::plan(const Facts& facts) {
  facts_ = facts;
  Fresh* mine = fresh_of(facts.client);
  known_ = mine != nullptr;
  read_ = slots_[static_cast<size_t>(facts.client)];
  if (!setting_.from_start && known_) read_ = mine->slot;
  write_ = known_ ? mine->slot : free_.back();
  versions_ = held_;
  versions_.push_back(facts.start);
  outcome_ = static_cast<int64_t>(versions_.size()) == setting_.capacity ? Outcome::kStep : Outcome::kKept;
  terms_.clear();
  if (outcome_ == Outcome::kStep) {
    double distinct = 0.0;
    for (const Fresh& fresh : fresh_) {
      terms_.emplace_back(fresh.slot, 1.0f);
      distinct += fresh.client == facts.client ? facts.share : fresh.share;
    }
    if (!known_) {
      terms_.emplace_back(write_, 1.0f);
      distinct += facts.share;
    }
    for (size_t i = 0, count = terms_.size(); i < count; ++i) {
      const int64_t client = i < fresh_.size() ? fresh_[i].client : facts.client;
      if (const int32_t slot = slots_[static_cast<size_t>(client)]; slot >= 0) terms_.emplace_back(slot, -1.0f);
    }
    divisor_ = setting_.from_start ? distinct : total_ + facts.share;
  }
  row_bound_next_ = std::max(row_bound_, std::abs(facts.weight) * facts.norm);
  bound_ = row_bound_next_ * (kLargestElement / largest_row());
  kept_bound_ = row_bound_next_ * std::max(2.0 * (total_ + facts.share), static_cast<double>(setting_.clients));
  if (scrub_ != nullptr) scrub_->plan(arrivals_);
  return outcome_;
}

void Calibrated::run(Runner& runner, const Update& update, const Optimizer& optimizer) {
  const RandomKey key{seed_, static_cast<uint64_t>(arrivals_), static_cast<uint32_t>(facts_.client)};
  Direction direction;
  direction.kind = kCalibrated;
  direction.gain = facts_.gain * facts_.weight;
  direction.weight = facts_.share * sign_;
  direction.row = {rows_.format, rows_.row(read_), rows_.row(write_), key};
  direction.buffer = {held_.empty() ? nullptr : acc_, acc_, 1.0f};
  if (outcome_ == Outcome::kKept) {
    runner.step(update, direction, Optimizer{});
  } else {
    direction.buffer.scale = static_cast<float>(1.0 / divisor_);
    direction.sum = {sum_, 1.0f, 1.0f, static_cast<float>(sign_ / static_cast<double>(setting_.clients)), {}};
    for (const auto& [slot, weight] : terms_) direction.sum.terms.push_back({rows_.row(slot), weight});
    runner.step(update, direction, optimizer);
    for (const auto& [slot, weight] : terms_) {
      scrub_->enters(runner, slot, weight);
      weights_[static_cast<size_t>(slot)] = weight > 0 ? 1.0f : 0.0f;
    }
  }
  scrub_->advance(runner, weights_.data(), sum_);
}

void Calibrated::commit() noexcept {
  ++arrivals_;
  row_bound_ = row_bound_next_;
  if (known_) {
    fresh_of(facts_.client)->share = facts_.share;
  } else {
    fresh_.push_back({facts_.client, write_, facts_.share});
    free_.pop_back();
  }
  held_.push_back(facts_.start);
  total_ += facts_.share;
  scrub_->commit();
  if (outcome_ != Outcome::kStep) return;
  for (const Fresh& fresh : fresh_) {
    int32_t& slot = slots_[static_cast<size_t>(fresh.client)];
    if (slot >= 0) free_.push_back(slot);
    slot = static_cast<int32_t>(fresh.slot);
  }
  fresh_.clear();
  held_.clear();
  total_ = 0.0;
}

void Calibrated::cancel() noexcept {
  for (const auto& [slot, weight] : terms_) weights_[static_cast<size_t>(slot)] = weight > 0 ? 0.0f : 1.0f;
  scrub_->cancel();
}

int64_t Calibrated::nbytes() const {
  return static_cast<int64_t>(slots_.size() * sizeof(int32_t) + weights_.size() * sizeof(float)) + scrub_->nbytes();
}

py::dict Calibrated::state() const {
  std::vector<std::pair<int64_t, int64_t>> slots;
  for (size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i] >= 0) slots.emplace_back(i, slots_[i]);
  std::vector<std::tuple<int64_t, int64_t, double>> fresh;
  for (const Fresh& one : fresh_) fresh.emplace_back(one.client, one.slot, one.share);
  py::dict state;
  state["slots"] = slots;
  state["fresh"] = fresh;
  state["free"] = free_;
  state["versions"] = held_;
  state["total"] = total_;
  state["arrivals"] = arrivals_;
  state["bound"] = row_bound_;
  return state;
}

void Calibrated::load(const py::dict& state) {
  const auto require = [](bool holds) {
    if (!holds) throw std::invalid_argument("rows that are nobody's, or two clients'");
  };
  const auto slots = py::cast<std::vector<std::pair<int64_t, int64_t>>>(state["slots"]);
  const auto fresh = py::cast<std::vector<std::tuple<int64_t, int64_t, double>>>(state["fresh"]);
  free_ = py::cast<std::vector<int32_t>>(state["free"]);
  free_.reserve(static_cast<size_t>(rows_.slots));
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
  for (const int32_t slot : free_) use(slot);
  require(std::find(used.begin(), used.end(), 0) == used.end());
  held_ = py::cast<std::vector<int64_t>>(state["versions"]);
  held_.reserve(static_cast<size_t>(setting_.capacity));
  require(static_cast<int64_t>(held_.size()) < setting_.capacity && held_.size() >= fresh_.size());
  total_ = py::cast<double>(state["total"]);
  arrivals_ = py::cast<int64_t>(state["arrivals"]);
  row_bound_ = bound_of(state["bound"]);
}

}  // namespace fastagg::serving
