#include "all_clients.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "on_cpu.h"

namespace fastagg::engine {
namespace {

constexpr int64_t kNever = INT64_MIN / 2;

// By so much the sum may have been heavier before: then what its roundings left behind is at most a millionth of it.
// Weights that are nearly equal never fall so far but by clients that leave the sum, whose number is bounded.
constexpr double kLargestFall = 16.0, kNearlyEqual = 2.0;

}  // namespace

AllClients::AllClients(double sign, const Setting& setting, std::shared_ptr<store::RowStore> rows, bool resums,
                       uint64_t seed, float* sum)
    : DirectionState(sign),
      setting_(setting),
      rows_(std::move(rows)),
      resums_(resums),
      seed_(seed),
      sum_(sum),
      shares_(static_cast<size_t>(setting.clients)),
      weights_(static_cast<size_t>(setting.clients)) {
  is.rows = this;
  if (ages() && setting.by_dispatch) is.ages = this;
  if (rows_) hold_rows();
  mean_.pieces.reserve(1);
  if (ages()) begun_.assign(static_cast<size_t>(setting.clients), kNever);
}

// An fp32 row is as long as the update, and the sum takes the update's own numbers where there are no rows.
void AllClients::hold_rows() {
  format = rows_->shape().format;
  if (format == kPlainRows) return;
  coded.format = format;
  coded.size = rows_->shape().size;
}

void AllClients::expect(int64_t client) noexcept {
  if (rows_) rows_->expect(client);
}

void AllClients::before_sending(int64_t version) {
  if (due_count_ > 4 * setting_.clients + 1024) {  // most of it is of dispatches that later ones replaced
    std::unordered_map<int64_t, std::vector<int64_t>> due;
    for (size_t i = 0; i < begun_.size(); ++i)
      if (begun_[i] >= expired_) due[begun_[i]].push_back(static_cast<int64_t>(i));
    due_.swap(due);
    due_count_ = setting_.clients;
  }
  std::vector<int64_t>& due = due_[std::max(version, expired_)];
  if (due.size() == due.capacity()) due.reserve(2 * due.size() + 4);
  if (back_.size() == back_.capacity()) back_.reserve(2 * back_.size() + 4);
}

void AllClients::sent(int64_t client, int64_t version) noexcept {
  const auto c = static_cast<size_t>(client);
  if (begun_[c] == version) return;
  if (shares_[c] > 0.0f && weights_[c] == 0.0f) back_.push_back(client);
  due_.find(std::max(version, expired_))->second.push_back(client);  // a task that was handed on may be older
  begun_[c] = version;
  ++due_count_;
}

// Who leaves the sum because it is too old by now, and who is back in time: each looked at once after every dispatch.
void AllClients::plan_terms(int64_t client, int64_t now) {
  const int64_t oldest = now - setting_.max_delay;
  for (int64_t version = expired_; version < oldest; ++version) {
    const auto due = due_.find(version);
    if (due == due_.end()) continue;
    for (const int64_t other : due->second) {
      const auto c = static_cast<size_t>(other);
      if (other != client && begun_[c] < oldest && weights_[c] > 0.0f) terms_.emplace_back(other, -weights_[c]);
    }
  }
  for (const int64_t other : back_) {
    const auto c = static_cast<size_t>(other);
    if (other != client && weights_[c] == 0.0f && shares_[c] > 0.0f && begun_[c] >= oldest)
      terms_.emplace_back(other, shares_[c]);
  }
  std::sort(terms_.begin(), terms_.end());
  terms_.erase(std::unique(terms_.begin(), terms_.end()), terms_.end());
  expired_next_ = std::max(expired_, oldest);
}

Outcome AllClients::plan(const Contributions& given, bool, Way) {
  given_ = given.front();
  if (given_.row == nullptr && coded.size > 0) given_.row = row_in(given_, format);
  copy_ = nullptr;
  const auto c = static_cast<size_t>(given_.client);
  share_ = rows_ ? static_cast<float>(given_.share) : 1.0f;  // as the kernel will multiply by it
  weighed_ = weights_[c];
  leaving_ = rows_ ? weighed_ : 0.0f;
  entering_ = share_;
  terms_.clear();
  expired_next_ = expired_;
  heard_next_ = heard_ + (shares_[c] == 0.0f);
  if (ages() && (!setting_.full || heard_ == setting_.clients)) {
    plan_terms(given_.client, given_.now);
    const int64_t begun = setting_.by_dispatch ? begun_[c] : given_.start;
    if (given_.now - begun > setting_.max_delay) entering_ = 0.0f;
  }
  if (ages() && !setting_.by_dispatch) due_[given_.start].reserve(due_[given_.start].size() + 1);
  plan_bounds();
  versions_.assign(1, given_.start);
  if (rows_) plan_rows();
  const bool waits = setting_.full && heard_next_ < setting_.clients;
  outcome_ = waits ? Outcome::kKept : total_value_ == 0.0 ? Outcome::kIdle : Outcome::kStep;
  return outcome_;
}

void AllClients::plan_bounds() {
  const auto c = static_cast<size_t>(given_.client);
  const double norm = std::abs(given_.weight) * given_.norm;
  total_next_ = total_;
  total_next_.remove(weights_[c]);
  total_next_.add(entering_);
  for (const auto& [slot, weight] : terms_) weight > 0 ? total_next_.add(weight) : total_next_.remove(-weight);
  total_value_ = total_next_.value();
  row_bound_next_ = rows_ ? std::max(row_bound_, norm) : row_bound_ + given_.norm;  // differences add up
  kept_bound_ = in_memory() ? row_bound_next_ * total_value_ : row_bound_next_;
  // A sum that was larger before, by heavier rows that have left, still has the rounding of what it was.
  peak_next_ = setting_.direct ? 0.0 : std::max(peak_, kept_bound_);
  bound_ = row_bound_next_ + (total_value_ > 0.0 ? peak_next_ * 0x1p-22 / total_value_ : 0.0);
  direct_ = setting_.direct;
  if (!resums_) return;
  heaviest_total_next_ = std::max(heaviest_total_, total_value_);
  const bool fell = std::max(heaviest_total_next_, heaviest_before_) > kLargestFall * total_value_;
  direct_ = fell && heaviest_ > kNearlyEqual * lightest_ && total_value_ > 0.0;
  if (direct_) heaviest_total_next_ = total_value_, peak_next_ = kept_bound_;
}

// How the update's row replaces its client's last one.
Direction AllClients::exchange() const {
  const int64_t client = given_.client;
  Direction direction;
  direction.kind = kMean;
  direction.gain = given_.gain * given_.weight;
  direction.sum = {sum_, rows_ ? entering_ : 1.0f, leaving_, 1.0f, {}};
  direction.row.format = format;
  direction.row.key = {seed_, static_cast<uint64_t>(arrivals_), static_cast<uint32_t>(rows_ ? client : 0)};
  direction.row.coded = coded.packed_at(const_cast<void*>(given_.row));  // it is only read
  direction.row.copy = coded.packed_at(copy_);
  if (!rows_) return direction;
  if (leaving_ != 0.0f) direction.row.read = rows_->read(client);
  direction.row.write = rows_->place(client);
  return direction;
}

// The new row was made ahead of the step; the log's copy of it was not.
void AllClients::copy_new_row(const Exchange& row) const {
  std::memcpy(row.copy.data, row.write.data, static_cast<size_t>(coded.row_bytes()));
  if (row.copy.scales != nullptr)
    std::memcpy(row.copy.scales, row.write.scales, static_cast<size_t>(coded.row_scales()) * sizeof(float));
}

// The new sum is made beside the old one, because reading the terms may fail. Its bits are those that `run` makes.
void AllClients::move_aside() {
  OnCpu runner;
  const int64_t size = given_.update->size;
  aside_ = store::new_memory(size * static_cast<int64_t>(sizeof(float)));
  auto* const sum = static_cast<float*>(aside_.get());
  std::copy(sum_, sum_ + size, sum);
  Direction direction = exchange();
  direction.sum.values = sum;
  if (leaving_ != 0.0f) rows_->leaves(runner, given_.client, leaving_);
  runner.step(*given_.update, direction, Optimizer{});
  rows_->enters(runner, given_.client, entering_);
  rows_->add_terms(runner, sum);
}

void AllClients::run(Runner& runner, const Updates& updates, const Optimizer& optimizer) {
  const Update& update = *updates.front();
  const int64_t client = given_.client;
  const auto c = static_cast<size_t>(client);
  Direction direction = exchange();
  for (size_t term = 0; term < terms_.size() && !aside_; ++term)
    direction.sum.terms.push_back({rows_->read(terms_[term].first), terms_[term].second});
  if (leaving_ != 0.0f && !aside_) rows_->leaves(runner, client, leaving_);
  const bool steps = outcome_ == Outcome::kStep;
  if (aside_) {
    const auto* const sum = static_cast<const float*>(aside_.get());
    std::copy(sum, sum + update.size, sum_);
    if (direction.row.copy.data != nullptr) copy_new_row(direction.row);
    if (steps) step_along_sum(runner, update, optimizer);
  } else if (!steps || direct_) {
    runner.step(update, direction, Optimizer{});
  } else {
    direction.sum.scale = static_cast<float>(is.sign / total_value_);
    runner.step(update, direction, optimizer);
  }
  if (total_value_ == 0.0) runner.zero(sum_, update.size * static_cast<int64_t>(sizeof(float)));
  weights_[c] = entering_;
  for (const auto& [slot, weight] : terms_) weights_[static_cast<size_t>(slot)] = weight > 0 ? weight : 0.0f;
  if (direct_ && total_value_ != 0.0) runner.recompute_sum(rows_->shape(), weights_.data(), sum_);
  if (rows_) {
    if (!aside_) rows_->enters(runner, client, entering_);
    for (size_t term = 0; term < terms_.size() && !aside_; ++term)
      rows_->enters(runner, terms_[term].first, terms_[term].second);
    rows_->advance(runner, weights_.data(), sum_);
  }
  if (direct_ && steps) step_along_sum(runner, update, optimizer);
}

void AllClients::step_along_sum(Runner& runner, const Update& update, const Optimizer& optimizer) {
  mean_.pieces.clear();  // which keeps its memory
  mean_.size = 0;
  mean_.add(sum_, update.size, kFloat32);
  Direction along;
  along.gain = is.sign / total_value_;
  runner.step(mean_, along, optimizer);
}

void AllClients::commit() noexcept {
  const auto c = static_cast<size_t>(given_.client);
  shares_[c] = share_;
  total_ = total_next_;
  heard_ = heard_next_;
  row_bound_ = row_bound_next_;
  peak_ = peak_next_;
  copy_ = nullptr;
  ++arrivals_;
  lightest_ = heaviest_ == 0.0 ? share_ : std::min<double>(lightest_, share_);
  heaviest_ = std::max<double>(heaviest_, share_);
  heaviest_total_ = heaviest_total_next_;
  if (direct_) heaviest_before_ = 0.0;
  aside_.reset();
  if (arrivals_ % (kResummationCycle * setting_.clients) == 0) {  // by now the whole sum was recomputed
    heaviest_before_ = heaviest_total_;
    heaviest_total_ = total_value_;
  }
  for (int64_t version = expired_; version < expired_next_; ++version) due_.erase(version);
  if (expired_next_ > expired_) expired_ = expired_next_;
  if (ages() && (!setting_.full || heard_ == setting_.clients)) back_.clear();
  if (ages() && !setting_.by_dispatch) {
    begun_[c] = given_.start;
    if (entering_ > 0.0f && given_.start >= expired_) due_[given_.start].push_back(given_.client);
  }
  if (rows_) rows_->put();
}

void AllClients::plan_rows() {
  aside_.reset();
  try {
    rows_->plan({arrivals_, given_.client, leaving_ != 0.0f, entering_, &terms_, &weights_});
    if (rows_->is_aside()) move_aside();
  } catch (const store::RowDamaged& damaged) {
    RowsLost lost{rows_->find_lost(weights_)};
    if (std::find(lost.slots.begin(), lost.slots.end(), damaged.client) == lost.slots.end())
      lost.slots.push_back(damaged.client);
    throw lost;
  }
}

// The sum is made anew without these rows, and their clients are as if they were never heard.
int64_t AllClients::give_up(const std::vector<int64_t>& lost) {
  if (!rows_ || in_memory()) return RowKeeper::give_up(lost);
  std::vector<int64_t> held;
  for (const int64_t one : lost) {
    if (one < 0 || one >= setting_.clients) throw Refusal(Why::kDamaged, "a lost row of a client that is not there");
    if (shares_[static_cast<size_t>(one)] > 0.0f) held.push_back(one);
  }
  if (held.empty()) return -1;  // a checkpoint's damaged rows were given up when it was loaded
  try {
    OnCpu runner;
    rows_->give_up(runner, weights_, held, sum_);
  } catch (const store::RowDamaged& damaged) {
    return damaged.client;
  }
  for (const int64_t one : held) {
    const auto c = static_cast<size_t>(one);
    total_.remove(weights_[c]);
    heard_ -= shares_[c] > 0.0f;
    weights_[c] = shares_[c] = 0.0f;
  }
  return -1;
}

void AllClients::cancel() noexcept {
  for (const auto& [slot, weight] : terms_) weights_[static_cast<size_t>(slot)] = weight > 0 ? 0.0f : -weight;
  weights_[static_cast<size_t>(given_.client)] = weighed_;
  if (rows_) rows_->cancel();
}

int64_t AllClients::nbytes() const {
  const size_t floats = shares_.size() + weights_.size();
  return static_cast<int64_t>(floats * sizeof(float) + begun_.size() * sizeof(int64_t)) + (rows_ ? rows_->nbytes() : 0);
}

void AllClients::fields(Archive& archive) {
  archive.field("shares", shares_);
  archive.field("weights", weights_);
  archive.field("heard", heard_);
  archive.field("arrivals", arrivals_);
  archive.field("bound", row_bound_);
  archive.field("peak", peak_);
  if (ages()) {
    archive.field("begun", begun_);
    archive.field("expired", expired_);
    archive.list("back", back_);
  }
  const bool has_totals = !archive.loads() || archive.has("heaviest_total");  // older checkpoints have none
  if (resums_ && has_totals) {
    archive.field("heaviest_total", heaviest_total_);
    archive.field("heaviest_before", heaviest_before_);
    archive.field("lightest", lightest_);
    archive.field("heaviest", heaviest_);
  }
  if (!archive.loads()) return;
  check_bound(row_bound_);
  check_bound(peak_);
  int64_t heard = 0;
  for (size_t i = 0; i < shares_.size(); ++i) {
    if (!(shares_[i] >= 0.0f && shares_[i] <= 1e30f) || (weights_[i] != 0.0f && weights_[i] != shares_[i]))
      throw std::invalid_argument("a row's weight");
    total_.add(weights_[i]);
    heard += shares_[i] > 0.0f;
    if (has_totals || shares_[i] == 0.0f) continue;
    lightest_ = heaviest_ == 0.0 ? shares_[i] : std::min<double>(lightest_, shares_[i]);
    heaviest_ = std::max<double>(heaviest_, shares_[i]);
  }
  if (!has_totals) heaviest_total_ = total_.value();
  if (!(heaviest_total_ >= 0.0 && heaviest_before_ >= 0.0 && lightest_ >= 0.0 && heaviest_ >= 0.0))
    throw std::invalid_argument("a bound out of range");
  if (heard != heard_ || arrivals_ < heard) throw std::invalid_argument("the number of clients heard");
  for (size_t i = 0; i < begun_.size(); ++i)
    if (begun_[i] != kNever) due_[std::max(begun_[i], expired_)].push_back(static_cast<int64_t>(i));
}

}  // namespace fastagg::engine
