#include "buffered.h"

#include <algorithm>
#include <stdexcept>

#include "buffers.h"

namespace fastagg::engine {

namespace {

constexpr size_t kLeastRound = 5;  // a step of fewer updates has no majority

// Returns the client with more than half of the entries. -1: no such client, or fewer than kLeastRound entries.
int64_t majority_of(const std::vector<int64_t>& clients) noexcept {
  int64_t candidate = -1, votes = 0;
  for (const int64_t client : clients) {
    if (votes == 0) candidate = client;
    votes += client == candidate ? 1 : -1;
  }
  const auto count = static_cast<size_t>(std::count(clients.begin(), clients.end(), candidate));
  return clients.size() >= kLeastRound && 2 * count > clients.size() ? candidate : -1;
}

}  // namespace

std::shared_ptr<BufferedDirection> buffer_of(double sign, const BufferedDirection::Setting& setting,
                                             const std::shared_ptr<store::Memory>& memory,
                                             const std::optional<Privacy::Setting>& privacy) {
  if (setting.combine) return std::make_shared<CombinedBuffer>(sign, setting, memory, privacy);
  return std::make_shared<SummedBuffer>(sign, setting, memory, privacy);
}

BufferedDirection::BufferedDirection(double sign, const Setting& setting, std::shared_ptr<store::Memory> memory,
                                     const std::optional<Privacy::Setting>& privacy)
    : DirectionState(sign), setting_(setting), memory_(std::move(memory)) {
  is.keeps = is.combines = setting_.combine != nullptr;
  is.reads_once = !is.combines;
  is.sums = this;
  if (privacy) is.privacy = &privacy_.emplace(*privacy, setting.size, memory_);
  folds = !is.combines && setting.capacity != 1;
}

void BufferedDirection::check(const ClientId& client, int64_t start, int64_t now) const {
  if (setting_.synchronous && start != now)
    throw Refusal(Why::kUnknownVersion, "client " + shown(client) + ": its update is from round " +
                                            std::to_string(start) + ", this is round " + std::to_string(now));
}

int64_t BufferedDirection::room() const {
  return setting_.capacity < 0 ? INT64_MAX : setting_.capacity - static_cast<int64_t>(round.versions.size());
}

double BufferedDirection::grace(int64_t waiting) const {
  const bool enough =
      setting_.at_least > 0 && static_cast<int64_t>(round.versions.size()) + waiting >= setting_.at_least;
  return enough ? setting_.grace : HUGE_VAL;
}

// Plans the round's weights and bounds with these updates. Then `plan_sum` plans how the updates are stored or summed.
Outcome BufferedDirection::plan(const Contributions& contributions, bool closes, ReadMode mode) {
  int64_t count = 0;
  for (const Contribution& contribution : contributions) count += contribution.count;
  const bool steps = closes || count >= room();
  if (contributions.empty() && (!steps || round.versions.empty())) return outcome_ = Outcome::kKept;
  plan_numbers(contributions, steps);
  const auto all = round.versions.size() + static_cast<size_t>(count);
  if (round.versions.capacity() < all) round.versions.reserve(2 * all), round.clients.reserve(2 * all);
  sum.beside = {}, sum.along = {};
  plan_sum(mode);
  return outcome_;
}

void BufferedDirection::plan_numbers(const Contributions& contributions, bool steps) {
  contributions_ = contributions;
  versions_.clear();
  if (steps) versions_ = round.versions;
  round.next_total = round.total;
  round.next_bound = round.versions.empty() ? 0.0 : round.bound;
  auto count = static_cast<int64_t>(round.versions.size());
  double factor = 1.0;  // the largest factor of an update, at least 1; kernels use the factor as a float
  for (const Contribution& contribution : contributions_) {
    count += contribution.count;
    if (steps) versions_.insert(versions_.end(), static_cast<size_t>(contribution.count), contribution.start);
    round.next_total += contribution.counts_for() * (setting_.divisor < 0.0 ? contribution.weight : 1.0);
    const double by = std::abs(is.combines ? contribution.weight : weight_of(contribution)),
                 bound = by * contribution.norm;
    factor = std::max(factor, by);
    round.next_bound = is.combines ? std::max(round.next_bound, bound) : round.next_bound + bound;
  }
  // If the total is 0, for example because no client had samples, the round ends without a step.
  outcome_ = !steps ? Outcome::kKept : round.next_total > 0.0 ? Outcome::kStep : Outcome::kIdle;
  check_sum(count);
  if (setting_.divisor < 0.0 && round.next_bound != 0.0 && !(round.next_total >= 1.0 / kHeaviest))
    throw Refusal(Why::kSetting, "normalize: the sum of the updates' weights is " + std::to_string(round.next_total) +
                                     "; use a staleness policy that weighs them more");
  round.divisor = setting_.divisor > 0.0 ? setting_.divisor : round.next_total;
  // The bound is computed as if the step were made now, even if the round is not full. A stored update that is too
  // large would block every later step.
  kept_bound_ = round.next_bound;
  const double by = is.combines || round.divisor == 0.0 ? 1.0 : round.divisor;
  bound_ = kept_bound_ / by;
  if (factor / std::min(by, 1.0) > kLargestModel)
    bound_ = HUGE_VAL;  // as a float this quotient is infinite, and infinity times 0 is NaN
  if (!privacy_) return;
  privacy_->plan(contributions_, steps, static_cast<int64_t>(versions_.size()));
  if (steps) bound_ += privacy_->bound(round.divisor);
}

void BufferedDirection::step_along(Runner& runner, double term, const Optimizer& optimizer) {
  Direction direction;
  direction.weight = term / round.divisor;
  if (privacy_) direction.noise = privacy_->noise(round.divisor);
  runner.step(sum.along, direction, optimizer);
}

void BufferedDirection::commit() noexcept {
  if (sum.beside) sum.acc = std::move(sum.beside);
  sum.beside = {};
  if (privacy_) privacy_->commit(outcome_ != Outcome::kKept);
  for (const Contribution& contribution : contributions_)
    if (contribution.count == 1 && contribution.total < 0.0) round.clients.push_back(contribution.client);
  if (outcome_ != Outcome::kKept) {
    majority = majority_of(round.clients);
    round.clients.clear();
    round.versions.clear();
    round.total = round.bound = 0.0;
    return;
  }
  for (const Contribution& contribution : contributions_)
    round.versions.insert(round.versions.end(), static_cast<size_t>(contribution.count), contribution.start);
  round.total = round.next_total;
  round.bound = round.next_bound;
}

void BufferedDirection::fields(Archive& archive) {
  archive.list("versions", round.versions);
  archive.field("total", round.total);
  if (privacy_) privacy_->fields(archive);
  if (!sum_fields(archive)) throw std::invalid_argument("a buffer without its sum");
  if (!archive.loads) return;
  if (setting_.capacity >= 0 && room() <= 0) throw std::invalid_argument("a buffer that is full");
  if (!(round.total >= 0.0)) throw std::invalid_argument("a buffer's weight");
}

}  // namespace fastagg::engine
