#include "journal.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <random>
#include <thread>

#include "../refusal.h"
#include "../store/blocking.h"

namespace fastagg::log {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kGroup = 32u << 20;     // the largest group of records for one sync, in bytes
constexpr uint64_t kPending = 256u << 20;  // so many bytes may be in the queue before others wait
constexpr milliseconds kIdle{50};          // the longest time that a record waits if no sender waits for it
constexpr milliseconds kAgain{500};        // the time between two attempts on a full disk
constexpr milliseconds kSignals{50};       // how often a waiting caller looks for Ctrl-C
constexpr int kIdleRounds = 20;            // after so many rounds without a record the thread sleeps until it is woken
constexpr size_t kSpares = 64, kSmall = 65536;  // how many written records are reused, and the largest of them in bytes
constexpr size_t kLarge = size_t{1} << 20;      // such a record is written by itself, past the system's page cache
constexpr uint64_t kFirstSegment = 256u << 10;  // segments double up to the largest
constexpr size_t kRoots = 65536;                // so many digests are remembered

thread_local double seconds_waited = 0.0;

uint64_t random_number() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

std::string name_of(uint64_t number) {
  char name[32];
  std::snprintf(name, sizeof name, "journal-%012llu", static_cast<unsigned long long>(number));
  return name;
}

uint64_t next_block(uint64_t at) { return (at + kBlock - 1) / kBlock * kBlock; }

}  // namespace

Journal::Journal(std::unique_ptr<Disk> disk, Start start)
    : durable(start.sequence),
      disk_(std::move(disk)),
      folder_(std::move(start.folder)),
      folder_id_(start.folder_id),
      largest_(start.segment_bytes),
      process_(getpid()),
      last_(start.sequence),
      busy_(start.busy.begin(), start.busy.end()),
      free_(std::move(start.free)),
      roots_(static_cast<Root*>(std::calloc(kRoots, sizeof(Root))), std::free),
      number_(start.number),
      place_(start.place),
      number_here_(start.number_here),
      hash_payloads_(start.hash_payloads),
      tree_(start.tree.known ? start.tree : Tree::from(start.sequence)),
      tree_next_(tree_) {
  if (!roots_) throw std::bad_alloc();
  roots_[last_ % kRoots] = {last_, tree_.root()};
  if (place_ > 0) here_ = busy_.back().name;
}

Journal::~Journal() {
  // iterative, because recursion over a long queue would overflow the stack
  while (first_) first_ = std::move(first_->next);
  while (spare_) spare_ = std::move(spare_->next);
}

std::shared_ptr<Journal> Journal::begin(std::unique_ptr<Disk> disk, Start start) {
  auto journal = std::make_shared<Journal>(std::move(disk), std::move(start));
  std::thread([journal] { journal->work(); }).detach();  // `close` waits for the thread
  return journal;
}

double Journal::waited() { return seconds_waited; }

std::string Journal::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

bool Journal::ended() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ended_;
}

std::optional<Digest> Journal::digest(uint64_t sequence) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Root& one : {roots_[sequence % kRoots], mark_})
    if (one.sequence == sequence) return one.digest;
  return std::nullopt;
}

void Journal::mark() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  marked_ = last_.load();
  if (const Root& root = roots_[last_ % kRoots]; root.sequence == last_) mark_ = root;
}

std::string Journal::refusal() const {
  if (closing_) return folder_ + ": this server is closed";
  if (final_) return folder_ + ": the disk lost what was written to it (" + failure_ + "); open the folder again";
  return folder_ + ": the journal cannot be written: " + failure_ + ". It is tried again";
}

void Journal::check() {
  if (const int64_t now = waiting; now >= max_waiting)
    throw Refusal(Why::kBusy,
                  std::to_string(now) + " answers wait for the journal already (max_waiting): send this one later");
  if (!failed_ && pending <= kPending) return;
  store::Blocking blocking;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!failed_ && pending > kPending) {
    urgent_ = true;
    wake_.notify_one();
    if (done_.wait_for(lock, kSignals) != std::cv_status::timeout) continue;
    lock.unlock();
    blocking.check();
    lock.lock();
  }
  if (!failed_) return;
  urgent_ = nudged_ = true;  // the thread tries the disk again; a checkpoint may free some of it
  wake_.notify_one();
  done_.notify_all();
  throw Refusal(Why::kNotDurable, refusal());
}

