#include "row_weights.h"

#include <algorithm>
#include <stdexcept>

#include "resummation.h"

namespace fastagg::engine {
namespace {

constexpr int64_t kNever = INT64_MIN / 2;

// One update recomputes the whole sum if the sum's total weight has fallen by more than the factor kLargestFall. Up to
// this factor, rounding errors from the time of the larger total are at most a millionth of the sum. The sum is not
// recomputed if all shares are equal up to the factor kNearlyEqual. The total then falls only when rows leave the sum,
// and only a bounded number of rows can leave.
constexpr double kLargestFall = 16.0, kNearlyEqual = 2.0;

}  // namespace

void RowWeights::plan(int64_t client, double share, bool enters) {
  const auto c = static_cast<size_t>(client);
  next.client = client;
  next.share = static_cast<float>(share);  // the kernel multiplies by this float
  next.leaving = weights[c];
  next.entering = enters ? next.share : 0.0f;
  next.heard = heard + (shares[c] == 0.0f);
  next.sum = total_;
  next.sum.remove(next.leaving);
  next.sum.add(next.entering);
  for (const auto& [slot, weight] : next.terms) weight > 0 ? next.sum.add(weight) : next.sum.remove(-weight);
  next.total = next.sum.value();
  next.heaviest_total = std::max(heaviest_total_, next.total);
}

// The sum may have rounding errors from a time when its elements were larger. The second term bounds these errors.
double RowWeights::bound(double of_rows, double of_sum, bool direct) {
  next.row_bound = of_rows;
  next.peak = direct ? 0.0 : std::max(peak_, of_sum);
  return of_rows + (next.total > 0.0 ? next.peak * 0x1p-22 / next.total : 0.0);
}

bool RowWeights::fell() const {
  const bool lighter = std::max(next.heaviest_total, heaviest_before_) > kLargestFall * next.total;
  // The planned share is included, because this share may be the first that differs from the others.
  const bool equal = heaviest_ == 0.0 ||
                     std::max<double>(heaviest_, next.share) <= kNearlyEqual * std::min<double>(lightest_, next.share);
  return lighter && !equal && next.total > 0.0;
}

void RowWeights::put() noexcept {
  weights[static_cast<size_t>(next.client)] = next.entering;
  for (const auto& [slot, weight] : next.terms) weights[static_cast<size_t>(slot)] = weight > 0 ? weight : 0.0f;
}

void RowWeights::take_back() noexcept {
  for (const auto& [slot, weight] : next.terms) weights[static_cast<size_t>(slot)] = weight > 0 ? 0.0f : -weight;
  weights[static_cast<size_t>(next.client)] = next.leaving;
}

void RowWeights::heard_of(float share) noexcept {
  lightest_ = heaviest_ == 0.0 ? share : std::min<double>(lightest_, share);
  heaviest_ = std::max<double>(heaviest_, share);
}

void RowWeights::commit(bool whole) noexcept {
  shares[static_cast<size_t>(next.client)] = next.share;
  total_ = next.sum;
  heard = next.heard;
  row_bound = next.row_bound, peak_ = next.peak;
  heard_of(next.share);
  heaviest_total_ = whole ? next.total : next.heaviest_total;
  if (whole) heaviest_before_ = 0.0;
  if (++arrivals % (kResummationCycle * clients()) == 0) {  // every block was recomputed since the last time
    heaviest_before_ = heaviest_total_;
    heaviest_total_ = next.total;
  }
}

void RowWeights::fields(Archive& archive) {
  archive.field("shares", shares);
  archive.field("weights", weights);
  archive.field("heard", heard);
  archive.field("arrivals", arrivals);
  archive.field("bound", row_bound);
  archive.field("peak", peak_);
}

void RowWeights::fields_of_totals(Archive& archive, bool resums) {
  if (resums) {
    archive.field("heaviest_total", heaviest_total_);
    archive.field("heaviest_before", heaviest_before_);
    archive.field("lightest", lightest_);
    archive.field("heaviest", heaviest_);
  }
  if (!archive.loads) return;
  check_bound(row_bound);
  check_bound(peak_);
  int64_t count = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (!(shares[i] >= 0.0f && shares[i] <= 1e30f) || (weights[i] != 0.0f && weights[i] != shares[i]))
      throw std::invalid_argument("a row's weight");
    total_.add(weights[i]);
    count += shares[i] > 0.0f;
  }
  if (!(heaviest_total_ >= 0.0 && heaviest_before_ >= 0.0 && lightest_ >= 0.0 && heaviest_ >= 0.0))
    throw std::invalid_argument("a bound out of range");
  if (count != heard || arrivals < count) throw std::invalid_argument("the number of clients heard");
}

