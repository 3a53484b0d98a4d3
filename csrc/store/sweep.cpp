#include "sweep.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace fastagg::store {

Sweep::Sweep(const Windows& windows, int64_t clients)
    : windows_(windows),
      clients_(clients),
      shadow_(static_cast<size_t>((windows.elements(0) + kBlock - 1) / kBlock * kBlock)) {
  jobs_.reserve(shadow_.size() / kBlock);
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
  double* const shadow = aside_.empty() ? shadow_.data() : aside_.data();
  if (client < client_of(done())) add(runner, part, window_of(done()), weight, shadow);
}

void Sweep::begin_copy() { aside_ = shadow_; }

void Sweep::take_aside() noexcept {
  shadow_.swap(aside_);
  aside_ = {};
}

void Sweep::take(Runner& runner, int64_t turn, const Row& part, float weight, float* sum) {
  const int64_t window = window_of(turn), client = client_of(turn);
  if (client == 0) std::fill(shadow_.begin(), shadow_.end(), 0.0);
  if (part.data != nullptr) add(runner, part, window, weight, shadow_.data());
  if (client + 1 == clients_)
    runner.settle_rows(jobs(window, shadow_.data()), sum + window * Windows::kSize, windows_.elements(window));
}

void Sweep::rebuild(Runner& runner, const std::vector<float>& weights,
                    const std::function<Row(int64_t client, int64_t window)>& part, float* sum) {
  std::vector<float> fresh(static_cast<size_t>(windows_.size));
  std::vector<double> shadow(shadow_.size()), begun(shadow_.size());
  for (int64_t window = 0; window < windows_.count(); ++window) {
    std::fill(shadow.begin(), shadow.end(), 0.0);
    for (int64_t client = 0; client < clients_; ++client) {
      if (window == window_of(done()) && client == client_of(done())) begun = shadow;
      const float weight = weights[static_cast<size_t>(client)];
      if (weight != 0.0f) add(runner, part(client, window), window, weight, shadow.data());
    }
    runner.settle_rows(jobs(window, shadow.data()), fresh.data() + window * Windows::kSize, windows_.elements(window));
  }
  std::copy(fresh.begin(), fresh.end(), sum);
  shadow_.swap(begun);
}

std::vector<double> Sweep::begun() const { return client_of(done()) == 0 ? std::vector<double>{} : shadow_; }

void Sweep::check(int64_t arrivals, const std::vector<double>& begun) const {
  if (arrivals < 0 || arrivals > (int64_t{1} << 50) / windows_.count())
    throw std::invalid_argument("a number of arrivals out of range");
  const bool is_begun = client_of(turns_after(arrivals)) != 0;
  if (begun.size() != (is_begun ? shadow_.size() : 0)) throw std::invalid_argument("a scrub of another size");
}

void Sweep::load(int64_t arrivals, const std::vector<double>& begun) {
  arrivals_ = arrivals;
  std::copy(begun.begin(), begun.end(), shadow_.begin());
}

}  // namespace fastagg::store
