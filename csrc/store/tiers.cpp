#include "tiers.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "../cpu/cpu.h"
#include "../runner.h"
#include "blocking.h"

namespace fastagg::store {
namespace {

constexpr int64_t kLeastFrames = 4;  // an arrival's two, one that is written, one that is fetched
constexpr int64_t kMostWriting = 16;

char* mapped(int64_t bytes) {
  void* found = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  madvise(found, static_cast<size_t>(bytes), MADV_HUGEPAGE);
#endif
  return static_cast<char*>(found);
}

// Memory for a window that is read.
class ReadMemory {
 public:
  explicit ReadMemory(int64_t bytes) : bytes_(bytes), data_(mapped(bytes)) {}
  ~ReadMemory() { munmap(data_, static_cast<size_t>(bytes_)); }
  ReadMemory(const ReadMemory&) = delete;
  ReadMemory& operator=(const ReadMemory&) = delete;
  char* get() const { return data_; }

 private:
  int64_t bytes_;
  char* data_;
};

}  // namespace

Tiers::Tiers(const Setting& setting, std::string path)
    : setting_(setting),
      path_(std::move(path)),
      windows_{setting.format, setting.size},
      stride_(windows_.stride()),
      frame_of_(static_cast<size_t>(setting.clients), -1),
      places_(setting.clients, windows_.count(), setting.keep),
      sweep_(windows_, setting.clients) {
  const int64_t count = std::min(setting.memory / stride_, 2 * setting.clients + kLeastFrames);
  if (count < kLeastFrames)
    throw std::invalid_argument("memory: " + std::to_string(setting.memory) + " bytes hold " + std::to_string(count) +
                                " rows of " + std::to_string(stride_) + " bytes, and an arrival needs " +
                                std::to_string(kLeastFrames));
  frames_.resize(static_cast<size_t>(count));
  queue_.resize(frames_.size() + 1);
  free_frames_.reserve(frames_.size());
  for (int64_t frame = count; frame-- > 0;) free_frames_.push_back(static_cast<int32_t>(frame));
  most_writing_ = std::clamp<int64_t>(count / 2, 1, kMostWriting);
  due_.reserve(static_cast<size_t>(sweep_.most_turns()));
  ahead_.resize(static_cast<size_t>(2 * sweep_.most_turns() + 2));
}

Tiers::~Tiers() {
  if (process_ != 0 && process_ != getpid()) {  // a forked child's: it would wait for its parent's threads
    static_cast<void>(threads_.release());
    static_cast<void>(device_.release());
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
  if (device_) {
    try {
      device_->copies().settle();
    } catch (const std::exception&) {  // a device that does not work any more does not copy either
    }
    for (int64_t frame = 0; frame < pinned_; ++frame) device_->copies().unpin(at(frame));
    if (ahead_arena_ != nullptr) device_->copies().unpin(ahead_arena_);
  }
  if (arena_ != nullptr) munmap(arena_, frames_.size() * static_cast<size_t>(stride_));
  if (ahead_arena_ != nullptr) munmap(ahead_arena_, ahead_.size() * static_cast<size_t>(windows_.read_bytes()));
}

void Tiers::use_device(std::shared_ptr<Copies> copies, int64_t bytes, DeviceRows::Allocate memory) {
  const auto aheads = static_cast<int64_t>(ahead_.size()), stages = sweep_.most_turns();
  const DeviceRows::Setting setting{windows_, setting_.clients, bytes, frames(), aheads, stages};
  device_ = std::make_unique<DeviceRows>(setting, std::move(copies), std::move(memory));
}

void Tiers::check_process() const {
  if (process_ != getpid()) throw SlotsFailed(path_ + ": its rows belong to the process that this one was forked from");
}

// -- frames, by whoever has the mutex

void Tiers::link(int64_t frame) {
  Frame& one = frames_[static_cast<size_t>(frame)];
  List& list = one.expected ? expected_ : idle_;
  one.before = list.last, one.after = -1;
  (list.last < 0 ? list.first : frames_[static_cast<size_t>(list.last)].after) = static_cast<int32_t>(frame);
  list.last = static_cast<int32_t>(frame);
}

void Tiers::unlink(int64_t frame) {
  Frame& one = frames_[static_cast<size_t>(frame)];
  List& list = one.expected ? expected_ : idle_;
  (one.before < 0 ? list.first : frames_[static_cast<size_t>(one.before)].after) = one.after;
  (one.after < 0 ? list.last : frames_[static_cast<size_t>(one.after)].before) = one.before;
  one.before = one.after = -1;
}

int64_t Tiers::frame_with(int64_t client) const {
  const int32_t frame = frame_of_[static_cast<size_t>(client)];
  return frame >= 0 && frames_[static_cast<size_t>(frame)].state != kReading ? frame : -1;
}

void Tiers::release(int64_t frame) {
  frames_[static_cast<size_t>(frame)] = Frame{};
  free_frames_.push_back(static_cast<int32_t>(frame));  // it has room for all
}

// A frame that can be used for another row: free, or the one of a clean row that was used longest ago.
int64_t Tiers::victim(bool also_expected) {
  if (!free_frames_.empty()) {
    const int32_t frame = free_frames_.back();
    free_frames_.pop_back();
    if (device_ && frame == pinned_) device_->copies().pin(at(pinned_++), static_cast<size_t>(stride_));
    return frame;
  }
  const int32_t frame = idle_.first >= 0 ? idle_.first : also_expected ? expected_.first : -1;
  if (frame < 0) return -1;
  unlink(frame);
  frame_of_[static_cast<size_t>(frames_[static_cast<size_t>(frame)].client)] = -1;
  frames_[static_cast<size_t>(frame)] = Frame{};
  return frame;
}

void Tiers::wait(Lock& lock) {
  if (!write_failed_.empty()) throw SlotsFailed(write_failed_);
  threads_->done_one.wait(lock);
}

int64_t Tiers::empty_frame(Lock& lock, bool may_wait) {
  for (;;) {
    const int64_t frame = victim(true);
    if (frame >= 0 || !may_wait) return frame;
    wait(lock);
  }
}

void Tiers::fail_as_read() {
  Failure failed;
  std::swap(failed, read_failed_);
  if (failed.damaged) throw RowDamaged(failed.client, failed.what);
  throw SlotsFailed(failed.what);
}

// Somebody waits for this frame: it is filled before what was asked for ahead of time.
void Tiers::hurry(int64_t frame) {
  const auto found = std::find_if(asks_.begin(), asks_.end(), [&](const Ask& ask) { return ask.frame == frame; });
  if (found == asks_.end()) return;  // it is being filled
  const Ask ask = *found;
  asks_.erase(found);
  asks_.push_front(ask);
}

// The frame that has the client's row. Negative: it must be waited for.
int64_t Tiers::fetched(Lock& lock, int64_t client, bool may_wait) {
  int32_t& place = frame_of_[static_cast<size_t>(client)];
  for (bool asked = false;;) {
    if (place >= 0 && frames_[static_cast<size_t>(place)].state != kReading) {
      way_ = std::max(way_, kAhead);
      return place;
    }
    if (!may_wait) return -1;
    if (place < 0) {
      if (asked && read_failed_.client == client) fail_as_read();
      read_failed_ = {};
      const int64_t frame = empty_frame(lock, true);
      frames_[static_cast<size_t>(frame)].client = client;
      frames_[static_cast<size_t>(frame)].state = kReading;
      place = static_cast<int32_t>(frame);
      asks_.push_front({place, -1, client, places_.of(client)});
      threads_->to_read.notify_one();
      asked = true;
      way_ = kCold;
    } else {
      if (!asked) hurry(place);
      way_ = std::max(way_, kLate);
    }
    wait(lock);
  }
}

// -- the road of an arrival

// Room on the device for `least` rows, and for one more that is waited for, where the number of its frames is free.
void Tiers::make_device_room(int64_t least) {
  int64_t more = 0;
  {
    const Lock lock(mutex_);
    more = device_->wanted(least);
  }
  if (more <= 0) return;
  Vector memory = device_->memory_for(more);  // without the mutex: it may ask the host language
  const Lock lock(mutex_);
  if (!memory) return device_->stay();
  device_->add(std::move(memory), more);
}

void Tiers::before_sending() {
  if (device_ && is_open()) make_device_room(0);
}

// A row in a frame of the host is wanted on the device. From then on the host's frame is not needed any more.
void Tiers::ask_device(int64_t frame) noexcept {
  Frame& one = frames_[static_cast<size_t>(frame)];
  try {
    if (!device_->fetch(one.client, at(frame), mark_of(frame))) return;
  } catch (const std::exception&) {
    return;  // the arrival asks again, and says what is wrong
  }
  expected(frame, false);
}

// Whether the frame's row is one that somebody waits for.
void Tiers::expected(int64_t frame, bool is) noexcept {
  Frame& one = frames_[static_cast<size_t>(frame)];
  const bool linked = one.state == kClean;
  if (linked) unlink(frame);
  one.expected = is;
  if (linked) link(frame);
}

void Tiers::expect(int64_t client) noexcept {
  if (!is_open() || process_ != getpid()) return;
  const Lock lock(mutex_);
  const auto c = static_cast<size_t>(client);
  if (places_.of(client) < 0) return;
  if (device_ && device_->has(client)) return device_->expect(client);
  if (frame_of_[c] >= 0) {
    expected(frame_of_[c], true);
    if (device_ && frame_with(client) >= 0) ask_device(frame_of_[c]);
    return;
  }
  const int64_t frame = victim(false);
  if (frame < 0) return;  // all of memory is for clients that were asked before it
  try {
    asks_.push_back({static_cast<int32_t>(frame), -1, client, places_.of(client)});
  } catch (const std::bad_alloc&) {
    release(frame);
    return;
  }
  Frame& one = frames_[static_cast<size_t>(frame)];
  one.client = client, one.state = kReading, one.expected = true;
  frame_of_[c] = static_cast<int32_t>(frame);
  threads_->to_read.notify_one();
}

// No other row takes this frame.
void Tiers::pin(int64_t frame) {
  Frame& one = frames_[static_cast<size_t>(frame)];
  one.pinned = true;
  if (one.state != kClean) return;  // it is being written
  unlink(frame);
  one.state = kPlanned;
}

void Tiers::unpin(int64_t frame) {
  Frame& one = frames_[static_cast<size_t>(frame)];
  one.pinned = false;
  if (one.state != kPlanned) return;
  one.state = kClean;
  link(frame);
}

void Tiers::unplan() {
  if (old_ >= 0) unpin(old_);
  unpin_terms();
  if (device_) device_->release();
  old_ = -1;
  old_row_ = new_row_ = {};
  there_ = false;
  way_ = kNone;
  due_.clear();
  sweep_.drop_aside();
}

void Tiers::unpin_terms() {
  for (const int64_t frame : term_frames_)
    if (frame >= 0) unpin(frame);
  term_frames_.clear();
  term_rows_.clear();
}

void Tiers::plan(int64_t client, bool replaces, const Terms& terms, const std::vector<float>& weights, float entering) {
  if (!is_open()) claim();
  check_process();
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
    Lock lock(mutex_);
    unplan();
    in_windows_ = least > frames();
    client_ = client;
    terms_ = terms;
    term_frames_.reserve(terms.size());
    term_rows_.reserve(terms.size());
    if (prepare(lock, replaces, weights, entering, false)) return;
  }
  const Blocking out;
  Lock lock(mutex_);
  unplan();
  prepare(lock, replaces, weights, entering, true);
}

bool Tiers::prepare(Lock& lock, bool replaces, const std::vector<float>& weights, float entering, bool may_wait) {
  while (writing_ >= most_writing_) {
    if (!may_wait) return false;
    wait(lock);
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
    new_ = empty_frame(lock, may_wait);
    if (new_ < 0) return false;
    frames_[static_cast<size_t>(new_)].state = kPlanned;
  }
  new_row_ = device_ ? device_->hold_new() : row_in(new_);
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
    way_ = std::max(way_, kAhead);
    return true;
  }
  const int64_t found = fetched(lock, client, may_wait);
  if (found < 0) return false;
  pin(*frame = found);
  if (!device_) {
    *row = row_in(found);
  } else if (device_->has(client)) {  // the thread that fetched it has begun to copy it
    *row = device_->hold(client);
  } else {
    *row = device_->hold(client, at(found), mark_of(found));
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
    const int64_t client = sweep_.client_of(turn), window = sweep_.window_of(turn), slot = places_.of(client);
    Due due{turn, {}, next_weight(client, weights, entering)};
    const auto place = static_cast<int64_t>(static_cast<size_t>(turn) % ahead_.size());
    Ahead& ahead = ahead_[static_cast<size_t>(place)];
    for (bool asked = false; due.weight != 0.0f;) {
      if (client == client_ || (device_ && device_->has(client))) {
        due.row = windows_.part(client == client_ ? new_row_ : device_->hold(client), window);
        break;
      }
      if (const int64_t frame = frame_with(client); frame >= 0) {
        due.row = windows_.part(row_in(frame), window);
        if (device_) due.mark = mark_of(frame);
        break;
      }
      const bool coming = frame_of_[static_cast<size_t>(client)] >= 0 || ahead.state == kReading;
      if (!coming && ahead.turn == turn && ahead.slot == slot && ahead.state == kClean) {
        due.row = windows_.read_at(ahead_at(place), window);
        if (device_) due.mark = device_->mark_of_ahead(place);
        break;
      }
      if (!may_wait) return false;
      if (!coming) {
        if (asked && read_failed_.client == client) fail_as_read();
        read_failed_ = {};
        ahead = {turn, slot, kReading};
        asks_.push_front({-1, place, client, slot});
        threads_->to_read.notify_one();
        asked = true;
      }
      wait(lock);
    }
    due_.push_back(due);
  }
  return true;
}

