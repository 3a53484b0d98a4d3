#include "row_file.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <random>

#include "../cpu/pool.h"
#include "blocking.h"

namespace fastagg::store {

RowFile::RowFile(const Setting& setting, std::string path)
    : setting_(setting),
      path_(std::move(path)),
      windows_{setting.format, setting.size},
      places_(setting.clients, windows_.count(), setting.keep),
      sweep_(windows_, setting.clients),
      asked_(static_cast<size_t>(setting.clients), -1) {}

void RowFile::close() noexcept {
  closed_ = true;
  file_.close();
}

// Before anything is done with rows.
void RowFile::use() {
  if (closed_) throw RowsFailed(path_ + ": this server is closed, and has given its rows back");
  if (!file_.is_open()) claim();
}

// Calls `act`, which may throw, with every window of a row, in several threads.
template <typename Act>
void RowFile::in_windows(Act act) const {
  std::atomic<bool> failed{false};
  std::exception_ptr error;
  auto one = [&](int64_t window) noexcept {
    try {
      act(window);
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  };
  cpu::parallel(windows_.count(), 2 * windows_.stride(), one);
  if (error) std::rethrow_exception(error);
}

// The last new row is in the file then.
void RowFile::finish() {
  if (pending_ < 0) return;
  in_windows([&](int64_t window) {
    const Row part = windows_.part(place(client_), window);
    windows_.write(file_, pending_, window, part);
    places_.set_sum(pending_, window, windows_.sum(part, window));
  });
  pending_ = -1;
}

// -- what is read

void RowFile::check(const Row& part, int64_t window, int64_t client) const {
  const int64_t slot = places_.of(client);
  if (windows_.sum(part, window) != places_.sums(slot)[window])
    throw RowDamaged(client, path_ + ": client " + std::to_string(client) + "'s row is damaged (slot " +
                                 std::to_string(slot) + "): its checksum is another");
}

Row RowFile::read_row(int64_t client, const Block& into) {
  if (places_.of(client) == pending_) finish();
  const Row row = windows_.row_at(bytes(into));
  in_windows([&](int64_t window) {
    const Row part = windows_.part(row, window);
    windows_.read_to(file_, places_.of(client), window, part);
    check(part, window, client);
  });
  counts_.read += windows_.stride();
  return row;
}

Row RowFile::read_window(int64_t client, int64_t window, char* into) {
  if (places_.of(client) == pending_) finish();
  const Row part = windows_.read(file_, places_.of(client), window, into);
  counts_.read += windows_.read_bytes();
  check(part, window, client);
  return part;
}

bool RowFile::copy_row(int64_t client, std::vector<char>& into) {
  use();
  const Blocking out;
  if (places_.of(client) < 0) return false;
  const Block row = block_of(static_cast<size_t>(windows_.stride()));
  read_row(client, row);
  into.assign(bytes(row), bytes(row) + windows_.stride());
  return true;
}

// -- an arrival

// Rows are asked for as long as there is memory for them. A client that never answers does not keep its share for ever:
// it is forgotten when all others may have answered.
void RowFile::expect(int64_t client) noexcept {
  const int64_t slot = is_open() ? places_.of(client) : -1;
  int64_t& asked = asked_[static_cast<size_t>(client)];
  if (slot < 0 || asked >= 0 || (asked_count_ + 1) * windows_.stride() > setting_.memory) return;
  asked = sweep_.arrivals();
  ++asked_count_;
  file_.ask_ahead(slot, 0, windows_.stride());
}

void RowFile::forget_ask(int64_t client) noexcept {
  int64_t& asked = asked_[static_cast<size_t>(client)];
  asked_count_ -= asked >= 0;
  asked = -1;
}

void RowFile::plan(const RowStep& arrival) {
  use();
  const Blocking out;
  client_ = arrival.client;
  sweep_.drop_aside();
  if (arrival.replaces) read_row(client_, old_);
  terms_ = *arrival.terms;
  if (is_aside()) sweep_.begin_copy();
  places_.reserve(file_);
  plan_due(arrival);
  finish();
}

float RowFile::next_weight(const RowStep& arrival, int64_t client) const {
  if (client == client_) return arrival.entering;
  const auto term = std::lower_bound(terms_.begin(), terms_.end(), std::make_pair(client, -HUGE_VALF));
  if (term != terms_.end() && term->first == client) return std::max(0.0f, term->second);
  return (*arrival.weights)[static_cast<size_t>(client)];
}

// What this arrival's scrub reads.
void RowFile::plan_due(const RowStep& arrival) {
  due_.clear();
  for (int64_t turn = sweep_.done(); turn < sweep_.next(); ++turn) {
    const int64_t client = sweep_.client_of(turn), window = sweep_.window_of(turn);
    due_.push_back({turn, {}, next_weight(arrival, client)});
    if (due_.back().weight == 0.0f) continue;
    if (client == client_) {
      due_.back().row = windows_.part(place(client), window);
      continue;
    }
    while (window_rows_.size() < due_.size())
      window_rows_.push_back(block_of(static_cast<size_t>(windows_.read_bytes())));
    due_.back().row = read_window(client, window, bytes(window_rows_[due_.size() - 1]));
  }
}

void RowFile::leaves(Runner& runner, int64_t client, float weight) {
  sweep_.follow(runner, client, read(client), -weight);
}

void RowFile::enters(Runner& runner, int64_t client, float weight) {
  sweep_.follow(runner, client, place(client), weight);
}

void RowFile::add_terms(Runner& runner, float* sum) {
  const Blocking out;
  const Block read = block_of(static_cast<size_t>(windows_.read_bytes()));
  const int64_t begun = sweep_.window_of(sweep_.done());
  for (int64_t window = 0; window < windows_.count(); ++window)
    for (const auto& [client, weight] : terms_) {
      const Row part = read_window(client, window, bytes(read));
      const Rows one{windows_.format, windows_.elements(window), 1, part.data, part.scales};
      cpu::add_row(one, weight, sum + window * Windows::kSize);
      if (window == begun) sweep_.follow_part(runner, client, part, weight);
    }
}

void RowFile::advance(Runner& runner, const float*, float* sum) {
  if (is_aside()) sweep_.take_aside();
  for (const Due& due : due_) sweep_.take(runner, due.turn, due.row, due.weight, sum);
}

void RowFile::put() noexcept {
  const Blocking out;
  if (places_.of(client_) >= 0) ++(asked_[static_cast<size_t>(client_)] >= 0 ? counts_.ahead : counts_.cold);
  pending_ = places_.move(client_);
  counts_.written += windows_.stride();
  try {
    finish();
  } catch (const std::exception&) {  // whoever needs it tries again, and says so
  }
  sweep_.commit();
  forget_ask(client_);
  const int64_t other = sweep_.arrivals() % setting_.clients, asked = asked_[static_cast<size_t>(other)];
  if (asked >= 0 && sweep_.arrivals() - asked > setting_.clients) forget_ask(other);
  for (int64_t turn = sweep_.done(); turn < sweep_.next(); ++turn)
    if (const int64_t slot = places_.of(sweep_.client_of(turn)); slot >= 0)
      windows_.ask_ahead(file_, slot, sweep_.window_of(turn));
}

int64_t RowFile::nbytes() const {
  return (old_ ? 2 : 0) * windows_.stride() + static_cast<int64_t>(window_rows_.size()) * windows_.read_bytes() +
         places_.nbytes() + sweep_.nbytes() + static_cast<int64_t>(asked_.size() * sizeof(int64_t));
}

// -- checkpoints

// The system takes what a failed sync left behind for written, and a later sync succeeds without it. So every row that
// no successful sync has seen is written again. No checkpoint refers to its slot.
void RowFile::write_again() {
  const Block row = block_of(static_cast<size_t>(windows_.stride()));
  for (int64_t client = 0; client < setting_.clients; ++client) {
    if (!places_.is_new(client)) continue;
    read_row(client, row);
    file_.write(places_.of(client), 0, windows_.stride(), row.get());
    counts_.written += windows_.stride();
  }
}

void RowFile::sync() {
  if (!is_open()) return;
  const Blocking out;
  const std::lock_guard<std::mutex> lock(syncs_);
  sync_file();
}

void RowFile::sync_file() {
  try {
    file_.sync();
  } catch (...) {
    synced_ = false;
    throw;
  }
}

RowFile::Cut RowFile::cut() {
  use();
  const Blocking out;
  const std::lock_guard<std::mutex> lock(syncs_);  // else one of two could take the other's failure for nothing
  finish();
  if (!synced_) write_again();
  sync_file();
  synced_ = true;
  return {places_.cut(), sweep_.arrivals(), sweep_.begun()};
}

void RowFile::load(const Cut& cut, const std::vector<Places::CountingCut>& others, int64_t last) {
  take_file(SlotFile::kKeep, [&] {
    sweep_.check(cut.arrivals, cut.begun);
    places_.load(cut.places, others, last, file_.slots());
    sweep_.load(cut.arrivals, cut.begun);
  });
}

void RowFile::open() {
  take_file(SlotFile::kMake, [] {});
}

// Opens the file, or leaves it closed.
void RowFile::take_file(SlotFile::Use use, const std::function<void()>& load) {
  const auto stride = static_cast<size_t>(windows_.stride());
  old_ = block_of(stride);
  new_ = block_of(stride);
  std::memset(new_.get(), 0, stride);  // the ends of its pages are never written to
  file_.open(path_, windows_.stride(), use);
  try {
    load();
  } catch (...) {
    file_.close();
    throw;
  }
}

std::vector<int64_t> RowFile::damaged(const Places::Cut& cut, int64_t most) const {
  Blocking out;
  std::vector<int64_t> with, found;
  for (size_t client = 0; client < cut.slots.size(); ++client)
    if (cut.slots[client] >= 0) with.push_back(static_cast<int64_t>(client));
  const auto rows = static_cast<int64_t>(with.size()), windows = windows_.count();
  if (cut.sums.size() != with.size() * static_cast<size_t>(windows))
    throw std::invalid_argument("rows of another number of clients or parameters");
  if (rows == 0) return found;
  SlotFile file;
  file.open(path_, windows_.stride(), SlotFile::kRead);
  const Block read = block_of(static_cast<size_t>(windows_.stride()));
  const auto good = [&](int64_t row) {
    const int64_t client = with[static_cast<size_t>(row)], slot = cut.slots[static_cast<size_t>(client)];
    if (slot >= file.slots()) return false;
    try {
      file.read(slot, 0, windows_.stride(), read.get());
    } catch (const RowsFailed&) {  // a bad place on the disk
      return false;
    }
    for (int64_t window = 0; window < windows; ++window)
      if (windows_.sum(windows_.part(windows_.row_at(bytes(read)), window), window) !=
          cut.sums[static_cast<size_t>(row * windows + window)])
        return false;
    return true;
  };
  const int64_t every = std::max<int64_t>(1, (rows * windows_.stride() + most - 1) / most);
  const int64_t first = std::random_device{}() % every;
  bool all = every == 1;
  for (int64_t row = first; row < rows && !all; row += every, out.check()) all = !good(row);
  for (int64_t row = 0; row < rows && all; ++row, out.check())
    if (!good(row)) found.push_back(with[static_cast<size_t>(row)]);
  return found;
}

// -- rows that are lost

std::vector<int64_t> RowFile::find_lost(const std::vector<float>& weights) {
  const Blocking out;
  std::vector<int64_t> lost;
  for (int64_t client = 0; client < setting_.clients; ++client) {
    if (weights[static_cast<size_t>(client)] == 0.0f) continue;
    try {
      read_row(client, old_);
    } catch (const RowDamaged&) {
      lost.push_back(client);
    }
  }
  return lost;
}

void RowFile::give_up(Runner& runner, const std::vector<float>& weights, const std::vector<int64_t>& lost, float* sum) {
  use();
  {
    const Blocking out;
    finish();
    const Block read = block_of(static_cast<size_t>(windows_.read_bytes()));
    std::vector<float> left = weights;
    for (const int64_t client : lost) left[static_cast<size_t>(client)] = 0.0f;
    places_.make_room_for(lost.size());
    sweep_.rebuild(
        runner, left, [&](int64_t client, int64_t window) { return read_window(client, window, bytes(read)); }, sum);
  }
  for (const int64_t client : lost) places_.drop(client);
  counts_.lost += static_cast<int64_t>(lost.size());
  if (on_loss) on_loss(lost);
}

}  // namespace fastagg::store