Queued Journal::entry(uint8_t kind, size_t nbytes) {
  Queued made;
  if (nbytes <= kSmall) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Queued* place = &spare_; *place; place = &(*place)->next)
      if ((*place)->capacity >= nbytes) {
        made = std::move(*place);
        *place = std::move(made->next);
        --spares_;
        break;
      }
  }
  if (!made) {
    made = std::make_unique<Entry>();
    const bool alone = nbytes + kRecordHead >= kLarge;
    const size_t least = nbytes <= kSmall ? std::max<size_t>(nbytes, 448) : nbytes;
    made->memory = store::block_of(alone ? next_block(kRecordHead + nbytes) + kBlock : kRecordHead + least + 8);
    made->capacity = least;
    if (alone) made->begin = (kBlock - reinterpret_cast<uintptr_t>(made->memory.get()) % kBlock) % kBlock;
  }
  made->kind = kind;
  made->waits = false;
  made->length = 0;
  made->facts = UINT32_MAX;
  made->counts = false;
  return made;
}

void Journal::push(Queued entry) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  entry->sequence = ++last_;
  if (entry->blob) entry->blob->sequence = entry->sequence;
  pending += entry->nbytes();
  Entry* added = entry.get();
  (newest_ == nullptr ? first_ : newest_->next) = std::move(entry);
  newest_ = added;
  const bool much = pending > kGroup / 4 && !urgent_;
  urgent_ = urgent_ || much;
  if (asleep_ || much) wake_.notify_one();
}

void Journal::wait(uint64_t sequence) {
  if (durable >= sequence) return;
  struct Counted {
    Journal& journal;
    std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
    ~Counted() {
      --journal.waiting;
      seconds_waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    }
  };
  ++waiting;
  const Counted counted{*this};
  store::Blocking blocking;
  std::unique_lock<std::mutex> lock(mutex_);
  while (durable < sequence) {
    if (failed_) throw Refusal(Why::kNotDurable, refusal());
    if (!urgent_) {
      urgent_ = true;
      wake_.notify_one();
    }
    if (done_.wait_for(lock, kSignals) != std::cv_status::timeout) continue;
    lock.unlock();
    blocking.check();
    lock.lock();
  }
}

void Journal::wait_written(uint64_t bytes) {
  const store::Blocking blocking;
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [&] { return nudged_ || closing_ || ended_ || written >= bytes; });
  nudged_ = false;
}

void Journal::nudge() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  nudged_ = true;
  done_.notify_all();
}

bool Journal::close(double seconds) {
  if (getpid() != process_) return false;  // the thread does not exist in a forked child
  const store::Blocking blocking;
  std::unique_lock<std::mutex> lock(mutex_);
  closing_ = true;
  wake_.notify_one();
  done_.notify_all();
  const auto ended = [this] { return ended_; };
  if (seconds < 0) {
    done_.wait(lock, ended);
    return true;
  }
  return done_.wait_for(lock, std::chrono::duration<double>(seconds), ended);
}

void Journal::release(uint64_t sequence) {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (busy_.size() > 1 && busy_[1].first <= sequence + 1) {
    free_.push_back(std::move(busy_.front().name));
    busy_.pop_front();
  }
}

std::string Journal::give_up() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty()) return "";
  std::string name = std::move(free_.back());
  free_.pop_back();
  return name;
}

// -- the thread -----------------------------------------------------------------------------------------------------

void Journal::work() noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  std::vector<Entry*> group;
  for (;;) {
    for (int round = 0; !first_ && !closing_; ++round) {
      urgent_ = false;
      asleep_ = round >= kIdleRounds;
      if (asleep_) {
        wake_.wait(lock);
      } else {
        wake_.wait_for(lock, kIdle);
      }
      asleep_ = false;
    }
    if (first_ && !urgent_ && !closing_) wake_.wait_for(lock, kIdle, [this] { return urgent_ || closing_; });
    if (failed_ && !final_ && !closing_) wake_.wait_for(lock, kAgain);
    if (!first_ || final_ || (closing_ && failed_)) break;
    group.clear();
    uint64_t size = 0;
    // records stay in the queue until they are on the disk
    for (Entry* one = first_.get(); one != nullptr; one = one->next.get()) {
      if (!group.empty() && size + one->nbytes() > kGroup) break;
      group.push_back(one);
      size += one->nbytes();
    }
    urgent_ = false;
    lock.unlock();
    std::string wrong;
    bool final = false;
    try {
      write(group);
    } catch (const DiskFailed& failed) {
      wrong = failed.what();
      final = failed.final;
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    lock.lock();
    failure_ = wrong;
    nudged_ = nudged_ || (!wrong.empty() && !failed_);
    failed_ = !wrong.empty();
    final_ = final_ || final;
    if (wrong.empty()) {
      durable = group.back()->sequence;
      tree_ = tree_next_;
      for (const Root& root : found_) {
        roots_[root.sequence % kRoots] = root;
        if (root.sequence == marked_) mark_ = root;
      }
      for (size_t k = 0; k < group.size(); ++k) {
        pending -= first_->nbytes();
        first_->blob.reset();
        Queued rest = std::move(first_->next);
        if (spares_ < kSpares && first_->capacity <= kSmall) {
          first_->next = std::move(spare_);
          spare_ = std::move(first_);
          ++spares_;
        }
        first_ = std::move(rest);
      }
      if (!first_) newest_ = nullptr;
      urgent_ = first_ != nullptr;
    }
    done_.notify_all();
    if (final_) break;
  }
  if (!failed_) failure_ = "OSError: closed";
  failed_ = final_ = true;
  lock.unlock();
  end();
  lock.lock();
  ended_ = true;
  done_.notify_all();
}

