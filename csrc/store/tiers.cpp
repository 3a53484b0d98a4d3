#include "tiers.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "../cpu/cpu.h"
#include "../runner.h"
#include "blocking.h"

namespace fastagg::store {
namespace {

constexpr int64_t kLeastFrames = 4;  // an arrival's two, one that is written, one that is fetched

int64_t frames_within(const Tiers::Setting& setting, int64_t stride) {
  const int64_t count = std::min(setting.memory / stride, 2 * setting.clients + kLeastFrames);
  if (count < kLeastFrames)
    throw std::invalid_argument("memory: " + std::to_string(setting.memory) + " bytes hold " + std::to_string(count) +
                                " rows of " + std::to_string(stride) + " bytes, and an arrival needs " +
                                std::to_string(kLeastFrames));
  return count;
}

}  // namespace

Tiers::Tiers(const Setting& setting, std::string path)
    : setting_(setting),
      path_(std::move(path)),
      windows_{setting.format, setting.size},
      places_(setting.clients, windows_.count(), setting.keep),
      sweep_(windows_, setting.clients),
      frames_(windows_, setting.clients, frames_within(setting, windows_.stride()), 2 * sweep_.most_turns() + 2),
      transfers_(path_, windows_, file_, frames_, places_) {
  due_.reserve(static_cast<size_t>(sweep_.most_turns()));
}

Tiers::~Tiers() { close(); }

void Tiers::close() noexcept {
  if (closed_) return;
  closed_ = true;
  transfers_.end();
  if (!transfers_.is_forked()) file_.close();
}

// Before anything is done with rows.
void Tiers::use() {
  if (closed_) throw SlotsFailed(path_ + ": this server is closed, and has given its rows back");
  if (!file_.is_open()) claim();
  transfers_.check_process();
}

void Tiers::expect(int64_t client) noexcept {
  if (!is_open()) return;
  const Lock lock(transfers_.mutex());
  if (places_.of(client) < 0) return;
  if (const int64_t frame = frames_.of(client); frame >= 0) return frames_.expect(frame, true);
  const int64_t frame = frames_.take(false);
  if (frame < 0) return;  // all of memory is for clients that were asked before it
  try {
    transfers_.ask_row(frame, client, false);
  } catch (const std::bad_alloc&) {
    return;
  }
  frames_[frame].expected = true;
}

void Tiers::unplan() {
  if (old_ >= 0) frames_.unpin(old_);
  unpin_terms();
  old_ = -1;
  old_row_ = new_row_ = {};
  way_ = Transfers::kNone;
  due_.clear();
  sweep_.drop_aside();
}

void Tiers::unpin_terms() {
  for (const int64_t frame : term_frames_)
    if (frame >= 0) frames_.unpin(frame);
  term_frames_.clear();
  term_rows_.clear();
}

void Tiers::plan(int64_t client, bool replaces, const Terms& terms, const std::vector<float>& weights, float entering) {
  use();
  const int64_t least = static_cast<int64_t>(terms.size()) + kLeastFrames;
  {
    Lock lock(transfers_.mutex());
    unplan();
    in_windows_ = least > frames();
    client_ = client;
    terms_ = terms;
    term_frames_.reserve(terms.size());
    term_rows_.reserve(terms.size());
    if (prepare(lock, replaces, weights, entering, false)) return;
  }
  const Blocking out;
  Lock lock(transfers_.mutex());
  unplan();
  prepare(lock, replaces, weights, entering, true);
}

bool Tiers::prepare(Lock& lock, bool replaces, const std::vector<float>& weights, float entering, bool may_wait) {
  while (!transfers_.may_write()) {
    if (!may_wait) return false;
    transfers_.wait(lock);
  }
  if (replaces && !take_row(lock, client_, may_wait, &old_, &old_row_)) return false;
  for (size_t term = term_frames_.size(); term < terms_.size() && !in_windows_; ++term) {
    term_frames_.push_back(-1);
    term_rows_.emplace_back();
    if (take_row(lock, terms_[term].first, may_wait, &term_frames_.back(), &term_rows_.back())) continue;
    term_frames_.pop_back();
    term_rows_.pop_back();
    return false;
  }
  if (new_ < 0) {
    new_ = transfers_.empty_frame(lock, may_wait);
    if (new_ < 0) return false;
    frames_[new_].state = Frames::kPlanned;
  }
  new_row_ = frames_.row_in(new_);
  places_.reserve(file_);
  return prepare_due(lock, weights, entering, may_wait);
}

// A client's row for the planned arrival, and its frame. False: it must be waited for.
bool Tiers::take_row(Lock& lock, int64_t client, bool may_wait, int64_t* frame, Row* row) {
  const int64_t found = transfers_.fetched(lock, client, may_wait, &way_);
  if (found < 0) return false;
  frames_.pin(*frame = found);
  *row = frames_.row_in(found);
  return true;
}

float Tiers::next_weight(int64_t client, const std::vector<float>& weights, float entering) const {
  if (client == client_) return entering;
  const auto term = std::lower_bound(terms_.begin(), terms_.end(), std::make_pair(client, -HUGE_VALF));
  if (term != terms_.end() && term->first == client) return std::max(0.0f, term->second);
  return weights[static_cast<size_t>(client)];
}

// What this arrival's scrub reads. No frame changes its row from here to the commit: only arrivals and tasks do that.
bool Tiers::prepare_due(Lock& lock, const std::vector<float>& weights, float entering, bool may_wait) {
  due_.clear();
  for (int64_t turn = sweep_.done(); turn < sweep_.next(); ++turn) {
    const int64_t client = sweep_.client_of(turn), window = sweep_.window_of(turn), place = frames_.place_of(turn);
    Due due{turn, {}, next_weight(client, weights, entering)};
    const Frames::Ahead& ahead = frames_.ahead(place);
    for (bool asked = false; due.weight != 0.0f;) {
      if (client == client_) {
        due.row = windows_.part(new_row_, window);
        break;
      }
      if (const int64_t frame = frames_.with(client); frame >= 0) {
        due.row = windows_.part(frames_.row_in(frame), window);
        break;
      }
      const bool coming = frames_.of(client) >= 0 || ahead.state == Frames::kReading;
      if (!coming && ahead.turn == turn && ahead.slot == places_.of(client) && ahead.state == Frames::kClean) {
        due.row = windows_.read_at(frames_.ahead_at(place), window);
        break;
      }
      if (!may_wait) return false;
      if (!coming) {
        transfers_.raise_failure(client, asked);
        transfers_.ask_window(turn, client, window, true);
        asked = true;
      }
      transfers_.wait(lock);
    }
    due_.push_back(due);
  }
  return true;
}

void Tiers::advance(Runner& runner, float* sum) {
  for (const Due& due : due_) sweep_.take(runner, due.turn, due.row, due.weight, sum);
}

void Tiers::commit() noexcept {
  const Lock lock(transfers_.mutex());
  unpin_terms();
  int32_t& frame = frames_.of(client_);
  if (old_ >= 0) {
    if (frames_[old_].state == Frames::kWriting) {
      frames_[old_].orphan = true;
    } else {
      frames_.release(old_);
    }
  } else if (frame >= 0) {  // a row that is not in the sum
    if (frames_[frame].state == Frames::kClean) {
      frames_.drop(frame);
    } else {
      frames_[frame].orphan = true;
    }
  }
  Frames::Frame& fresh = frames_[new_];
  fresh.client = client_, fresh.state = Frames::kWriting, fresh.expected = false, fresh.orphan = false;
  frame = static_cast<int32_t>(new_);
  transfers_.write(new_, places_.move(client_));
  counts_.ahead += way_ == Transfers::kAhead;
  counts_.late += way_ == Transfers::kLate;
  counts_.cold += way_ == Transfers::kCold;
  old_ = new_ = -1;
  way_ = Transfers::kNone;
  due_.clear();
  sweep_.commit();
  ask_ahead();
}

// Windows of the scrub of the next two arrivals, unless their rows are in memory. Not of more: a row that changes twice
// meanwhile may be in the same slot again, and what was read of it would be taken for what it is now.
void Tiers::ask_ahead() noexcept {
  const int64_t until = std::min(sweep_.done() + frames_.aheads(), sweep_.next(1));
  for (int64_t turn = sweep_.done(); turn < until; ++turn) {
    const int64_t client = sweep_.client_of(turn);
    const Frames::Ahead& ahead = frames_.ahead(frames_.place_of(turn));
    if (ahead.turn == turn || ahead.state == Frames::kReading || places_.of(client) < 0 || frames_.of(client) >= 0)
      continue;
    try {
      transfers_.ask_window(turn, client, sweep_.window_of(turn), false);
    } catch (const std::bad_alloc&) {
      return;
    }
  }
}

// -- checkpoints

Tiers::Cut Tiers::cut() {
  use();
  const Blocking out;
  Lock lock(transfers_.mutex());
  transfers_.drain(lock);
  lock.unlock();
  file_.sync();
  lock.lock();
  return {places_.cut(), sweep_.arrivals(), sweep_.begun()};
}

std::vector<int64_t> Tiers::kept_with(int64_t number) const {
  const Lock lock(transfers_.mutex());
  return places_.kept_with(number);
}

void Tiers::confirm(int64_t number) {
  const Lock lock(transfers_.mutex());
  places_.confirm(number);
}

void Tiers::load(const Cut& cut) {
  take_file(SlotFile::kKeep, [&] {
    sweep_.check(cut.arrivals, cut.begun);
    places_.load(cut.places, file_.slots());
    sweep_.load(cut.arrivals, cut.begun);
  });
}

void Tiers::open() {
  take_file(SlotFile::kMake, [] {});
}

// Opens the file and begins to read and write, or leaves it closed.
void Tiers::take_file(SlotFile::Use use, const std::function<void()>& load) {
  file_.open(path_, windows_.stride(), use);
  try {
    load();
    frames_.map();
    transfers_.start();
  } catch (...) {
    file_.close();
    throw;
  }
}

bool Tiers::copy_row(int64_t client, std::vector<char>& into) {
  use();
  const Blocking out;
  Lock lock(transfers_.mutex());
  if (places_.of(client) < 0) return false;
  Transfers::Way way = Transfers::kNone;
  const int64_t frame = transfers_.fetched(lock, client, true, &way);
  into.assign(frames_.at(frame), frames_.at(frame) + windows_.stride());
  return true;
}

// A window of a client's row, from a frame or the file.
Row Tiers::read_part(int64_t client, int64_t window, char* into) {
  int64_t slot = 0;
  uint32_t sum = 0;
  {
    const Lock lock(transfers_.mutex());
    if (const int64_t frame = frames_.with(client); frame >= 0) return windows_.part(frames_.row_in(frame), window);
    slot = places_.of(client);
    sum = places_.sums(slot)[window];
  }
  const Row part = windows_.read(file_, slot, window, into);
  transfers_.check(part, window, sum, client, slot);
  return part;
}

std::vector<int64_t> Tiers::damaged(const Places::Cut& cut, int64_t most) const {
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
  const Mapped read(windows_.stride());
  const auto good = [&](int64_t row) {
    const int64_t client = with[static_cast<size_t>(row)], slot = cut.slots[static_cast<size_t>(client)];
    if (slot >= file.slots()) return false;
    try {
      file.read(slot, 0, windows_.stride(), read.data());
    } catch (const SlotsFailed&) {  // a bad place on the disk
      return false;
    }
    for (int64_t window = 0; window < windows; ++window)
      if (windows_.sum(windows_.part(windows_.row_at(read.data()), window), window) !=
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

void Tiers::find_lost(const std::vector<float>& weights, std::vector<int64_t>* lost) {
  const Blocking out;
  const Mapped read(windows_.read_bytes());
  for (int64_t client = 0; client < setting_.clients; ++client) {
    if (weights[static_cast<size_t>(client)] == 0.0f) continue;
    try {
      for (int64_t window = 0; window < windows_.count(); ++window) read_part(client, window, read.data());
    } catch (const RowDamaged&) {
      if (std::find(lost->begin(), lost->end(), client) == lost->end()) lost->push_back(client);
    }
  }
}

void Tiers::rebuild(Runner& runner, const std::vector<float>& weights, const std::vector<int64_t>& lost, float* sum) {
  const Blocking out;
  const Mapped read(windows_.read_bytes());
  std::vector<float> left = weights;
  for (const int64_t client : lost) left[static_cast<size_t>(client)] = 0.0f;
  {
    const Lock lock(transfers_.mutex());
    places_.make_room_for(lost.size());
  }
  sweep_.rebuild(
      runner, left, [&](int64_t client, int64_t window) { return read_part(client, window, read.data()); }, sum);
  const Lock lock(transfers_.mutex());
  unplan();
  for (const int64_t client : lost) {
    if (const int64_t frame = frames_.with(client); frame >= 0) {
      frames_.drop(frame);
      frames_.of(client) = -1;
    }
    places_.drop(client);
  }
  counts_.lost += static_cast<int64_t>(lost.size());
}

int64_t Tiers::nbytes() const {
  const Lock lock(transfers_.mutex());
  return frames_.nbytes() + places_.nbytes() + sweep_.nbytes();
}

int64_t Tiers::nbytes_on_disk() const { return file_.slots() * windows_.stride(); }

void Tiers::move_in_windows(Runner& runner, float* sum) {
  const Blocking out;
  const Mapped read(windows_.read_bytes());
  const int64_t begun = sweep_.window_of(sweep_.done());
  for (int64_t window = 0; window < windows_.count(); ++window)
    for (const auto& [client, weight] : terms_) {
      const Row part = read_part(client, window, read.data());
      const Rows one{windows_.format, windows_.elements(window), 1, part.data, part.scales};
      cpu::add_row(one, weight, sum + window * Windows::kSize);
      if (window == begun) sweep_.follow_part(runner, client, part, weight);
    }
}

Tiers::Counts Tiers::counts() const {
  const Lock lock(transfers_.mutex());
  Counts counts = counts_;
  counts.read = transfers_.bytes_read(), counts.written = transfers_.bytes_written();
  return counts;
}

}  // namespace fastagg::store