void Tiers::begin(Runner& runner) {
  if (device_) device_->begin(runner);
}

void Tiers::end(Runner& runner) {
  if (device_) device_->end(runner, at(new_), mark_of(new_));
}

void Tiers::advance(Runner& runner, float* sum) {
  for (const Due& due : due_) sweep_.take(runner, due.turn, due.row, due.weight, sum);
}

void Tiers::commit() noexcept {
  const Lock lock(mutex_);
  const auto c = static_cast<size_t>(client_);
  unpin_terms();
  if (device_) device_->commit(client_);
  if (old_ >= 0) {
    Frame& old = frames_[static_cast<size_t>(old_)];
    if (old.state == kWriting) {
      old.orphan = true;
    } else {
      release(old_);
    }
  } else if (frame_of_[c] >= 0) {  // a row that is not in the sum, or that was read on the device
    Frame& old = frames_[static_cast<size_t>(frame_of_[c])];
    if (old.state == kClean) {
      unlink(frame_of_[c]);
      release(frame_of_[c]);
    } else {
      old.orphan = true;
    }
  }
  Frame& fresh = frames_[static_cast<size_t>(new_)];
  fresh.client = client_, fresh.state = kWriting, fresh.expected = false, fresh.orphan = false;
  frame_of_[c] = static_cast<int32_t>(new_);
  const int64_t slot = places_.move(client_);
  queue_[(queue_begin_ + static_cast<size_t>(writing_)) % queue_.size()] = {static_cast<int32_t>(new_), slot};
  ++writing_;
  threads_->to_write.notify_one();
  counts_.ahead += way_ == kAhead, counts_.late += way_ == kLate, counts_.cold += way_ == kCold;
  counts_.there += there_;
  old_ = new_ = -1;
  there_ = false;
  way_ = kNone;
  due_.clear();
  sweep_.commit();
  ask_ahead();
}