// Each large record is one write of its own memory. The small ones between them are written together.
void Journal::write(const std::vector<Entry*>& group) {
  uint64_t needed = 0;
  for (const Entry* one : group) needed += one->nbytes() + (one->nbytes() >= kLarge ? 2 * kBlock : 0);
  if (file_ < 0 && place_ > 0) continue_segment(group.front()->sequence);
  if (file_ < 0 || at_ + needed + kBlock > size_) next_segment(group.front()->sequence, needed + 2 * kBlock);
  std::vector<iovec> buffers;
  uint64_t begin = at_, end = at_;
  tree_next_ = tree_;
  found_.clear();
  const auto put = [&] {
    if (!buffers.empty()) disk_->write(file_, buffers, begin);
    buffers.clear();
    begin = end;
  };
  for (Entry* one : group) {
    if (one->blob) {
      disk_->sync(one->blob->file);
      disk_->sync_folder();
      syncs += 2;
    }
    uint8_t* const head = one->body() - kRecordHead;
    put_head({use_, one->sequence, durable, one->length, one->kind, hash_payloads_,
              static_cast<uint32_t>(std::min(one->facts, one->length))},
             head);
    tree_next_.add(leaf_of(head));
    if (one->counts || one->sequence == marked_ || one == group.back())
      found_.push_back({one->sequence, tree_next_.root()});
    std::memset(one->body() + one->length, 0, gap_of(one->length));
    if (one->nbytes() < kLarge) {
      buffers.push_back({head, one->nbytes()});
      end += one->nbytes();
      continue;
    }
    end = next_block(end);
    put();
    const size_t whole = next_block(one->nbytes());
    std::memset(head + one->nbytes(), 0, whole - one->nbytes());
    disk_->write_block(file_, head, whole, begin);
    begin = end = begin + whole;
  }
  put();
  ++syncs;
  disk_->sync(file_);
  for (const Entry* one : group) {
    if (!one->blob) continue;
    disk_->close(one->blob->file);
    written += one->blob->nbytes;
  }
  ++groups;
  written += next_block(end) - at_;
  at_ = next_block(end);
}

void Journal::write_head(uint64_t number, uint64_t first) {
  use_ = random_number();
  alignas(64) uint8_t block[kBlock];
  put_head({kFormat, number, use_, first, folder_id_, tree_}, block);
  std::vector<iovec> buffers{{block, sizeof block}};
  disk_->write(file_, buffers, at_);
  ++syncs;
  disk_->sync(file_);
  at_ += kBlock;
  written += kBlock;
}

// The last segment of the server's last life goes on, behind a new head.
void Journal::continue_segment(uint64_t first) {
  file_ = disk_->open(here_);
  try {
    size_ = disk_->size(file_);
    at_ = next_block(place_);
    if (at_ + 2 * kBlock > size_) {
      end();
    } else {
      write_head(number_here_, first);
    }
  } catch (...) {
    end();
    throw;
  }
  place_ = 0;
}

void Journal::next_segment(uint64_t first, uint64_t needed) {
  end();
  const std::string name = name_of(number_);
  std::string old;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      old = std::move(free_.back());
      free_.pop_back();
    }
  }
  bool renamed = false;
  try {
    if (!old.empty() && old != name) disk_->rename(old, name);
    renamed = !old.empty();
    file_ = disk_->open(name);
    const uint64_t wanted = std::min(largest_, std::max(kFirstSegment, 2 * size_));
    uint64_t size = next_block(std::max({needed, wanted, disk_->size(file_)}));
    try {
      disk_->allocate(file_, size);
    } catch (const DiskFailed&) {  // a full disk may have room for this group
      size = next_block(std::max(needed, disk_->size(file_)));
      disk_->allocate(file_, size);
    }
    at_ = 0;
    write_head(number_, first);
    disk_->sync_folder();
    ++syncs;
    size_ = size;
    const std::lock_guard<std::mutex> lock(mutex_);
    busy_.push_back({name, first});
  } catch (...) {
    end();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (renamed) free_.push_back(name);  // whatever it contains
    throw;
  }
  ++number_;
}

void Journal::end() noexcept {
  if (file_ >= 0) disk_->close(file_);
  file_ = -1;
}

}  // namespace fastagg::log
