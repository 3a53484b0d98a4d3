#include "buffered.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "../cpu/cpu.h"
#include "../math/combine.h"
#include "../math/fixed.h"
#include "../math/reduce.h"
#include "../refusal.h"
#include "../store/encoded.h"
#include "answer.h"

namespace fastagg::engine {
namespace {

// More wait in no smaller memory, and for a longer step, than their sum.
constexpr size_t kMostWaiting = 32;
constexpr int64_t kMostBytes = 16;  // a parameter

double weight_of(const Contribution& one) { return one.weight * one.share; }

}  // namespace

Buffered::Buffered(double sign, const Setting& setting, std::shared_ptr<store::Memory> memory,
                   const std::optional<Privacy::Setting>& privacy)
    : DirectionState(sign), setting_(setting), memory_(std::move(memory)) {
  is.keeps = is.combines = setting_.combine != nullptr;
  is.sums = this;
  if (privacy) is.privacy = &privacy_.emplace(*privacy, setting.size, memory_);
  unit = setting.unit;
  tell_traits();
}

// What is only possible while all is in the sum.
void Buffered::tell_traits() noexcept {
  is.reads_once = waiting_.empty() && !setting_.combine;
  folds = is.reads_once && setting_.capacity != 1 && !exact();
}

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
Outcome Buffered::plan(const Contributions& given, bool closes, Way way) {
  int64_t count = 0;
  for (const Contribution& one : given) count += one.count;
  const bool steps = closes || count >= room();
  if (given.empty() && (!steps || held_.empty())) return outcome_ = Outcome::kKept;
  if (setting_.combine && !given.empty() && given.back().total >= 0.0)
    throw Refusal(Why::kSetting, "receive_partial: a sum of updates, and this rule needs every single one");
  if (setting_.combine && static_cast<int64_t>(held_.size()) + count > kMostCombined)
    throw Refusal(Why::kSetting, "the round has as many updates as can be combined; call close_round()");
  plan_numbers(given, steps);
  const auto more = static_cast<size_t>(count);
  if (held_.capacity() < held_.size() + more) held_.reserve(2 * (held_.size() + more));
  plan_held();
  plan_memory(way);
  return outcome_;
}

// What becomes of updates that wait as they came, and whether this one joins them. All but those of a step are added to
// the sum when one comes that does not wait.
void Buffered::plan_held() {
  waits_ = outcome_ == Outcome::kKept && given_.size() == 1 && (setting_.combine || may_wait(given_.front()));
  terms_.clear(), desks_.reset();
  if (outcome_ == Outcome::kIdle || (setting_.combine && !waits_ && outcome_ == Outcome::kKept)) return;
  if (waits_) return waiting_.reserve(waiting_.size() + 1);
  for (const HeldUpdate& one : waiting_) terms_.push_back({&one.update, one.by});
  if (terms_.empty() && !setting_.combine) return;
  for (const Contribution& one : given_) terms_.push_back({one.update, factor(one)});
  if (!setting_.combine) return;
  desks_ = std::make_unique<Desks>(terms_.size(), memory_->is_host());
  setting_.combine->weigh(terms_, setting_.size, *is.runner, desks_->weights());
}

// Whether an update that only has to be added up may wait as it came.
bool Buffered::may_wait(const Contribution& one) const {
  if (exact() || one.total >= 0.0 || !store::is_encoded(*one.update) || waiting_.size() >= kMostWaiting) return false;
  return waiting_nbytes() + store::encoded_in(*one.update)->nbytes <= kMostBytes * setting_.size;
}

// What an update is multiplied by where it is added up. What is combined is not weighted by samples.
float Buffered::factor(const Contribution& one) const {
  return static_cast<float>(one.gain * is.sign * (setting_.combine ? one.weight : weight_of(one)));
}

void Buffered::plan_memory(Way way) {
  beside_ = {};
  models_.clear(), sum_ = {};
  if (waits_ || (setting_.combine && outcome_ == Outcome::kStep)) return;
  const bool moves = outcome_ == Outcome::kStep, models = way >= Way::kUpdates;
  const bool one_alone = moves && fresh() && given_.size() == 1 && !models;
  if (exact() || !one_alone) begin_sum();
  // In place, the memory of a second sum is saved, and each model is read twice.
  in_place_ = way == Way::kStillModels && !held_.empty() && !moves;
  // What may still fail needs the old sum.
  const bool may_fail = models  ? !in_place_ && !held_.empty()
                        : moves ? settles(given_) || (given_.empty() && !terms_.empty())
                                : way == Way::kOnce && !held_.empty();
  if (may_fail) beside_ = memory_->vector(setting_.size);
  if (moves && (models || given_.empty() || settles(given_))) sum_.add(into().data, setting_.size, kFloat32);
  if (!models) return;
  for (const Contribution& one : given_)
    models_.push_back({*one.update, one.base, static_cast<float>(one.gain * is.sign * weight_of(one))});
  largest_ = std::vector<std::atomic<int32_t>>(models_.size());
}

void Buffered::begin_sum() {
  if (!acc_) acc_ = memory_->vector(setting_.size);
  if (!exact() || high_) return;
  marks_.resize(static_cast<size_t>((setting_.size + kBlock - 1) / kBlock));
  high_ = memory_->vector(setting_.size);
}

// Refuses what an exact sum cannot hold. All terms then have one unit, and the sum has room for them.
void Buffered::check_exact(const Contributions& given) const {
  const auto refuse = [](Why why, const std::string& text) { throw Refusal(why, "exact sums: " + text); };
  int64_t count = static_cast<int64_t>(held_.size());
  for (const Contribution& one : given) {
    count += one.count;
    if (!(std::floor(one.counts_for()) == one.counts_for()))
      refuse(Why::kSetting, "num_samples: expected a whole number, got " + std::to_string(one.counts_for()) +
                                "; round it (so that weights add up in any order)");
    if (one.total >= 0.0 && one.weight != 1.0)
      refuse(Why::kSetting, "a staleness weight of " + std::to_string(one.weight) + " for a sum");
    const double by = std::abs(weight_of(one));
    if (one.total < 0.0 && !(by * one.norm <= setting_.largest && by / setting_.unit <= kHeaviest))
      refuse(Why::kTooLarge, "the update's norm is " + std::to_string(by * one.norm) +
                                 " with its weight, and the largest declared is exact=" +
                                 std::to_string(setting_.largest) + "; declare a larger one, or set clip_norm");
  }
  if (count > kMostTerms || total_next_ > 0x1p53)
    refuse(Why::kSetting, "the round has as many updates or samples as a sum can hold; call close_round()");
}

void Buffered::plan_numbers(const Contributions& given, bool steps) {
  given_ = given;
  versions_.clear();
  if (steps) versions_ = held_;
  total_next_ = total_;
  acc_bound_next_ = held_.empty() ? 0.0 : acc_bound_;
  for (const Contribution& one : given_) {
    if (steps) versions_.insert(versions_.end(), static_cast<size_t>(one.count), one.start);
    total_next_ += one.counts_for() * (setting_.divisor < 0.0 ? one.weight : 1.0);
    const double most = std::abs(setting_.combine ? one.weight : weight_of(one)) * one.norm;
    acc_bound_next_ = setting_.combine ? std::max(acc_bound_next_, most) : acc_bound_next_ + most;
  }
  // A round in which nobody had samples ends without a step.
  outcome_ = !steps ? Outcome::kKept : total_next_ > 0.0 ? Outcome::kStep : Outcome::kIdle;
  if (exact()) check_exact(given_);
  if (setting_.divisor < 0.0 && acc_bound_next_ != 0.0 && !(total_next_ >= 1.0 / kHeaviest))
    throw Refusal(Why::kSetting, "normalize: the sum of the updates' weights is " + std::to_string(total_next_) +
                                     "; use a staleness policy that weighs them more");
  // A waiting update must be fit for a step now. Otherwise it would block every later step.
  bound_ = acc_bound_next_ == 0.0 || setting_.combine ? acc_bound_next_ : acc_bound_next_ / divisor();
  if (privacy_) {
    privacy_->plan(given_, steps, static_cast<int64_t>(versions_.size()));
    if (steps) bound_ += privacy_->bound(divisor());
  }
  kept_bound_ = acc_bound_next_;
}

void Buffered::run(Runner& runner, const Updates& updates, const Optimizer& optimizer) {
  const bool steps = outcome_ == Outcome::kStep;
  if (waits_ || (outcome_ == Outcome::kIdle && !waiting_.empty())) return;
  if (!terms_.empty()) return run_held(runner, updates, optimizer);
  bool fresh = held_.empty();
  if (!models_.empty()) {
    if (in_place_) cpu::fold(models_, acc_.data, acc_.data, largest_);
    if (steps) step_along(runner, optimizer);
    return;
  }
  if (!steps && updates.empty()) return;
  const size_t into_sum = updates.size() - (steps && !updates.empty() ? 1 : 0);
  const double term = exact() ? setting_.unit : 1.0;  // what 1 in the sum means
  if (settles(given_)) {
    const auto sign = static_cast<int64_t>(is.sign);
    const auto* more = updates.empty() ? nullptr : static_cast<const int64_t*>(updates.front()->pieces.front().data);
    if (!steps) return cpu::add_fixed(more, sign, acc_.data, fresh, upper(), setting_.size);
    cpu::settle_fixed(fresh ? nullptr : acc_.data, upper(), more, sign, beside_.data, setting_.size);
  } else {
    for (size_t i = 0; i < into_sum; ++i, fresh = false)
      runner.accumulate(*updates[i], fresh ? nullptr : acc_.data,
                        given_[i].gain * is.sign * weight_of(given_[i]) / term, into().data, upper());
  }
  if (!steps) return;
  if (updates.empty() || settles(given_)) return step_along(runner, optimizer);
  run_last(runner, *updates.back(), fresh, optimizer);
}

// A step along what waits, or its end in the sum.
void Buffered::run_held(Runner& runner, const Updates& updates, const Optimizer& optimizer) {
  const float* const acc = fresh() ? nullptr : acc_.data;
  if (setting_.combine) {
    Direction direction;
    direction.kind = kFlush;
    direction.buffer.held = &terms_;
    direction.buffer.combine = setting_.combine.get();
    direction.buffer.desks = desks_.get();
    for (const HeldUpdate& one : waiting_) runner.hold(one.owner);
    return runner.step(*terms_.back().update, direction, optimizer);
  }
  if (outcome_ != Outcome::kStep || updates.empty()) {
    cpu::add_held(terms_, acc, into().data);
    if (outcome_ == Outcome::kStep) step_along(runner, optimizer);
    return;
  }
  terms_.pop_back();  // the step's kernel reads it
  run_last(runner, *updates.back(), false, optimizer);
}

// A step along the sum itself.
void Buffered::step_along(Runner& runner, const Optimizer& optimizer) {
  Direction direction;
  direction.weight = (exact() ? setting_.unit : 1.0) / divisor();
  if (privacy_) direction.noise = privacy_->noise(divisor());
  runner.step(sum_, direction, optimizer);
}

// A step along the sum and one more update. `fresh`: the sum is still empty.
void Buffered::run_last(Runner& runner, const Update& update, bool fresh, const Optimizer& optimizer) {
  const double term = exact() ? setting_.unit : 1.0;  // what 1 in the sum means
  const Contribution& last = given_.back();
  Direction direction;
  direction.gain = last.gain * is.sign;
  direction.weight = weight_of(last);
  if (privacy_) direction.noise = privacy_->noise(divisor());
  if (exact()) {
    direction.kind = kFlush;
    direction.gain = 1.0;
    direction.weight = last.gain * is.sign * weight_of(last) / term;
    direction.buffer.acc = fresh ? nullptr : acc_.data;
    direction.buffer.scale = static_cast<float>(term / divisor());
    direction.buffer.upper = upper();
  } else if (fresh) {
    direction.weight /= divisor();
  } else {
    direction.kind = kFlush;
    direction.buffer.acc = this->fresh() && !terms_.empty() ? nullptr : acc_.data;
    direction.buffer.scale = static_cast<float>(1.0 / divisor());
    if (!terms_.empty()) direction.buffer.held = &terms_;
  }
  runner.step(update, direction, optimizer);
}

store::Vector Buffered::along() const {
  const bool is_sum = given_.empty() || !models_.empty();
  return outcome_ == Outcome::kStep && is_sum && !setting_.combine ? into() : store::Vector{};
}

// In place, this pass only checks them. The old sum is only read, so a model that is unfit leaves it as it was.
size_t Buffered::fold(std::vector<double>* squares) {
  if (squares != nullptr) {
    cpu::fold_once(models_, held_.empty() ? nullptr : acc_.data, into().data, *squares);
    const auto is_finite = [](double one) { return std::isfinite(one); };
    return static_cast<size_t>(std::find_if_not(squares->begin(), squares->end(), is_finite) - squares->begin());
  }
  cpu::fold(models_, held_.empty() ? nullptr : acc_.data, in_place_ ? nullptr : into().data, largest_);
  const auto fit = [](const std::atomic<int32_t>& bits) { return bits <= kLargestElementBits; };
  return static_cast<size_t>(std::find_if_not(largest_.begin(), largest_.end(), fit) - largest_.begin());
}

void Buffered::commit() noexcept {
  if (beside_) acc_ = std::move(beside_);
  beside_ = {};
  if (privacy_) privacy_->commit(outcome_ != Outcome::kKept);
  if (waits_) {
    const Contribution& one = given_.front();
    HeldUpdate& next = waiting_.emplace_back();
    Answer& from = *one.answer;
    if (store::is_encoded(from.update)) {
      next.owner = std::const_pointer_cast<store::Encoded>(store::encoded_in(from.update));
    } else {
      next.owner = std::move(from.copy ? from.copy : from.owner);
    }
    next.update = std::move(from.update);
    next.by = factor(one);
  } else {
    waiting_.clear();
  }
  tell_traits();
  if (outcome_ != Outcome::kKept) {
    held_.clear();
    total_ = acc_bound_ = 0.0;
    return;
  }
  for (const Contribution& one : given_) held_.insert(held_.end(), static_cast<size_t>(one.count), one.start);
  total_ = total_next_;
  acc_bound_ = acc_bound_next_;
}

void Buffered::fields(Archive& archive) {
  archive.list("versions", held_);
  archive.field("total", total_);
  if (privacy_) privacy_->fields(archive);
  if (exact()) return exact_fields(archive);
  if (archive.loads() ? archive.has("held") : !waiting_.empty()) {
    std::vector<HeldUpdate> here;  // as they are in the host's memory
    if (!archive.loads())
      for (const HeldUpdate& one : waiting_) here.push_back(memory_->is_host() ? one : moved(one, *memory_, false));
    archive.held("held", here, setting_.size);
    if (archive.loads()) waiting_ = std::move(here);
  }
  if (archive.loads()) load_held();
  if (archive.loads() && !fresh() && !acc_) acc_ = memory_->vector(setting_.size);
  const bool there = archive.vector("acc", acc_, setting_.size, !fresh());  // between rounds the sum is empty
  if (!archive.loads()) return;
  check_loaded(there);
  if (memory_->is_host() || waiting_.empty()) return;
  if (!setting_.combine) return add_loaded();
  for (HeldUpdate& one : waiting_) one = moved(one, *memory_, true);
}

// On a device nothing waits that is to be added: what did is added here, before it goes there.
void Buffered::add_loaded() {
  const int64_t nbytes = setting_.size * static_cast<int64_t>(sizeof(float));
  const store::Vector sum = store::new_vector(setting_.size);
  if (!fresh()) memory_->get(sum.data, acc_.data, nbytes);
  terms_.clear();
  for (const HeldUpdate& one : waiting_) terms_.push_back({&one.update, one.by});
  cpu::add_held(terms_, fresh() ? nullptr : sum.data, sum.data);
  if (!acc_) acc_ = memory_->vector(setting_.size);
  memory_->put(acc_.data, sum.data, nbytes);
  terms_.clear(), waiting_.clear();
  tell_traits();
}

void Buffered::load_held() {
  if (waiting_.size() > held_.size() || (setting_.combine && !fresh()))
    throw std::invalid_argument("another number of held updates than of updates");
  for (const HeldUpdate& one : waiting_) {
    const double bound = bound_of(one, setting_.size);
    acc_bound_ = setting_.combine ? std::max(acc_bound_, bound) : acc_bound_ + bound;
  }
  tell_traits();
}

int64_t Buffered::nbytes() const { return waiting_nbytes() + (privacy_ ? privacy_->nbytes() : 0); }

int64_t Buffered::waiting_nbytes() const {
  int64_t sum = 0;
  for (const HeldUpdate& one : waiting_) sum += one.nbytes();
  return sum;
}

void Buffered::exact_fields(Archive& archive) {
  std::vector<int64_t> sum;
  if (!archive.loads() && !held_.empty()) {
    sum.resize(static_cast<size_t>(setting_.size));
    cpu::read_fixed(acc_.data, upper(), setting_.size, sum.data());
  }
  archive.whole("acc", sum);
  if (!archive.loads()) return;
  check_loaded(!sum.empty());
  if (sum.empty()) return;
  const auto count = static_cast<int64_t>(held_.size());
  if (static_cast<int64_t>(sum.size()) != setting_.size || count > kMostTerms ||
      cpu::norm_of_fixed(sum.data(), setting_.size).largest > fixed_limit(count))
    throw std::invalid_argument("an exact sum that its updates cannot have");
  begin_sum();
  cpu::add_fixed(sum.data(), 1, acc_.data, true, upper(), setting_.size);
  acc_bound_ = setting_.largest * static_cast<double>(count);
}

void Buffered::check_loaded(bool there) const {
  if (fresh() == there) throw std::invalid_argument("a buffer without its sum");
  if (setting_.capacity >= 0 && static_cast<int64_t>(held_.size()) >= setting_.capacity)
    throw std::invalid_argument("a buffer that is full");
  if (!(total_ >= 0.0)) throw std::invalid_argument("a buffer's weight");
}

}  // namespace fastagg::engine
