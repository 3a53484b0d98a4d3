#include "sweep.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace fastagg::store {

Sweep::Sweep(const Windows& windows, int64_t clients)
    : windows_(windows),
      clients_(clients),
      shadow_size_(static_cast<size_t>((windows.elements(0) + kBlock - 1) / kBlock * kBlock)),
      held_(shadow_size_),
      shadow_(held_.data()) {
  jobs_.reserve(shadow_size_ / kBlock);
}

void Sweep::lie_on(Copies& copies, double* shadow) {
  copies_ = &copies;
  shadow_ = shadow;
  held_ = {};
}

// To where the shadow and the sum are.
void Sweep::put(void* to, const void* from, size_t bytes) {
  if (copies_ != nullptr) return copies_->put(to, from, bytes);
  std::memcpy(to, from, bytes);
}

const std::vector<RowJob>& Sweep::jobs(int64_t window, double* shadow) {
  jobs_.clear();  // which keeps its memory
  for (int64_t block = 0; block * kBlock < windows_.elements(window); ++block)
    jobs_.push_back({block, 0, 1, shadow + block * kBlock});
  return jobs_;
}

void Sweep::add(Runner& runner, const Row& part, int64_t window, float weight, double* shadow) {
  const Rows rows{windows_.format, windows_.elements(window), 1, part.data, part.scales};
  runner.add_rows(rows, jobs(window, shadow), nullptr, weight);
}

void Sweep::follow(Runner& runner, int64_t client, const Row& row, float weight) {
  if (weight != 0.0f) follow_part(runner, client, windows_.part(row, window_of(done())), weight);
}

void Sweep::follow_part(Runner& runner, int64_t client, const Row& part, float weight) {
  double* const shadow = aside_.empty() ? shadow_ : aside_.data();
  if (client < client_of(done())) add(runner, part, window_of(done()), weight, shadow);
}

void Sweep::set_aside() { aside_.assign(shadow_, shadow_ + shadow_size_); }

void Sweep::take_aside() noexcept {
  std::copy(aside_.begin(), aside_.end(), shadow_);
  aside_ = {};
}

void Sweep::take(Runner& runner, int64_t turn, const Row& part, float weight, float* sum) {
  const int64_t window = window_of(turn), client = client_of(turn);
  if (client == 0) runner.zero(shadow_, static_cast<int64_t>(shadow_size_ * sizeof(double)));
  if (part.data != nullptr) add(runner, part, window, weight, shadow_);
  if (client + 1 == clients_)
    runner.settle_rows(jobs(window, shadow_), sum + window * Windows::kSize, windows_.elements(window));
}

void Sweep::rebuild(Runner& runner, const std::vector<float>& weights,
                    const std::function<Row(int64_t client, int64_t window)>& part, float* sum) {
  std::vector<float> fresh(static_cast<size_t>(windows_.size));
  std::vector<double> shadow(shadow_size_), begun(shadow_size_);
  for (int64_t window = 0; window < windows_.count(); ++window) {
    std::fill(shadow.begin(), shadow.end(), 0.0);
    for (int64_t client = 0; client < clients_; ++client) {
      if (window == window_of(done()) && client == client_of(done())) begun = shadow;
      const float weight = weights[static_cast<size_t>(client)];
      if (weight != 0.0f) add(runner, part(client, window), window, weight, shadow.data());
    }
    runner.settle_rows(jobs(window, shadow.data()), fresh.data() + window * Windows::kSize, windows_.elements(window));
  }
  put(sum, fresh.data(), fresh.size() * sizeof(float));
  put(shadow_, begun.data(), begun.size() * sizeof(double));
}

std::vector<double> Sweep::begun() const {
  if (client_of(done()) == 0) return {};
  std::vector<double> found(shadow_size_);
  const size_t bytes = found.size() * sizeof(double);
  if (copies_ != nullptr) {
    copies_->get(found.data(), shadow_, bytes);
  } else {
    std::memcpy(found.data(), shadow_, bytes);
  }
  return found;
}

void Sweep::check(int64_t arrivals, const std::vector<double>& begun) const {
  if (arrivals < 0 || arrivals > (int64_t{1} << 50) / windows_.count())
    throw std::invalid_argument("a number of arrivals out of range");
  const bool is_begun = client_of(turns_after(arrivals)) != 0;
  if (begun.size() != (is_begun ? shadow_size_ : 0)) throw std::invalid_argument("a scrub of another size");
}

void Sweep::load(int64_t arrivals, const std::vector<double>& begun) {
  arrivals_ = arrivals;
  if (!begun.empty()) put(shadow_, begun.data(), begun.size() * sizeof(double));
}

}  // namespace fastagg::store
