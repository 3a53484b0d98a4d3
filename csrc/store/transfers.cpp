#include "transfers.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>

namespace fastagg::store {
namespace {

constexpr int64_t kMostWriting = 16;

}  // namespace

Transfers::Transfers(std::string path, const Windows& windows, SlotFile& file, Frames& frames, Places& places)
    : path_(std::move(path)),
      windows_(windows),
      file_(file),
      frames_(frames),
      places_(places),
      queue_(static_cast<size_t>(frames.count() + 1)),
      most_writing_(std::clamp<int64_t>(frames.count() / 2, 1, kMostWriting)) {}

void Transfers::start() {
  process_ = getpid();
  threads_->reader = std::thread([this] { reads(); });
  threads_->writer = std::thread([this] { writes(); });
}

void Transfers::end() {
  if (is_forked()) {  // it would wait for its parent's threads
    static_cast<void>(threads_.release());
    return;
  }
  {
    const Lock lock(mutex_);
    ends_ = true;
  }
  threads_->to_read.notify_all();
  threads_->to_write.notify_all();
  for (std::thread* one : {&threads_->reader, &threads_->writer})
    if (one->joinable()) one->join();
}

bool Transfers::is_forked() const { return process_ != 0 && process_ != getpid(); }

void Transfers::check_process() const {
  if (process_ != getpid()) throw SlotsFailed(path_ + ": its rows belong to the process that this one was forked from");
}

// -- what is to be read and written, by whoever has the mutex

void Transfers::push(const Ask& ask, bool first) {
  if (first) {
    asks_.push_front(ask);
  } else {
    asks_.push_back(ask);
  }
  threads_->to_read.notify_one();
}

void Transfers::ask_row(int64_t frame, int64_t client, bool first) {
  try {
    push({frame, -1, -1, client, places_.of(client)}, first);
  } catch (const std::bad_alloc&) {
    frames_.release(frame);
    throw;
  }
  Frames::Frame& one = frames_[frame];
  one.client = client, one.state = Frames::kReading;
  frames_.of(client) = static_cast<int32_t>(frame);
}

void Transfers::ask_window(int64_t turn, int64_t client, int64_t window, bool first) {
  const int64_t place = frames_.place_of(turn), slot = places_.of(client);
  push({-1, place, window, client, slot}, first);
  frames_.ahead(place) = {turn, slot, Frames::kReading};
}

void Transfers::write(int64_t frame, int64_t slot) noexcept {
  queue_[(queue_begin_ + static_cast<size_t>(writing_)) % queue_.size()] = {frame, slot};
  ++writing_;
  threads_->to_write.notify_one();
}

void Transfers::wait(Lock& lock) {
  if (!write_failed_.empty()) throw SlotsFailed(write_failed_);
  threads_->done_one.wait(lock);
}

void Transfers::drain(Lock& lock) {
  while (writing_ > 0) wait(lock);
}

int64_t Transfers::empty_frame(Lock& lock, bool may_wait) {
  for (;;) {
    const int64_t frame = frames_.take(true);
    if (frame >= 0 || !may_wait) return frame;
    wait(lock);
  }
}

void Transfers::raise_failure(int64_t client, bool asked) {
  Failure failed;
  std::swap(failed, read_failed_);
  if (!asked || failed.client != client) return;
  if (failed.damaged) throw RowDamaged(failed.client, failed.what);
  throw SlotsFailed(failed.what);
}

// Somebody waits for this frame: it is filled before what was asked for ahead of time.
void Transfers::hurry(int64_t frame) {
  const auto found = std::find_if(asks_.begin(), asks_.end(), [&](const Ask& ask) { return ask.frame == frame; });
  if (found == asks_.end()) return;  // it is being filled
  const Ask ask = *found;
  asks_.erase(found);
  asks_.push_front(ask);
}

int64_t Transfers::fetched(Lock& lock, int64_t client, bool may_wait, Way* way) {
  const int32_t& frame = frames_.of(client);
  for (bool asked = false;;) {
    if (frames_.with(client) >= 0) {
      *way = std::max(*way, kAhead);
      return frame;
    }
    if (!may_wait) return -1;
    if (frame < 0) {
      raise_failure(client, asked);
      ask_row(empty_frame(lock, true), client, true);
      asked = true;
      *way = kCold;
    } else {
      if (!asked) hurry(frame);
      *way = std::max(*way, kLate);
    }
    wait(lock);
  }
}

// -- the threads

void Transfers::check(const Row& part, int64_t window, uint32_t sum, int64_t client, int64_t slot) const {
  if (windows_.sum(part, window) != sum)
    throw RowDamaged(client, path_ + ": client " + std::to_string(client) + "'s row is damaged (slot " +
                                 std::to_string(slot) + "): its checksum is another");
}

// Reads what was asked for, and compares the checksums.
void Transfers::fill(const Ask& ask, const std::vector<uint32_t>& expected) {
  if (ask.frame < 0) {
    const Row part = windows_.read(file_, ask.slot, ask.window, frames_.ahead_at(ask.place));
    check(part, ask.window, expected[static_cast<size_t>(ask.window)], ask.client, ask.slot);
    return;
  }
  file_.read(ask.slot, 0, windows_.stride(), frames_.at(ask.frame));
  const Row row = frames_.row_in(ask.frame);
  for (int64_t window = 0; window < windows_.count(); ++window)
    check(windows_.part(row, window), window, expected[static_cast<size_t>(window)], ask.client, ask.slot);
}

void Transfers::reads() {
  Lock lock(mutex_);
  std::vector<uint32_t> expected;
  for (;;) {
    threads_->to_read.wait(lock, [this] { return ends_ || !asks_.empty(); });
    if (ends_) return;
    const Ask ask = asks_.front();
    asks_.pop_front();
    Failure failed;
    if (places_.of(ask.client) == ask.slot) {
      const uint32_t* sums = places_.sums(ask.slot);
      expected.assign(sums, sums + windows_.count());
      lock.unlock();
      try {
        fill(ask, expected);
      } catch (const RowDamaged& error) {
        failed = {ask.client, true, error.what()};
      } catch (const std::exception& error) {
        failed = {ask.client, false, error.what()};
      }
      lock.lock();
    }
    const bool wanted = places_.of(ask.client) == ask.slot, good = wanted && failed.client < 0;
    if (wanted && !good) read_failed_ = std::move(failed);
    if (ask.frame < 0) {
      frames_.ahead(ask.place).state = good ? Frames::kClean : Frames::kFree;
      bytes_read_ += windows_.read_bytes();
    } else if (const Frames::Frame& frame = frames_[ask.frame]; good && !frame.orphan) {
      frames_.clean(ask.frame);
      bytes_read_ += windows_.stride();
    } else {
      if (frames_.of(ask.client) == ask.frame) frames_.of(ask.client) = -1;
      frames_.release(ask.frame);
    }
    threads_->done_one.notify_all();
  }
}

void Transfers::writes() {
  Lock lock(mutex_);
  std::vector<uint32_t> found(static_cast<size_t>(windows_.count()));
  for (;;) {
    threads_->to_write.wait(lock, [this] { return ends_ || writing_ > 0; });
    if (ends_) return;  // what no checkpoint knows of is of no use to anybody
    const auto [frame, slot] = queue_[queue_begin_];
    lock.unlock();
    std::string failed;
    try {
      for (int64_t window = 0; window < windows_.count(); ++window)
        found[static_cast<size_t>(window)] = windows_.sum(windows_.part(frames_.row_in(frame), window), window);
      file_.write(slot, frames_.at(frame));
    } catch (const std::exception& error) {
      failed = error.what();
    }
    lock.lock();
    write_failed_ = failed;
    if (!failed.empty()) {  // the row stays in memory, and is tried again: a disk may be freed
      threads_->done_one.notify_all();
      threads_->to_write.wait_for(lock, std::chrono::milliseconds(200), [this] { return ends_; });
      continue;
    }
    places_.set_sums(slot, found);
    queue_begin_ = (queue_begin_ + 1) % queue_.size();
    --writing_;
    bytes_written_ += windows_.stride();
    if (Frames::Frame& one = frames_[frame]; one.orphan) {
      frames_.release(frame);
    } else if (one.pinned) {
      one.state = Frames::kPlanned;
    } else {
      frames_.clean(frame);
    }
    threads_->done_one.notify_all();
  }
}

}  // namespace fastagg::store