// Windows of the scrub of the next two arrivals, unless their rows are in memory. Not of more: a row that changes twice
// meanwhile may be in the same slot again, and what was read of it would be taken for what it is now.
void Tiers::ask_ahead() noexcept {
  const int64_t until = std::min(sweep_.done() + static_cast<int64_t>(ahead_.size()), sweep_.next(1));
  for (int64_t turn = sweep_.done(); turn < until; ++turn) {
    const auto place = static_cast<int64_t>(static_cast<size_t>(turn) % ahead_.size());
    const int64_t client = sweep_.client_of(turn), slot = places_.of(client);
    Ahead& ahead = ahead_[static_cast<size_t>(place)];
    if (ahead.turn == turn || ahead.state == kReading || slot < 0 || frame_of_[static_cast<size_t>(client)] >= 0)
      continue;
    if (device_ && device_->has(client)) continue;
    try {
      asks_.push_back({-1, place, client, slot});
    } catch (const std::bad_alloc&) {
      return;
    }
    ahead = {turn, slot, kReading};
    threads_->to_read.notify_one();
  }
}

// -- checkpoints

void Tiers::drained(Lock& lock) {
  while (writing_ > 0) wait(lock);
}

Tiers::Cut Tiers::cut() {
  if (!is_open()) claim();
  check_process();
  const Blocking out;
  Lock lock(mutex_);
  drained(lock);
  lock.unlock();
  file_.sync();
  lock.lock();
  return {places_.cut(), sweep_.arrivals(), sweep_.begun()};
}

