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
  if (transfers_.is_forked()) {  // a child has no device
    static_cast<void>(device_.release());
    return;
  }
  if (device_) {
    try {
      device_->copies().settle();
    } catch (const std::exception&) {  // a device that does not work any more does not copy either
    }
    frames_.unpin_memory();
  }
  file_.close();
}

// Before anything is done with rows.
void Tiers::use() {
  if (closed_) throw SlotsFailed(path_ + ": this server is closed, and has given its rows back");
  if (!file_.is_open()) claim();
  transfers_.check_process();
}

void Tiers::use_device(std::shared_ptr<Copies> copies, int64_t bytes, DeviceRows::Allocate memory) {
  const DeviceRows::Setting setting{windows_, setting_.clients, bytes, frames(), frames_.aheads(), sweep_.most_turns()};
  device_ = std::make_unique<DeviceRows>(setting, std::move(copies), std::move(memory));
  frames_.use_device(device_.get());
  transfers_.use_device(device_.get());
}

// Room on the device for `least` rows, and for one more that is waited for, where the number of its frames is free.
void Tiers::make_device_room(int64_t least) {
  int64_t more = 0;
  {
    const Lock lock(transfers_.mutex());
    more = device_->wanted(least);
  }
  if (more <= 0) return;
  Vector memory = device_->memory_for(more);  // without the mutex: it may ask the host language
  const Lock lock(transfers_.mutex());
  if (!memory) return device_->stay();
  device_->add(std::move(memory), more);
}

void Tiers::before_sending() {
  if (device_ && is_open()) make_device_room(0);
}

void Tiers::expect(int64_t client) noexcept {
  if (!is_open()) return;
  const Lock lock(transfers_.mutex());
  if (places_.of(client) < 0) return;
  if (device_ && device_->has(client)) return device_->expect(client);
  if (const int64_t frame = frames_.of(client); frame >= 0) {
    frames_.expect(frame, true);
    if (device_ && frames_.with(client) >= 0) frames_.send(frame);
    return;
  }
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
  if (device_) device_->release();
  old_ = -1;
  old_row_ = new_row_ = {};
  there_ = false;
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
  const auto check_room = [&](const char* where, int64_t held) {
    if (least > held)
      throw SlotsFailed(path_ + ": " + std::to_string(terms.size()) + " rows leave the sum or come back at once, and " +
                        where + " holds " + std::to_string(held) + ": open it with more memory");
  };
  if (device_) {
    check_room("memory", frames());
    make_device_room(least);
    check_room("the device", device_->frames());
  }
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
  if (replaces) {
    there_ = device_ && device_->has(client_);
    if (!take_row(lock, client_, may_wait, &old_, &old_row_)) return false;
  }
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
  new_row_ = device_ ? device_->hold_new() : frames_.row_in(new_);
  places_.reserve(file_);
  if (!prepare_due(lock, weights, entering, may_wait)) return false;
  for (Due& due : due_)
    if (due.mark != nullptr) due.row = device_->stage(due.row, sweep_.window_of(due.turn), due.mark);
  return true;
}

// A client's row for the planned arrival: where the kernels find it, and the frame of the host that it needs; negative:
// none. False: it must be waited for.
bool Tiers::take_row(Lock& lock, int64_t client, bool may_wait, int64_t* frame, Row* row) {
  if (device_ && device_->has(client)) {
    *row = device_->hold(client);
    way_ = std::max(way_, Transfers::kAhead);
    return true;
  }
  const int64_t found = transfers_.fetched(lock, client, may_wait, &way_);
  if (found < 0) return false;
  frames_.pin(*frame = found);
  if (!device_) {
    *row = frames_.row_in(found);
  } else if (device_->has(client)) {  // the thread that fetched it has begun to copy it
    *row = device_->hold(client);
  } else {
    *row = device_->hold(client, frames_.at(found), frames_.mark_of(found));
  }
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
      if (client == client_ || (device_ && device_->has(client))) {
        due.row = windows_.part(client == client_ ? new_row_ : device_->hold(client), window);
        break;
      }
      if (const int64_t frame = frames_.with(client); frame >= 0) {
        due.row = windows_.part(frames_.row_in(frame), window);
        if (device_) due.mark = frames_.mark_of(frame);
        break;
      }
      const bool coming = frames_.of(client) >= 0 || ahead.state == Frames::kReading;
      if (!coming && ahead.turn == turn && ahead.slot == places_.of(client) && ahead.state == Frames::kClean) {
        due.row = windows_.read_at(frames_.ahead_at(place), window);
        if (device_) due.mark = device_->mark_of_ahead(place);
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

void Tiers::begin(Runner& runner) {
  if (device_) device_->begin(runner);
}

void Tiers::end(Runner& runner) {
  if (device_) device_->end(runner, frames_.at(new_), frames_.mark_of(new_));
}

void Tiers::advance(Runner& runner, float* sum) {
  for (const Due& due : due_) sweep_.take(runner, due.turn, due.row, due.weight, sum);
}

void Tiers::commit() noexcept {
  const Lock lock(transfers_.mutex());
  unpin_terms();
  if (device_) device_->commit(client_);
  int32_t& frame = frames_.of(client_);
  if (old_ >= 0) {
    if (frames_[old_].state == Frames::kWriting) {
      frames_[old_].orphan = true;
    } else {
      frames_.release(old_);
    }
  } else if (frame >= 0) {  // a row that is not in the sum, or that was read on the device
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
  counts_.there += there_;
  old_ = new_ = -1;
  there_ = false;
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
    if (device_ && device_->has(client)) continue;
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
    if (device_) {
      device_->start(sweep_.shadow_size());
      sweep_.lie_on(device_->copies(), device_->shadow());
    }
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
  if (device_) device_->wait(frames_.mark_of(frame));
  into.assign(frames_.at(frame), frames_.at(frame) + windows_.stride());
  return true;
}

// A window of a client's row, from a frame or the file.
Row Tiers::read_part(int64_t client, int64_t window, char* into) {
  int64_t slot = 0;
  uint32_t sum = 0;
  {
    const Lock lock(transfers_.mutex());
    if (device_ && device_->has(client)) return device_->read(client, window, into);
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
  if (device_) device_->copies().settle();  // rows that are being copied back are there
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
    if (device_) device_->drop(client);
    places_.drop(client);
  }
  counts_.lost += static_cast<int64_t>(lost.size());
}

int64_t Tiers::nbytes() const {
  const Lock lock(transfers_.mutex());
  return frames_.nbytes() + places_.nbytes() + sweep_.nbytes() + (device_ ? device_->nbytes() : 0);
}

int64_t Tiers::device_frames() const {
  const Lock lock(transfers_.mutex());
  return device_ ? device_->frames() : 0;
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