// -- ages

Freshness::Freshness(RowWeights& of, int64_t max_delay, bool by_dispatch, bool full)
    : of_(of), max_delay_(max_delay), by_dispatch_(by_dispatch), full_(full), begun_(of.shares.size(), kNever) {}

void Freshness::before_sending(int64_t version) {
  if (due_count_ > 4 * of_.clients() + 1024) {  // most entries are of earlier dispatches than a client's last
    due_ = last_due();
    due_count_ = of_.clients();
  }
  std::vector<int64_t>& due = due_[std::max(version, expired_)];
  if (due.size() == due.capacity()) due.reserve(2 * due.size() + 4);
  if (back_.size() == back_.capacity()) back_.reserve(2 * back_.size() + 4);
}

void Freshness::sent(int64_t client, int64_t version) noexcept {
  const auto c = static_cast<size_t>(client);
  if (begun_[c] == version) return;
  if (of_.shares[c] > 0.0f && of_.weights[c] == 0.0f) back_.push_back(client);
  due_.find(std::max(version, expired_))->second.push_back(client);  // hand_on may send a version below `expired_`
  begun_[c] = version;
  ++due_count_;
}

// Finds the clients whose rows are too old for the sum now, and the clients whose rows return to the sum. A client is
// checked once for each version from which its row's age has counted.
void Freshness::plan_terms(int64_t client, int64_t oldest) {
  RowWeights::Terms& terms = of_.next.terms;
  for (int64_t version = expired_; version < oldest; ++version) {
    const auto due = due_.find(version);
    if (due == due_.end()) continue;
    for (const int64_t other : due->second) {
      const auto c = static_cast<size_t>(other);
      if (other != client && begun_[c] < oldest && of_.weights[c] > 0.0f) terms.emplace_back(other, -of_.weights[c]);
    }
  }
  for (const int64_t other : back_) {
    const auto c = static_cast<size_t>(other);
    if (other != client && of_.weights[c] == 0.0f && of_.shares[c] > 0.0f && begun_[c] >= oldest)
      terms.emplace_back(other, of_.shares[c]);
  }
  std::sort(terms.begin(), terms.end());
  terms.erase(std::unique(terms.begin(), terms.end()), terms.end());
}

bool Freshness::plan(const Contribution& contribution) {
  of_.next.terms.clear();
  const int64_t oldest = contribution.now - max_delay_;
  expired_next_ = begins() ? std::max(expired_, oldest) : expired_;
  if (!by_dispatch_ && contribution.start >= expired_next_) {  // entries of older versions are never read
    std::vector<int64_t>& due = due_[contribution.start];
    if (due.size() == due.capacity()) due.reserve(2 * due.size() + 4);
  }
  if (!begins()) return true;
  plan_terms(contribution.client, oldest);
  return (by_dispatch_ ? begun_[static_cast<size_t>(contribution.client)] : contribution.start) >= oldest;
}

void Freshness::commit(const Contribution& contribution) noexcept {
  for (int64_t version = expired_; version < expired_next_; ++version) due_.erase(version);
  expired_ = expired_next_;
  if (begins()) back_.clear();
  if (by_dispatch_) return;
  begun_[static_cast<size_t>(contribution.client)] = contribution.start;
  if (of_.next.entering > 0.0f && contribution.start >= expired_)
    due_[contribution.start].push_back(contribution.client);
}

void Freshness::fields(Archive& archive) {
  archive.field("begun", begun_);
  archive.field("expired", expired_);
  archive.list("back", back_);
  if (archive.loads) due_ = last_due();
}

// Returns each client under the version from which its row's age counts.
std::unordered_map<int64_t, std::vector<int64_t>> Freshness::last_due() const {
  std::unordered_map<int64_t, std::vector<int64_t>> due;
  for (size_t i = 0; i < begun_.size(); ++i)
    if (begun_[i] != kNever) due[std::max(begun_[i], expired_)].push_back(static_cast<int64_t>(i));
  return due;
}

}  // namespace fastagg::engine