std::vector<int64_t> Tiers::kept_with(int64_t number) const {
  const Lock lock(mutex_);
  return places_.kept_with(number);
}

void Tiers::confirm(int64_t number) {
  const Lock lock(mutex_);
  places_.confirm(number);
}

void Tiers::load(const Cut& cut) {
  take_file([&] {
    sweep_.check(cut.arrivals, cut.begun);
    places_.load(cut.places, file_.slots());
    sweep_.load(cut.arrivals, cut.begun);
  });
}

void Tiers::open() {
  take_file([] {});
}

// Opens the file and begins to read and write, or leaves it closed.
void Tiers::take_file(const std::function<void()>& load) {
  file_.open(path_, stride_);
  try {
    if (device_) {
      device_->start(sweep_.shadow_size());
      sweep_.lie_on(device_->copies(), device_->shadow());
    }
    load();
    start();
  } catch (...) {
    file_.close();
    throw;
  }
}

bool Tiers::copy_row(int64_t client, std::vector<char>& into) {
  if (!is_open()) claim();
  check_process();
  const Blocking out;
  Lock lock(mutex_);
  if (places_.of(client) < 0) return false;
  const Way before = way_;
  const int64_t frame = fetched(lock, client, true);
  way_ = before;
  if (device_) device_->wait(mark_of(frame));
  into.assign(at(frame), at(frame) + stride_);
  return true;
}

