#include "row_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "../cpu/cpu.h"
#include "../math/reduce.h"
#include "blocking.h"

namespace fastagg::store {

RowFile::RowFile(const RowShape& shape, int64_t clients, std::string path)
    : slots(shape, clients, std::move(path)),
      shadow_(static_cast<size_t>((shape.elements(0) + kBlock - 1) / kBlock * kBlock)) {
  jobs_.reserve(shadow_.size() / kBlock);
}

// Either all is there then, or the file is closed.
void RowFile::take(int file, const Cut* cut, const std::vector<Slots::Places>& kept) {
  slots.take(file);
  try {
    const auto stride = static_cast<size_t>(slots.shape.stride());
    old_ = block_of(stride);
    new_ = block_of(stride);
    std::memset(new_.get(), 0, stride);  // the ends of its pages are never written to
    due_rows_ = block_of(static_cast<size_t>(most_due() * slots.shape.part_bytes()));
    if (cut == nullptr) return;
    if (cut->arrivals < 0 || cut->arrivals > (int64_t{1} << 50) / slots.shape.windows())
      throw std::invalid_argument("a number of arrivals out of range");
    const bool has_begun = client_of(turns_after(cut->arrivals)) != 0;
    if (cut->begun.size() != (has_begun ? shadow_.size() : 0)) throw std::invalid_argument("a scrub of another size");
    slots.load(cut->slots, kept);
    arrivals_ = cut->arrivals;
    std::copy(cut->begun.begin(), cut->begun.end(), shadow_.begin());
  } catch (...) {
    slots.close();
    throw;
  }
}

void RowFile::close() noexcept {
  is_closed_ = true;
  slots.close();
}

// Before anything is done with rows.
void RowFile::use() {
  if (is_closed_) throw RowsFailed(slots.path + ": this server is closed, and has given its rows back");
  if (!slots.is_open()) claim();
}

// The last new row is in the file then.
void RowFile::finish() {
  if (pending_ >= 0) slots.write(pending_, new_);
  pending_ = -1;
}

// -- an arrival

void RowFile::expect(int64_t client) noexcept {
  if (slots.is_open()) slots.ask_ahead(client, 0, slots.shape.stride());
}

void RowFile::plan(const RowStep& arrival) {
  use();
  const Blocking out;
  client_ = arrival.client;
  terms_ = *arrival.terms;
  finish();
  if (arrival.replaces) slots.read(client_, old_);
  aside_ = is_aside() ? shadow_ : std::vector<double>();
  slots.reserve();
  due_.clear();
  char* free = static_cast<char*>(due_rows_.get());
  for (int64_t turn = done(); turn < next(); ++turn, free += slots.shape.part_bytes()) {
    const int64_t client = client_of(turn), window = window_of(turn);
    due_.emplace_back();
    if (!will_weigh(arrival, client)) continue;
    const bool is_new = client == client_;
    due_.back() = is_new ? slots.shape.part(place(client), window) : slots.read(client, window, free);
  }
}

// Whether a client's row is in the sum when this arrival is over.
bool RowFile::will_weigh(const RowStep& arrival, int64_t client) const {
  if (client == client_) return arrival.entering != 0.0f;
  const auto term = std::lower_bound(terms_.begin(), terms_.end(), std::make_pair(client, -HUGE_VALF));
  if (term != terms_.end() && term->first == client) return term->second > 0.0f;
  return (*arrival.weights)[static_cast<size_t>(client)] != 0.0f;
}

const std::vector<RowJob>& RowFile::jobs(int64_t window, double* shadow) {
  jobs_.clear();  // which keeps its memory
  for (int64_t block = 0; block * kBlock < slots.shape.elements(window); ++block)
    jobs_.push_back({block, 0, 1, shadow + block * kBlock});
  return jobs_;
}

void RowFile::add(Runner& runner, const Row& part, int64_t window, float weight, double* shadow) {
  const Rows rows{slots.shape.format, slots.shape.elements(window), 1, part.data, part.scales};
  runner.add_rows(rows, jobs(window, shadow), nullptr, weight);
}

// A row that weighs so much comes into the sum, or with a negative weight leaves it. Rows that the window which is
// begun has not reached are added up when their turn comes. `part`: that window.
void RowFile::follow(Runner& runner, int64_t client, const Row& part, float weight) {
  if (weight != 0.0f && client < client_of(done()))
    add(runner, part, window_of(done()), weight, is_aside() ? aside_.data() : shadow_.data());
}

void RowFile::leaves(Runner& runner, int64_t client, float weight) {
  follow(runner, client, slots.shape.part(read(client), window_of(done())), -weight);
}

void RowFile::enters(Runner& runner, int64_t client, float weight) {
  follow(runner, client, slots.shape.part(place(client), window_of(done())), weight);
}

void RowFile::add_terms(Runner& runner, float* sum) {
  const Blocking out;
  const Block held = block_of(static_cast<size_t>(slots.shape.part_bytes()));
  for (int64_t window = 0; window < slots.shape.windows(); ++window)
    for (const auto& [client, weight] : terms_) {
      const Row part = slots.read(client, window, static_cast<char*>(held.get()));
      const Rows one{slots.shape.format, slots.shape.elements(window), 1, part.data, part.scales};
      cpu::add_row(one, weight, sum + window * RowShape::kWindow);
      if (window == window_of(done())) follow(runner, client, part, weight);
    }
}

void RowFile::advance(Runner& runner, const float* weights, float* sum) {
  if (is_aside()) shadow_.swap(aside_);
  for (int64_t turn = done(); turn < next(); ++turn) {
    const int64_t window = window_of(turn), client = client_of(turn);
    const Row& part = due_[static_cast<size_t>(turn - done())];
    if (client == 0) std::fill(shadow_.begin(), shadow_.end(), 0.0);
    if (part.data != nullptr) add(runner, part, window, weights[client], shadow_.data());
    if (client + 1 == slots.clients())
      runner.settle_rows(jobs(window, shadow_.data()), sum + window * RowShape::kWindow, slots.shape.elements(window));
  }
}

void RowFile::put() noexcept {
  const Blocking out;
  slots.move(client_);
  pending_ = client_;
  try {
    finish();
  } catch (const std::exception&) {  // whoever needs it tries again, and says so
  }
  ++arrivals_;
  for (int64_t turn = done(); turn < next(); ++turn) {
    const int64_t client = client_of(turn), window = window_of(turn), count = slots.shape.elements(window);
    slots.ask_ahead(client, slots.shape.data_at(window), slots.shape.data_bytes(count));
    slots.ask_ahead(client, slots.shape.scales_at(window), slots.shape.scale_bytes(count));
  }
}

int64_t RowFile::nbytes() const {
  const RowShape& shape = slots.shape;
  return (old_ ? 2 * shape.stride() + most_due() * shape.part_bytes() : 0) + slots.nbytes() +
         static_cast<int64_t>(shadow_.size() * sizeof(double));
}

// -- checkpoints

RowFile::Cut RowFile::cut() {
  use();
  const Blocking out;
  finish();
  return {slots.cut(), arrivals_, client_of(done()) == 0 ? std::vector<double>() : shadow_};
}

// -- rows that are lost

std::vector<int64_t> RowFile::find_lost(const std::vector<float>& weights) {
  const Blocking out;
  std::vector<int64_t> found;
  for (int64_t client = 0; client < slots.clients(); ++client) try {
      if (weights[static_cast<size_t>(client)] != 0.0f) slots.read(client, old_);
    } catch (const RowDamaged&) {
      found.push_back(client);
    }
  return found;
}

void RowFile::give_up(Runner& runner, const std::vector<float>& weights, const std::vector<int64_t>& lost_ones,
                      float* sum) {
  use();
  {
    const Blocking out;
    finish();
    const RowShape& shape = slots.shape;
    const Block held = block_of(static_cast<size_t>(shape.part_bytes()));
    std::vector<float> left = weights, fresh(static_cast<size_t>(shape.size));
    for (const int64_t client : lost_ones) left[static_cast<size_t>(client)] = 0.0f;
    std::vector<double> shadow(shadow_.size()), begun(shadow_.size());
    for (int64_t window = 0; window < shape.windows(); ++window) {
      std::fill(shadow.begin(), shadow.end(), 0.0);
      for (int64_t client = 0; client < slots.clients(); ++client) {
        if (window == window_of(done()) && client == client_of(done())) begun = shadow;
        const float weight = left[static_cast<size_t>(client)];
        if (weight == 0.0f) continue;
        add(runner, slots.read(client, window, static_cast<char*>(held.get())), window, weight, shadow.data());
      }
      runner.settle_rows(jobs(window, shadow.data()), &fresh[window * RowShape::kWindow], shape.elements(window));
    }
    std::copy(fresh.begin(), fresh.end(), sum);
    shadow_.swap(begun);
  }
  for (const int64_t client : lost_ones) slots.drop(client);
  lost += static_cast<int64_t>(lost_ones.size());
  if (on_loss) on_loss(lost_ones);
}

}  // namespace fastagg::store
