#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>

#include "../cpu/cpu.h"
#include "books.h"
#include "ledger.h"

namespace fastagg::serving {
namespace {

Vector vector_of(py::object tensor) {
  if (tensor.is_none()) return {};
  float* data = reinterpret_cast<float*>(py::cast<uintptr_t>(tensor.attr("data_ptr")()));
  return {std::move(tensor), data};
}

double weight_of(const Facts& facts) { return facts.weight * facts.share; }

}  // namespace

void Buffered::check(py::handle client, int64_t start, int64_t now) const {
  if (synchronous_ && start != now)
    throw UnknownVersion("client " + py::cast<std::string>(py::repr(client)) + ": its update is from round " +
                         std::to_string(start) + ", this is round " + std::to_string(now));
}

int64_t Buffered::room() const { return capacity_ < 0 ? INT64_MAX : capacity_ - static_cast<int64_t>(held_.size()); }

void Buffered::reserve(size_t more) {
  if (held_.capacity() < held_.size() + more) held_.reserve(2 * (held_.size() + more));
}

Outcome Buffered::plan(const Facts& facts) { return plan_round({facts}, room() == facts.count); }

// Adds all updates to the sum. If they make a step, the last one is not added: the step's kernel reads it directly.
Outcome Buffered::plan_round(const std::vector<Facts>& facts, bool steps) {
  plan_numbers(facts, steps);
  size_t count = 0;
  for (const Facts& one : facts_) count += static_cast<size_t>(one.count);
  reserve(count);
  const bool one_alone = steps && held_.empty() && facts_.size() == 1;
  if (!one_alone && !acc_) acc_ = vector_of(vector_());
  return outcome_;
}

void Buffered::plan_numbers(const std::vector<Facts>& facts, bool steps) {
  facts_ = facts;
  outcome_ = steps ? Outcome::kStep : Outcome::kKept;
  versions_.clear();
  if (steps) versions_ = held_;
  total_next_ = total_;
  acc_bound_next_ = held_.empty() ? 0.0 : acc_bound_;
  for (const Facts& one : facts_) {
    if (steps) versions_.insert(versions_.end(), static_cast<size_t>(one.count), one.start);
    total_next_ += one.counts_for();
    acc_bound_next_ += std::abs(weight_of(one)) * one.norm;
  }
  // A waiting update must be fit for a step now. Otherwise it would block every later step.
  bound_ = acc_bound_next_ / total_next_;
  kept_bound_ = acc_bound_next_;
}

void Buffered::run(Runner& runner, const Update& update, const Optimizer& optimizer) {
  bool fresh = held_.empty();
  const Facts& last = facts_.back();
  if (outcome_ == Outcome::kKept) {
    runner.accumulate(update, fresh ? nullptr : acc_.data, last.gain * sign_ * weight_of(last), acc_.data);
    return;
  }
  if (facts_.size() > 1) fresh = false;
  Direction direction;
  direction.gain = last.gain * sign_;
  direction.weight = weight_of(last);
  if (fresh) {  // the sum is still empty
    direction.weight /= total_next_;
  } else {
    direction.kind = kFlush;
    direction.buffer.acc = acc_.data;
    direction.buffer.scale = static_cast<float>(1.0 / total_next_);
  }
  runner.step(update, direction, optimizer);
}

void Buffered::run_round(Runner& runner, const std::vector<Update>& updates, const Optimizer& optimizer) {
  bool fresh = held_.empty();
  const size_t into_sum = updates.size() - (outcome_ == Outcome::kStep ? 1 : 0);
  for (size_t i = 0; i < into_sum; ++i, fresh = false)
    runner.accumulate(updates[i], fresh ? nullptr : acc_.data, facts_[i].gain * sign_ * weight_of(facts_[i]),
                      acc_.data);
  if (outcome_ == Outcome::kStep) run(runner, updates.back(), optimizer);
}

void Buffered::commit() noexcept {
  if (outcome_ == Outcome::kStep) {
    held_.clear();
    total_ = acc_bound_ = 0.0;
    return;
  }
  for (const Facts& one : facts_) held_.insert(held_.end(), static_cast<size_t>(one.count), one.start);
  total_ = total_next_;
  acc_bound_ = acc_bound_next_;
}

Outcome Buffered::plan_fold(const std::vector<Trained>& trained) {
  facts_.clear();
  for (const Trained& one : trained) {
    facts_.push_back(one.facts);
    facts_.back().norm = kLargestElement;  // run_fold reports larger elements as not finite
  }
  plan_round(facts_, static_cast<int64_t>(trained.size()) == room());
  if (!acc_) acc_ = vector_of(vector_());
  beside_ = {};
  // With a second vector the fold saves one read. If there is no spare one, the models are checked first and then
  // added.
  if (!held_.empty()) beside_ = vector_of(spare_());
  return outcome_;
}

std::vector<bool> Buffered::run_fold(const std::vector<Trained>& trained) {
  std::vector<cpu::Trained> rows;
  for (const Trained& one : trained)
    rows.push_back({*one.update, one.base, static_cast<float>(one.facts.gain * sign_ * weight_of(one.facts))});
  std::vector<std::atomic<int32_t>> largest(rows.size());
  const bool fresh = held_.empty();
  float* out = fresh ? acc_.data : beside_.data;
  cpu::fold(rows, fresh ? nullptr : acc_.data, out, largest);
  std::vector<bool> found;
  for (const auto& bits : largest) found.push_back(bits <= kLargestElementBits);
  if (out == nullptr && std::find(found.begin(), found.end(), false) == found.end())
    cpu::fold(rows, acc_.data, acc_.data, largest);
  return found;
}

void Buffered::commit_fold(bool gives_up_sum) noexcept {
  if (beside_) acc_ = std::move(beside_);
  beside_ = {};
  if (gives_up_sum) acc_ = {};
  commit();
}

void Buffered::run_flush(Runner& runner, const Update& sum, const Optimizer& optimizer) {
  Direction direction;
  direction.weight = 1.0 / total_next_;
  runner.step(sum, direction, optimizer);
}

bool Buffered::plan_flush() {
  if (held_.empty()) return false;
  beside_ = {};
  facts_.clear();
  outcome_ = Outcome::kStep;
  versions_ = held_;
  total_next_ = total_;
  bound_ = acc_bound_ / total_;
  kept_bound_ = acc_bound_;
  return true;
}

py::dict Buffered::state() const {
  py::dict state;
  state["acc"] = held_.empty() ? py::none() : acc_.owner;  // between rounds the sum is empty
  state["total"] = total_;
  state["versions"] = held_;
  return state;
}

void Buffered::load(const py::dict& state) {
  held_ = py::cast<std::vector<int64_t>>(state["versions"]);
  total_ = py::cast<double>(state["total"]);
  if (held_.empty() != state["acc"].is_none()) throw std::invalid_argument("a buffer without its sum");
  if (capacity_ >= 0 && static_cast<int64_t>(held_.size()) >= capacity_)
    throw std::invalid_argument("a buffer that is full");
  if (held_.empty()) return;
  if (!(total_ > 0.0)) throw std::invalid_argument("a buffer's weight");
  acc_ = vector_of(vector_());
  acc_.owner.attr("copy_")(state["acc"]);
}

}  // namespace fastagg::serving