// A window of a client's row, from a frame or the file.
Row Tiers::read_part(int64_t client, int64_t window, char* into) {
  int64_t slot = 0;
  uint32_t sum = 0;
  {
    const Lock lock(mutex_);
    if (device_ && device_->has(client)) return device_->read(client, window, into);
    if (const int64_t frame = frame_with(client); frame >= 0) return windows_.part(row_in(frame), window);
    slot = places_.of(client);
    sum = places_.sums(slot)[window];
  }
  const Row part = windows_.read(file_, slot, window, into);
  check(part, window, sum, client, slot);
  return part;
}

void Tiers::rebuild(Runner& runner, const std::vector<float>& weights, const std::vector<int64_t>& lost, float* sum) {
  const Blocking out;
  const ReadMemory read(windows_.read_bytes());
  if (device_) device_->copies().settle();  // rows that are being copied back are there
  std::vector<float> left = weights;
  for (const int64_t client : lost) left[static_cast<size_t>(client)] = 0.0f;
  {
    const Lock lock(mutex_);
    places_.make_room_for(lost.size());
  }
  sweep_.rebuild(
      runner, left, [&](int64_t client, int64_t window) { return read_part(client, window, read.get()); }, sum);
  const Lock lock(mutex_);
  unplan();
  for (const int64_t client : lost) {
    if (const int64_t frame = frame_with(client); frame >= 0) {
      unlink(frame);
      release(frame);
      frame_of_[static_cast<size_t>(client)] = -1;
    }
    if (device_) device_->drop(client);
    places_.drop(client);
  }
  counts_.lost += static_cast<int64_t>(lost.size());
}

int64_t Tiers::nbytes() const {
  const Lock lock(mutex_);
  const auto used = static_cast<int64_t>(frames_.size() - free_frames_.size());
  const size_t index = frame_of_.size() * sizeof(int32_t) + frames_.size() * sizeof(Frame);
  return used * stride_ + static_cast<int64_t>(ahead_.size()) * windows_.read_bytes() + static_cast<int64_t>(index) +
         places_.nbytes() + sweep_.nbytes() + (device_ ? device_->nbytes() : 0);
}

int64_t Tiers::device_frames() const {
  const Lock lock(mutex_);
  return device_ ? device_->frames() : 0;
}

int64_t Tiers::nbytes_on_disk() const { return file_.slots() * stride_; }

void Tiers::move_in_windows(Runner& runner, float* sum) {
  const Blocking out;
  const ReadMemory read(windows_.read_bytes());
  const int64_t begun = sweep_.window_of(sweep_.done());
  for (int64_t window = 0; window < windows_.count(); ++window)
    for (const auto& [client, weight] : terms_) {
      const Row part = read_part(client, window, read.get());
      const Rows one{windows_.format, windows_.elements(window), 1, part.data, part.scales};
      cpu::add_row(one, weight, sum + window * Windows::kSize);
      if (window == begun) sweep_.follow_part(runner, client, part, weight);
    }
}

