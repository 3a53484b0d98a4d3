#include "tiers.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "../cpu/cpu.h"
#include "books.h"
#include "unlocked.h"

namespace fastagg::serving {
namespace {

using memory::SlotFile;
using memory::SlotsFailed;

constexpr int64_t kLeastFrames = 4;  // an arrival's two, one that is written, one that is fetched
constexpr int64_t kMostWriting = 16;

int64_t pages(int64_t bytes) { return (bytes + SlotFile::kPage - 1) / SlotFile::kPage * SlotFile::kPage; }

char* mapped(int64_t bytes) {
  void* found = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  madvise(found, static_cast<size_t>(bytes), MADV_HUGEPAGE);
#endif
  return static_cast<char*>(found);
}

template <typename T>
void make_room(std::vector<T>& values, size_t more) {
  if (values.capacity() < values.size() + more) values.reserve(2 * values.size() + more + 16);
}

int64_t data_bytes(int format, int64_t elements) { return padded(elements) * format_facts(format).bits / 8; }

int64_t scale_count(int format, int64_t elements) {
  return format_facts(format).scaled ? padded(elements) / kScaleBlock : 0;
}

}  // namespace

int64_t Tiers::stride_of(int format, int64_t size) {
  return pages(data_bytes(format, size)) + pages(scale_count(format, size) * 4);
}

Tiers::Tiers(const Setting& setting, std::string path)
    : setting_(setting),
      path_(std::move(path)),
      row_bytes_(data_bytes(setting.format, setting.size)),
      row_scales_(scale_count(setting.format, setting.size)),
      scales_at_(pages(row_bytes_)),
      stride_(stride_of(setting.format, setting.size)),
      windows_((setting.size + kWindow - 1) / kWindow),
      frame_of_(static_cast<size_t>(setting.clients), -1),
      slot_(static_cast<size_t>(setting.clients), -1) {
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
  const int64_t window = std::min(kWindow, setting.size);
  shadow_.assign(static_cast<size_t>((window + kBlock - 1) / kBlock * kBlock), 0.0);
  jobs_.reserve(shadow_.size() / kBlock);
  const int64_t turns = windows_ / 4 + 1;  // at an arrival, at most
  due_.reserve(static_cast<size_t>(turns));
  ahead_.resize(static_cast<size_t>(2 * turns + 2));
  ahead_bytes_ = pages(window_bytes(0)) + SlotFile::kPage;
}

Tiers::~Tiers() {
  if (process_ != 0 && process_ != getpid()) {  // a forked child's: it would wait for its parent's threads
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
  if (arena_ != nullptr) munmap(arena_, frames_.size() * static_cast<size_t>(stride_));
  if (ahead_arena_ != nullptr) munmap(ahead_arena_, ahead_.size() * static_cast<size_t>(ahead_bytes_));
}

void Tiers::check_process() const {
  if (process_ != getpid()) throw SlotsFailed(path_ + ": its rows belong to the process that this one was forked from");
}

// -- where things lie

Row Tiers::row_at(char* place) const {
  return {place, row_scales_ > 0 ? reinterpret_cast<float*>(place + scales_at_) : nullptr};
}

int64_t Tiers::elements(int64_t window) const { return std::min(kWindow, setting_.size - window * kWindow); }

int64_t Tiers::window_bytes(int64_t window) const { return data_bytes(setting_.format, elements(window)); }

Row Tiers::window_of(Row row, int64_t window) const {
  row.data = static_cast<char*>(row.data) + window * data_bytes(setting_.format, kWindow);
  if (row.scales != nullptr) row.scales += window * (kWindow / kScaleBlock);
  return row;
}

// A window that was read ahead: its data, then the page of the row's scales that has the window's.
Row Tiers::row_ahead(int64_t place) const {
  const int64_t window = window_of_turn(ahead_[static_cast<size_t>(place)].turn);
  char* data = ahead_at(place);
  if (row_scales_ == 0) return {data, nullptr};
  const int64_t first = window * (kWindow / kScaleBlock) * 4 % SlotFile::kPage;
  return {data, reinterpret_cast<float*>(data + ahead_bytes_ - SlotFile::kPage + first)};
}

uint32_t Tiers::sum_of(const Row& row, int64_t window) const {
  const uint32_t sum = cpu::crc32c(row.data, window_bytes(window), 0, false);
  if (row.scales == nullptr) return sum;
  return cpu::crc32c(row.scales, scale_count(setting_.format, elements(window)) * 4, sum, false);
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

void Tiers::release(int64_t frame) {
  frames_[static_cast<size_t>(frame)] = Frame{};
  free_frames_.push_back(static_cast<int32_t>(frame));  // it has room for all
}

// A frame that can be used for another row: free, or the one of a clean row that was used longest ago.
int64_t Tiers::victim(bool also_expected) {
  if (!free_frames_.empty()) {
    const int32_t frame = free_frames_.back();
    free_frames_.pop_back();
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
      const int64_t frame = empty_frame(lock, true);
      frames_[static_cast<size_t>(frame)].client = client;
      frames_[static_cast<size_t>(frame)].state = kReading;
      place = static_cast<int32_t>(frame);
      asks_.push_front({place, -1, client, slot_[static_cast<size_t>(client)]});
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

// -- slots

// A slot for the new row, of which nothing is known yet. Everything is made ready that a commit will need.
void Tiers::reserve_slot() {
  make_room(free_slots_, 1);
  make_room(retired_, 1);
  if (new_slot_ >= 0) return;
  if (!free_slots_.empty()) {
    new_slot_ = free_slots_.back();
    free_slots_.pop_back();
    return;
  }
  if (used_slots_ == file_.slots()) file_.grow(used_slots_ + 1);
  const auto slots = static_cast<size_t>(used_slots_ + 1);
  if (born_.size() < slots) {
    make_room(born_, 1);
    sums_.reserve(born_.capacity() * static_cast<size_t>(windows_));
    born_.resize(slots);
    sums_.resize(slots * static_cast<size_t>(windows_));
  }
  new_slot_ = used_slots_++;
}

void Tiers::retire(int64_t slot) noexcept {
  if (born_[static_cast<size_t>(slot)] == cuts_) {
    free_slots_.push_back(slot);
  } else {
    retired_.emplace_back(cuts_, slot);
  }
}

// -- the road of an arrival

void Tiers::expect(int64_t client) noexcept {
  if (!is_open() || process_ != getpid()) return;
  const Lock lock(mutex_);
  const auto c = static_cast<size_t>(client);
  if (slot_[c] < 0) return;
  if (frame_of_[c] >= 0) {
    Frame& frame = frames_[static_cast<size_t>(frame_of_[c])];
    const bool linked = frame.state == kClean;
    if (linked) unlink(frame_of_[c]);
    frame.expected = true;
    if (linked) link(frame_of_[c]);
    return;
  }
  const int64_t frame = victim(false);
  if (frame < 0) return;  // all of memory is for clients that were asked before it
  try {
    asks_.push_back({static_cast<int32_t>(frame), -1, client, slot_[c]});
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
  for (const int64_t frame : term_frames_) unpin(frame);
  term_frames_.clear();
  old_ = -1;
  way_ = kNone;
  due_.clear();
}

void Tiers::plan(int64_t client, bool replaces, const Terms& terms, const std::vector<float>& weights, float entering) {
  if (!is_open()) claim();
  check_process();
  if (static_cast<int64_t>(terms.size()) + kLeastFrames > frames())
    throw SlotsFailed(path_ + ": " + std::to_string(terms.size()) + " rows leave the sum or come back at once, and " +
                      "memory holds " + std::to_string(frames()) + ": open it with more memory");
  {
    Lock lock(mutex_);
    unplan();
    client_ = client;
    terms_ = terms;
    term_frames_.reserve(terms.size());
    if (prepare(lock, replaces, weights, entering, false)) return;
  }
  const Unlocked out;
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
    const int64_t frame = fetched(lock, client_, may_wait);
    if (frame < 0) return false;
    old_ = frame;
    pin(frame);
  }
  for (size_t term = term_frames_.size(); term < terms_.size(); ++term) {
    const int64_t frame = fetched(lock, terms_[term].first, may_wait);
    if (frame < 0) return false;
    term_frames_.push_back(frame);
    pin(frame);
  }
  if (new_ < 0) {
    new_ = empty_frame(lock, may_wait);
    if (new_ < 0) return false;
    frames_[static_cast<size_t>(new_)].state = kPlanned;
  }
  reserve_slot();
  return prepare_due(lock, weights, entering, may_wait);
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
  for (int64_t turn = done_; turn < turns_after(arrivals_ + 1); ++turn) {
    const int64_t client = turn % setting_.clients, window = window_of_turn(turn);
    const auto c = static_cast<size_t>(client);
    const float weight = next_weight(client, weights, entering);
    Due due{turn, {}, weight};
    const auto place = static_cast<int64_t>(static_cast<size_t>(turn) % ahead_.size());
    Ahead& ahead = ahead_[static_cast<size_t>(place)];
    for (bool asked = false; weight != 0.0f;) {
      const int32_t frame = frame_of_[c];
      if (client == client_) {
        due.row = window_of(row_in(new_), window);
        break;
      }
      if (frame >= 0 && frames_[static_cast<size_t>(frame)].state != kReading) {
        due.row = window_of(row_in(frame), window);
        break;
      }
      const bool right = ahead.turn == turn && ahead.slot == slot_[c];
      if (frame < 0 && right && ahead.state == kClean) {
        due.row = row_ahead(place);
        break;
      }
      if (!may_wait) return false;
      if (asked && read_failed_.client == client) fail_as_read();
      if (frame < 0 && ahead.state != kReading) {
        ahead = {turn, slot_[c], kReading};
        asks_.push_front({-1, place, client, slot_[c]});
        threads_->to_read.notify_one();
        asked = true;
      }
      wait(lock);
    }
    due_.push_back(due);
  }
  return true;
}

void Tiers::add(Runner& runner, const Row& row, int64_t window, float weight) {
  const Rows rows{setting_.format, elements(window), 1, row.data, row.scales};
  jobs_.clear();
  for (int64_t block = 0; block * kBlock < rows.size; ++block)
    jobs_.push_back({block, 0, 1, shadow_.data() + block * kBlock});
  runner.add_rows(rows, jobs_, nullptr, weight);
}

void Tiers::settle(Runner& runner, int64_t window, float* sum) {
  jobs_.clear();
  for (int64_t block = 0; block * kBlock < elements(window); ++block)
    jobs_.push_back({block, 0, 1, shadow_.data() + block * kBlock});
  runner.settle_rows(jobs_, sum + window * kWindow, elements(window));
}

// A row that the scrub has passed changes by so much.
void Tiers::follow(Runner& runner, int64_t client, const Row& row, float weight) {
  const int64_t window = window_of_turn(done_);
  if (weight != 0.0f && client < done_ % setting_.clients) add(runner, window_of(row, window), window, weight);
}

void Tiers::leaves(Runner& runner, float weight) { follow(runner, client_, old_row(), -weight); }

void Tiers::enters(Runner& runner, float weight) { follow(runner, client_, new_row(), weight); }

void Tiers::moves(Runner& runner, size_t term) {
  follow(runner, terms_[term].first, row_of_term(term), terms_[term].second);
}

void Tiers::advance(Runner& runner, float* sum) {
  for (const Due& due : due_) {
    const int64_t window = window_of_turn(due.turn), row = due.turn % setting_.clients;
    if (row == 0) std::fill(shadow_.begin(), shadow_.end(), 0.0);
    if (due.row.data != nullptr) add(runner, due.row, window, due.weight);
    if (row + 1 == setting_.clients) settle(runner, window, sum);
  }
}

void Tiers::commit() noexcept {
  const Lock lock(mutex_);
  const auto c = static_cast<size_t>(client_);
  for (const int64_t frame : term_frames_) unpin(frame);
  term_frames_.clear();
  if (old_ >= 0) {
    Frame& old = frames_[static_cast<size_t>(old_)];
    if (old.state == kWriting) {
      old.orphan = true;
    } else {
      release(old_);
    }
  } else if (frame_of_[c] >= 0) {  // a row that is not in the sum
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
  if (slot_[c] >= 0) retire(slot_[c]);
  slot_[c] = new_slot_;
  born_[static_cast<size_t>(new_slot_)] = cuts_;
  queue_[(queue_begin_ + static_cast<size_t>(writing_)) % queue_.size()] = {static_cast<int32_t>(new_), new_slot_};
  ++writing_;
  threads_->to_write.notify_one();
  counts_.ahead += way_ == kAhead, counts_.late += way_ == kLate, counts_.cold += way_ == kCold;
  old_ = new_ = new_slot_ = -1;
  way_ = kNone;
  due_.clear();
  done_ = turns_after(++arrivals_);
  ask_ahead();
}

// Windows of the next arrivals' scrub, unless their rows are in memory.
void Tiers::ask_ahead() noexcept {
  const int64_t until = std::min(done_ + static_cast<int64_t>(ahead_.size()), turns_after(arrivals_ + 2));
  for (int64_t turn = done_; turn < until; ++turn) {
    const auto place = static_cast<int64_t>(static_cast<size_t>(turn) % ahead_.size());
    const auto c = static_cast<size_t>(turn % setting_.clients);
    Ahead& ahead = ahead_[static_cast<size_t>(place)];
    if (ahead.turn == turn || ahead.state == kReading || slot_[c] < 0 || frame_of_[c] >= 0) continue;
    try {
      asks_.push_back({-1, place, static_cast<int64_t>(c), slot_[c]});
    } catch (const std::bad_alloc&) {
      return;
    }
    ahead = {turn, slot_[c], kReading};
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
  Cut cut;
  const Unlocked out;
  Lock lock(mutex_);
  drained(lock);
  lock.unlock();
  file_.sync();
  lock.lock();
  cut.slots = slot_;
  for (const int64_t slot : slot_) {
    if (slot < 0) continue;
    const auto first = sums_.begin() + slot * windows_;
    cut.sums.insert(cut.sums.end(), first, first + windows_);
  }
  cut.arrivals = arrivals_;
  if (done_ % setting_.clients != 0) cut.shadow = shadow_;
  cut.number = ++cuts_;
  return cut;
}

std::vector<int64_t> Tiers::kept_with(int64_t number) const {
  const Lock lock(mutex_);
  std::vector<int64_t> kept = confirmed_;
  if (kept.empty() || kept.back() != number) kept.push_back(number);
  if (static_cast<int64_t>(kept.size()) > setting_.keep) kept.erase(kept.begin(), kept.end() - setting_.keep);
  return kept;
}

void Tiers::confirm(int64_t number) {
  std::vector<int64_t> kept = kept_with(number);
  const Lock lock(mutex_);
  confirmed_ = std::move(kept);
  const int64_t oldest = static_cast<int64_t>(confirmed_.size()) < setting_.keep ? 0 : confirmed_.front();
  size_t given_up = 0;
  while (given_up < retired_.size() && retired_[given_up].first < oldest) ++given_up;
  make_room(free_slots_, given_up);
  for (size_t i = 0; i < given_up; ++i) free_slots_.push_back(retired_[i].second);
  retired_.erase(retired_.begin(), retired_.begin() + static_cast<std::ptrdiff_t>(given_up));
}

void Tiers::load(const Cut& cut) {
  file_.open(path_, stride_);
  try {
    const int64_t limit = file_.slots();
    std::vector<char> used(static_cast<size_t>(limit));
    size_t rows = 0;
    for (const int64_t slot : cut.slots) {
      if (slot < 0) continue;
      if (slot >= limit) throw std::invalid_argument("a row lies behind the end of the rows' file");
      if (used[static_cast<size_t>(slot)]++) throw std::invalid_argument("two clients have one row");
      ++rows;
    }
    if (cut.slots.size() != slot_.size() || cut.sums.size() != rows * static_cast<size_t>(windows_))
      throw std::invalid_argument("rows of another number of clients or parameters");
    if (cut.number < 0 || cut.arrivals < 0 || cut.arrivals > (int64_t{1} << 50))
      throw std::invalid_argument("a number of arrivals out of range");
    const int64_t done = turns_after(cut.arrivals);
    const bool begun = done % setting_.clients != 0;
    if (cut.shadow.size() != (begun ? shadow_.size() : 0)) throw std::invalid_argument("a scrub of another size");
    slot_ = cut.slots;
    used_slots_ = limit;
    born_.assign(static_cast<size_t>(limit), 0);
    sums_.assign(static_cast<size_t>(limit * windows_), 0);
    free_slots_.clear();
    for (int64_t slot = limit; slot-- > 0;)
      if (!used[static_cast<size_t>(slot)]) free_slots_.push_back(slot);
    size_t row = 0;
    for (const int64_t slot : slot_)
      if (slot >= 0)
        std::copy_n(cut.sums.begin() + static_cast<std::ptrdiff_t>(row++ * static_cast<size_t>(windows_)), windows_,
                    sums_.begin() + slot * windows_);
    if (begun) shadow_ = cut.shadow;
    arrivals_ = cut.arrivals, done_ = done, cuts_ = cut.number;
    confirmed_.assign(1, cut.number);
    start();
  } catch (...) {
    file_.close();
    throw;
  }
}

void Tiers::open() {
  file_.open(path_, stride_);
  start();
}

bool Tiers::copy_row(int64_t client, std::vector<char>& into) {
  if (!is_open()) claim();
  check_process();
  const Unlocked out;
  Lock lock(mutex_);
  if (slot_[static_cast<size_t>(client)] < 0) return false;
  const Way before = way_;
  const int64_t frame = fetched(lock, client, true);
  way_ = before;
  into.assign(at(frame), at(frame) + stride_);
  return true;
}

void Tiers::rebuild(Runner& runner, const std::vector<float>& weights, int64_t without, float* sum) {
  const Unlocked out;
  const int64_t now = window_of_turn(done_), begun = done_ % setting_.clients;
  std::vector<double> held;
  const auto held_row = static_cast<size_t>(ahead_bytes_);
  char* read = mapped(static_cast<int64_t>(held_row));
  const auto give_back = [&](void*) { munmap(read, held_row); };
  const std::unique_ptr<void, decltype(give_back)> guard(read, give_back);
  for (int64_t window = 0; window < windows_; ++window) {
    std::fill(shadow_.begin(), shadow_.end(), 0.0);
    for (int64_t client = 0; client < setting_.clients; ++client) {
      if (window == now && client == begun) held = shadow_;
      const auto c = static_cast<size_t>(client);
      if (weights[c] == 0.0f || client == without) continue;
      Row row{};
      {
        Lock lock(mutex_);
        const int32_t frame = frame_of_[c];
        if (frame >= 0 && frames_[static_cast<size_t>(frame)].state != kReading) row = window_of(row_in(frame), window);
      }
      if (row.data == nullptr) {
        const int64_t slot = slot_[c], bytes = pages(window_bytes(window));
        file_.read(slot, window * data_bytes(setting_.format, kWindow), bytes, read);
        row.data = read;
        if (row_scales_ > 0) {
          const int64_t first = window * (kWindow / kScaleBlock) * 4, page = first / SlotFile::kPage * SlotFile::kPage;
          char* scales = read + ahead_bytes_ - SlotFile::kPage;
          file_.read(slot, scales_at_ + page, SlotFile::kPage, scales);
          row.scales = reinterpret_cast<float*>(scales + (first - page));
        }
        const Lock lock(mutex_);
        if (sum_of(row, window) != sums_[static_cast<size_t>(slot * windows_ + window)])
          throw RowDamaged(client, path_ + ": client " + std::to_string(client) + "'s row is damaged, too");
      }
      add(runner, row, window, weights[c]);
    }
    settle(runner, window, sum);
  }
  shadow_ = begun > 0 ? held : std::vector<double>(shadow_.size(), 0.0);
  const Lock lock(mutex_);
  unplan();
  const auto c = static_cast<size_t>(without);
  if (frame_of_[c] >= 0 && frames_[static_cast<size_t>(frame_of_[c])].state == kClean) {
    unlink(frame_of_[c]);
    release(frame_of_[c]);
    frame_of_[c] = -1;
  }
  if (slot_[c] >= 0) {
    make_room(retired_, 1), make_room(free_slots_, 1);
    retire(slot_[c]);
  }
  slot_[c] = -1;
  ++counts_.lost;
}

int64_t Tiers::nbytes() const {
  const Lock lock(mutex_);
  const auto used = static_cast<int64_t>(frames_.size() - free_frames_.size());
  const size_t index = frame_of_.size() * sizeof(int32_t) + (slot_.size() + born_.size()) * sizeof(int64_t) +
                       sums_.size() * sizeof(uint32_t) + frames_.size() * sizeof(Frame);
  return used * stride_ + static_cast<int64_t>(ahead_.size()) * ahead_bytes_ +
         static_cast<int64_t>(index + shadow_.size() * sizeof(double));
}

int64_t Tiers::nbytes_on_disk() const { return file_.slots() * stride_; }

Tiers::Counts Tiers::counts() const {
  const Lock lock(mutex_);
  return counts_;
}

// -- the threads

void Tiers::start() {
  if (arena_ == nullptr) arena_ = mapped(frames() * stride_);
  if (ahead_arena_ == nullptr) ahead_arena_ = mapped(static_cast<int64_t>(ahead_.size()) * ahead_bytes_);
  process_ = getpid();
  threads_->reader = std::thread([this] { reads(); });
  threads_->writer = std::thread([this] { writes(); });
}

// Reads what was asked for, and compares the checksums.
void Tiers::fill(const Ask& ask, const std::vector<uint32_t>& expected) {
  const auto check = [&](const Row& row, int64_t window, uint32_t sum) {
    if (sum_of(row, window) != sum)
      throw RowDamaged(ask.client, path_ + ": client " + std::to_string(ask.client) + "'s row is damaged (slot " +
                                       std::to_string(ask.slot) + "): its checksum is another");
  };
  if (ask.frame >= 0) {
    file_.read(ask.slot, 0, stride_, at(ask.frame));
    for (int64_t window = 0; window < windows_; ++window)
      check(window_of(row_in(ask.frame), window), window, expected[static_cast<size_t>(window)]);
    return;
  }
  const Row row = row_ahead(ask.place);
  const int64_t window = window_of_turn(ahead_[static_cast<size_t>(ask.place)].turn);
  file_.read(ask.slot, window * data_bytes(setting_.format, kWindow), pages(window_bytes(window)), row.data);
  if (row.scales != nullptr) {
    const int64_t first = window * (kWindow / kScaleBlock) * 4, page = first / SlotFile::kPage * SlotFile::kPage;
    file_.read(ask.slot, scales_at_ + page, SlotFile::kPage, ahead_at(ask.place) + ahead_bytes_ - SlotFile::kPage);
  }
  check(row, window, expected[static_cast<size_t>(window)]);
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
    const bool current = slot_[c] == ask.slot;
    Failure failed;
    if (current) {
      const auto first = sums_.begin() + ask.slot * windows_;
      expected.assign(first, first + windows_);
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
    const bool good = slot_[c] == ask.slot && failed.client < 0;
    if (failed.client >= 0 && slot_[c] == ask.slot) read_failed_ = std::move(failed);
    if (ask.frame < 0) {
      Ahead& ahead = ahead_[static_cast<size_t>(ask.place)];
      ahead.state = good ? kClean : kFree;
      counts_.read += window_bytes(0);
    } else if (Frame& frame = frames_[static_cast<size_t>(ask.frame)]; good && !frame.orphan) {
      frame.state = kClean;
      link(ask.frame);
      counts_.read += stride_;
    } else {
      if (frame_of_[c] == ask.frame) frame_of_[c] = -1;
      release(ask.frame);
    }
    threads_->done_one.notify_all();
  }
}

void Tiers::writes() {
  Lock lock(mutex_);
  std::vector<uint32_t> found(static_cast<size_t>(windows_));
  for (;;) {
    threads_->to_write.wait(lock, [this] { return ends_ || writing_ > 0; });
    if (ends_) return;  // what no checkpoint knows of is of no use to anybody
    const auto [frame, slot] = queue_[queue_begin_];
    lock.unlock();
    std::string failed;
    try {
      for (int64_t window = 0; window < windows_; ++window)
        found[static_cast<size_t>(window)] = sum_of(window_of(row_in(frame), window), window);
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
    std::copy(found.begin(), found.end(), sums_.begin() + slot * windows_);
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

}  // namespace fastagg::serving
