#include <cmath>
#include <stdexcept>

#include "../math/fixed.h"
#include "../math/reduce.h"
#include "buffers.h"

namespace fastagg::engine {

// Refuses what an exact sum cannot hold. All terms then have one unit, and the sum has room for them.
void ExactlySummed::check_sum(int64_t count) const {
  const auto refuse = [](Why why, const std::string& text) { throw Refusal(why, "exact sums: " + text); };
  for (const Contribution& one : given_) {
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
  if (count > kMostTerms || round.next_total > 0x1p53)
    refuse(Why::kSetting, "the round has as many updates or samples as a sum can hold; call close_round()");
}

void ExactlySummed::plan_sum(ReadMode mode) {
  begin_sum();
  const bool along = outcome_ == Outcome::kStep && settles();
  // What may still fail needs the old sum.
  if (along || (outcome_ != Outcome::kStep && mode == ReadMode::kReadOnce && !round.versions.empty()))
    sum.beside = memory_->vector(setting_.size);
  if (along) sum.along.add(sum.beside.data, setting_.size, kFloat32);
}

void ExactlySummed::begin_sum() {
  if (!sum.acc) sum.acc = memory_->vector(setting_.size);
  if (high_) return;
  marks_.resize(static_cast<size_t>((setting_.size + kBlock - 1) / kBlock));
  high_ = memory_->vector(setting_.size);
}

void ExactlySummed::run(Runner& runner, const Optimizer& optimizer) {
  const bool steps = outcome_ == Outcome::kStep;
  bool none = round.versions.empty();  // is in the sum
  if (!steps && given_.empty()) return;
  if (settles()) {
    const auto sign = static_cast<int64_t>(is.sign);
    const auto* more =
        given_.empty() ? nullptr : static_cast<const int64_t*>(given_.front().update->pieces.front().data);
    if (!steps) return cpu::add_fixed(more, sign, sum.acc.data, none, upper(), setting_.size);
    cpu::settle_fixed(none ? nullptr : sum.acc.data, upper(), more, sign, sum.beside.data, setting_.size);
    return step_along(runner, setting_.unit, optimizer);
  }
  const auto in_units = [&](const Contribution& one) { return one.gain * is.sign * weight_of(one) / setting_.unit; };
  for (size_t i = 0; i + (steps ? 1 : 0) < given_.size(); ++i, none = false)
    runner.accumulate(*given_[i].update, none ? nullptr : sum.acc.data, in_units(given_[i]), sum.into().data, upper());
  if (!steps) return;
  Direction direction;
  direction.kind = kFlush;
  direction.gain = 1.0;
  direction.weight = in_units(given_.back());
  if (privacy_) direction.noise = privacy_->noise(round.divisor);
  direction.buffer.acc = none ? nullptr : sum.acc.data;
  direction.buffer.scale = static_cast<float>(setting_.unit / round.divisor);
  direction.buffer.upper = upper();
  runner.step(*given_.back().update, direction, optimizer);
}

bool ExactlySummed::sum_fields(Archive& archive) {
  std::vector<int64_t> whole;
  if (!archive.loads && !round.versions.empty()) {
    whole.resize(static_cast<size_t>(setting_.size));
    cpu::read_fixed(sum.acc.data, upper(), setting_.size, whole.data());
  }
  archive.whole("acc", whole);
  if (whole.empty() != round.versions.empty()) return false;
  if (!archive.loads || whole.empty()) return true;
  const auto count = static_cast<int64_t>(round.versions.size());
  if (static_cast<int64_t>(whole.size()) != setting_.size || count > kMostTerms ||
      cpu::norm_of_fixed(whole.data(), setting_.size).largest > fixed_limit(count))
    throw std::invalid_argument("an exact sum that its updates cannot have");
  begin_sum();
  cpu::add_fixed(whole.data(), 1, sum.acc.data, true, upper(), setting_.size);
  round.bound = setting_.largest * static_cast<double>(count);
  return true;
}

}  // namespace fastagg::engine