Tiers::Counts Tiers::counts() const {
  const Lock lock(mutex_);
  return counts_;
}

// -- the threads

void Tiers::start() {
  if (arena_ == nullptr) arena_ = mapped(frames() * stride_);
  if (ahead_arena_ == nullptr) {
    const int64_t bytes = static_cast<int64_t>(ahead_.size()) * windows_.read_bytes();
    ahead_arena_ = mapped(bytes);
    if (device_) device_->copies().pin(ahead_arena_, static_cast<size_t>(bytes));
  }
  process_ = getpid();
  threads_->reader = std::thread([this] { reads(); });
  threads_->writer = std::thread([this] { writes(); });
}

void Tiers::check(const Row& part, int64_t window, uint32_t sum, int64_t client, int64_t slot) const {
  if (windows_.sum(part, window) != sum)
    throw RowDamaged(client, path_ + ": client " + std::to_string(client) + "'s row is damaged (slot " +
                                 std::to_string(slot) + "): its checksum is another");
}

// Reads what was asked for, and compares the checksums.
void Tiers::fill(const Ask& ask, const std::vector<uint32_t>& expected) {
  if (device_) device_->wait(ask.frame < 0 ? device_->mark_of_ahead(ask.place) : mark_of(ask.frame));
  if (ask.frame < 0) {
    const int64_t window = sweep_.window_of(ahead_[static_cast<size_t>(ask.place)].turn);
    const Row part = windows_.read(file_, ask.slot, window, ahead_at(ask.place));
    check(part, window, expected[static_cast<size_t>(window)], ask.client, ask.slot);
    return;
  }
  file_.read(ask.slot, 0, stride_, at(ask.frame));
  for (int64_t window = 0; window < windows_.count(); ++window)
    check(windows_.part(row_in(ask.frame), window), window, expected[static_cast<size_t>(window)], ask.client,
          ask.slot);
}

void Tiers::reads() {
  Lock lock(mutex_);
  std::vector<uint32_t> expected;
  for (;;) {
    threads_->to_read.wait(lock, [this] { return ends_ || !asks_.empty(); });
    if (ends_) return;
    const Ask ask = asks_.front();
    asks_.pop_front();
    const auto c = static_cast<size_t>(ask.client);
    const bool current = places_.of(ask.client) == ask.slot;
    Failure failed;
    if (current) {
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
      Ahead& ahead = ahead_[static_cast<size_t>(ask.place)];
      ahead.state = good ? kClean : kFree;
      counts_.read += windows_.read_bytes();
    } else if (Frame& frame = frames_[static_cast<size_t>(ask.frame)]; good && !frame.orphan) {
      frame.state = kClean;
      link(ask.frame);
      counts_.read += stride_;
      if (device_ && frame.expected) ask_device(ask.frame);
    } else {
      if (frame_of_[c] == ask.frame) frame_of_[c] = -1;
      release(ask.frame);
    }
    threads_->done_one.notify_all();
  }
}

void Tiers::writes() {
  Lock lock(mutex_);
  std::vector<uint32_t> found(static_cast<size_t>(windows_.count()));
  for (;;) {
    threads_->to_write.wait(lock, [this] { return ends_ || writing_ > 0; });
    if (ends_) return;  // what no checkpoint knows of is of no use to anybody
    const auto [frame, slot] = queue_[queue_begin_];
    lock.unlock();
    std::string failed;
    try {
      if (device_) device_->wait(mark_of(frame));  // the row comes from the device
      for (int64_t window = 0; window < windows_.count(); ++window)
        found[static_cast<size_t>(window)] = windows_.sum(windows_.part(row_in(frame), window), window);
      file_.write(slot, at(frame));
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
    counts_.written += stride_;
    Frame& one = frames_[static_cast<size_t>(frame)];
    if (one.orphan) {
      release(frame);
    } else if (one.pinned) {
      one.state = kPlanned;
    } else {
      one.state = kClean;
      link(frame);
    }
    threads_->done_one.notify_all();
  }
}

}  // namespace fastagg::store
