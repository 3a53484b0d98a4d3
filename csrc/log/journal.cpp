#include "journal.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <random>
#include <thread>
#include <utility>

#include "../refusal.h"
#include "../store/blocking.h"
#include "operation.h"

namespace fastagg::log {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kGroup = 32u << 20;  // the most bytes in a group of records; a larger record is a group of its own
constexpr milliseconds kIdle{50};       // the longest wait for further records before the queued records are written
constexpr milliseconds kAgain{500};     // the longest pause before a failed write is tried again
constexpr milliseconds kSignals{50};    // the interval at which a waiting caller checks for signals such as Ctrl-C
constexpr int kIdleRounds = 20;  // after this number of waits without a record, the thread sleeps until it is notified
constexpr size_t kSpares = 64, kSmall = 65536;  // the most entries kept for reuse; the most bytes of each one's body
constexpr size_t kLarge = size_t{1} << 20;  // in bytes; records of this size or more are written with Disk::write_block
constexpr uint64_t kFirstSegment = 256u << 10;  // in bytes; each later segment is twice as large, up to a limit
constexpr uint64_t kNew = 500'000'000'000;      // the least random number of a new file; segments have smaller numbers
constexpr size_t kRoots = 65536;                // how many records' digests are kept in memory, at most

thread_local double seconds_waited = 0.0;

uint64_t random_number() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

// Returns the name of a segment (`kind` is "journal"), or of a free file, which may become a segment ("free").
std::string name_of(const char* kind, uint64_t number) {
  char name[32];
  std::snprintf(name, sizeof name, "%s-%012llu", kind, static_cast<unsigned long long>(number));
  return name;
}
std::string segment_name(uint64_t number) { return name_of("journal", number); }
std::string free_name(uint64_t number) { return name_of("free", number); }

}  // namespace

Journal::Journal(std::unique_ptr<Disk> disk, LogStart start)
    : durable(start.sequence),
      disk_(std::move(disk)),
      folder_(std::move(start.folder)),
      folder_id_(start.folder_id),
      largest_(start.segment_bytes),
      most_pending_(start.pending_bytes),
      process_(getpid()),
      last_(start.sequence),
      busy_(start.busy.begin(), start.busy.end()),
      free_(std::move(start.free)),
      roots_(static_cast<Root*>(std::calloc(kRoots, sizeof(Root))), std::free),
      number_(start.number),
      place_(start.place),
      number_here_(start.number_here),
      digest_(start.digest),
      digest_next_(digest_) {
  if (!roots_) throw std::bad_alloc();
  failure_.reserve(256);  // so that the thread can store a failure's text without allocating
  roots_[last_ % kRoots] = {last_, digest_};
  if (place_ > 0) here_ = busy_.back().name;
}

std::shared_ptr<Journal> Journal::begin(std::unique_ptr<Disk> disk, LogStart start) {
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
  for (const Root& root : {roots_[sequence % kRoots], mark_})
    if (root.sequence == sequence) return root.digest;
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
  if (!failed_ && pending <= most_pending_) return;
  store::BlockingWait blocking;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!failed_ && pending > most_pending_) {
    urgent_ = true;
    wake_.notify_one();
    if (done_.wait_for(lock, kSignals) != std::cv_status::timeout) continue;
    lock.unlock();
    blocking.check();
    lock.lock();
  }
  if (!failed_) return;
  urgent_ = nudged_ = true;  // the thread tries to write again, and `wait_written` returns: a checkpoint may free space
  wake_.notify_one();
  done_.notify_all();
  throw Refusal(Why::kNotDurable, refusal());
}

RecordList Journal::entry(uint8_t kind, size_t nbytes) {
  RecordList made;
  if (nbytes <= kSmall) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto fits = [&](const Entry& queued) { return queued.capacity >= nbytes; };
    const auto place = std::find_if(spare_.begin(), spare_.end(), fits);
    if (place != spare_.end()) made.splice(made.end(), spare_, place);
  }
  Entry& entry = made.empty() ? made.emplace_back() : made.front();
  if (!entry.memory) {
    const bool alone = nbytes + kRecordHead >= kLarge;
    const size_t least = nbytes <= kSmall ? std::max<size_t>(nbytes, 448) : nbytes;
    entry.memory = store::block_of(alone ? next_block(kRecordHead + nbytes) + kBlock : kRecordHead + least + 8);
    entry.capacity = least;
    if (alone) entry.begin = (kBlock - reinterpret_cast<uintptr_t>(entry.memory.get()) % kBlock) % kBlock;
  }
  entry.kind = kind;
  entry.waits = false;
  entry.length = 0;
  entry.facts = UINT32_MAX;
  entry.counts = false;
  return made;
}

void Journal::push(RecordList entry) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  Entry& added = entry.front();
  added.sequence = ++last_;
  if (added.blob) added.blob->sequence = added.sequence;
  pending += added.nbytes();
  queue_.splice(queue_.end(), entry);
  const bool much = pending > kGroup / 4 && !urgent_;
  urgent_ = urgent_ || much;
  if (asleep_ || much) wake_.notify_one();
}

void Journal::wait(uint64_t sequence) {
  if (durable >= sequence) return;
  struct JournalWaiter {
    Journal& journal;
    std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
    ~JournalWaiter() {
      --journal.waiting;
      seconds_waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    }
  };
  ++waiting;
  const JournalWaiter counted{*this};
  store::BlockingWait blocking;
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
  const store::BlockingWait blocking;
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
  if (getpid() != process_) return false;  // a forked child does not have the journal's thread
  const store::BlockingWait blocking;
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

std::vector<std::string> Journal::release(uint64_t sequence) {
  std::vector<std::string> marked;
  try {
    for (;;) {
      std::string name;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (busy_.size() < 2 || busy_[1].first > sequence + 1) break;
        name = busy_.front().name;
      }
      std::string mark = "free" + name.substr(name.find('-'));
      disk_->rename(name, mark);
      marked.push_back(std::move(mark));
      const std::lock_guard<std::mutex> lock(mutex_);
      busy_.pop_front();
    }
    if (!marked.empty()) disk_->sync_folder();
  } catch (...) {  // the renamed files become free files of the journal
    for (const std::string& name : marked) reuse(name);
    throw;
  }
  return marked;
}

void Journal::reuse(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (std::find(free_.begin(), free_.end(), name) == free_.end()) free_.push_back(name);
  urgent_ = true;
  wake_.notify_one();
}

std::string Journal::give_up() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty()) return "";
  std::string name = std::move(free_.back());
  free_.pop_back();
  return name;
}

// -- the journal's thread -------------------------------------------------------------------------------------------

void Journal::work() noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  std::vector<Entry*> group;
  for (;;) {
    for (int round = 0; queue_.empty() && !closing_; ++round) {
      urgent_ = false;
      asleep_ = round >= kIdleRounds;
      if (asleep_) {
        wake_.wait(lock);
      } else {
        wake_.wait_for(lock, kIdle);
      }
      asleep_ = false;
    }
    if (!queue_.empty() && !urgent_ && !closing_) wake_.wait_for(lock, kIdle, [this] { return urgent_ || closing_; });
    if (failed_ && !final_ && !closing_) wake_.wait_for(lock, kAgain);
    if (queue_.empty() || final_ || (closing_ && failed_)) break;
    urgent_ = false;
    std::optional<DiskError> wrong;
    try {
      group.clear();
      uint64_t size = 0;
      // Records stay in the queue until they are on the disk.
      for (Entry& entry : queue_) {
        if (!group.empty() && size + entry.nbytes() > kGroup) break;
        group.push_back(&entry);
        size += entry.nbytes();
      }
      lock.unlock();
      write(group);
    } catch (const DiskError& failed) {
      wrong = failed;
    } catch (const std::exception& error) {
      // The error may be std::bad_alloc. The write is tried again, as after a disk error that is not final.
      wrong.emplace(error.what(), false);
    }
    if (!lock.owns_lock()) lock.lock();
    failure_.assign(wrong ? wrong->what() : "");
    nudged_ = nudged_ || (wrong && !failed_);
    failed_ = wrong.has_value();
    final_ = final_ || (wrong && wrong->final);
    if (!wrong) {
      durable = group.back()->sequence;
      digest_ = digest_next_;
      for (const Root& root : found_) {
        roots_[root.sequence % kRoots] = root;
        if (root.sequence == marked_) mark_ = root;
      }
      for (Entry* const entry : group) {
        pending -= entry->nbytes();
        entry->blob.reset();
        if (spare_.size() < kSpares && entry->capacity <= kSmall) {
          spare_.splice(spare_.begin(), queue_, queue_.begin());
        } else {
          queue_.pop_front();
        }
      }
      urgent_ = !queue_.empty();
    }
    done_.notify_all();
    if (final_) break;
  }
  const bool wrote_all = !failed_;
  if (wrote_all) failure_ = "OSError: closed";
  failed_ = final_ = true;
  lock.unlock();
  if (wrote_all) write_end();
  end();
  if (prepared_.file >= 0) disk_->close(std::exchange(prepared_.file, -1));
  lock.lock();
  ended_ = true;
  done_.notify_all();
}

// Writes a group of records, and syncs the file. A record of kLarge bytes or more is written by a call of its own.
// Consecutive smaller records are written by one call.
void Journal::write(const std::vector<Entry*>& group) {
  uint64_t needed = kBlock;  // the size of the head that `begin_life` writes
  for (const Entry* entry : group) needed += entry->nbytes() + (entry->nbytes() >= kLarge ? 2 * kBlock : 0);
  // Two more blocks must fit behind the group, for the head of `write_end` and for a mark that names the next segment.
  if (file_ < 0 && place_ > 0) open_segment();
  if (file_ < 0 || at_ + needed + 2 * kBlock > size_) next_segment(group.front()->sequence, needed + 3 * kBlock);
  if (is_new_) begin_life(group.front()->sequence);
  std::vector<iovec> buffers;
  uint64_t begin = at_, end = at_;
  digest_next_ = digest_;
  found_.clear();
  const auto put = [&] {
    if (!buffers.empty()) disk_->write(file_, buffers, begin);
    buffers.clear();
    begin = end;
  };
  for (Entry* entry : group) {
    uint8_t* const head = entry->body() - kRecordHead;
    RecordHead about{};
    about.use = use_, about.sequence = entry->sequence, about.synced = durable, about.length = entry->length;
    about.kind = entry->kind, about.facts = static_cast<uint32_t>(std::min(entry->facts, entry->length));
    put_head(about, head);
    digest_next_ = chained(digest_next_, head);
    if (entry->counts || entry->sequence == marked_ || entry == group.back())
      found_.push_back({entry->sequence, digest_next_});
    std::memset(entry->body() + entry->length, 0, gap_of(entry->length));
    if (entry->nbytes() < kLarge) {
      buffers.push_back({head, entry->nbytes()});
      end += entry->nbytes();
      continue;
    }
    end = next_block(end);
    put();
    const size_t whole = next_block(entry->nbytes());
    std::memset(head + entry->nbytes(), 0, whole - entry->nbytes());
    disk_->write_block(file_, head, whole, begin);
    begin = end = begin + whole;
  }
  put();
  ++syncs;
  disk_->sync(file_);
  for (const Entry* entry : group) written += entry->blob ? entry->blob->nbytes : 0;
  ++groups;
  written += next_block(end) - at_;
  at_ = next_block(end);
}

void Journal::write_block(int file, BlockHead head, uint64_t at) {
  head.folder = folder_id_;
  head.digest = digest_;
  alignas(64) uint8_t block[kBlock];
  put_head(head, block);
  std::vector<iovec> buffers{{block, sizeof block}};
  disk_->write(file, buffers, at);
  ++syncs;
  disk_->sync(file);
  written += kBlock;
}

// Opens the segment to which the server's previous process wrote last. The log continues in that segment.
void Journal::open_segment() {
  file_ = disk_->open(here_);
  try {
    size_ = disk_->size(file_);
  } catch (...) {
    end();
    throw;
  }
  at_ = next_block(place_), place_ = 0, is_new_ = true;
}

// Writes a head at the end of the log, before record number `first`. Records behind the head have the head's `use`.
void Journal::begin_life(uint64_t first) {
  const uint64_t use = random_number();
  BlockHead head{};
  head.number = number_here_, head.use = use, head.first = first, head.size = size_;
  write_block(file_, head, at_);
  at_ += kBlock, use_ = use, is_new_ = false;
}

// Writes a head behind the last record, at the journal's end. The head proves later that all records were on the disk.
void Journal::write_end() noexcept {
  try {
    if (file_ >= 0 && !is_new_) begin_life(durable + 1);
  } catch (const std::exception&) {  // the log then ends without this head
  }
}

// Prepares the file of the next segment. The file has a free file's name until the segment's head is on the disk.
// `first`: the number of the segment's first record. `needed`: the least size in bytes.
void Journal::prepare(uint64_t first, uint64_t needed) {
  std::string name = free_name(kNew + random_number() % kNew);  // random, so that no other new file has the number
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      name = std::move(free_.back());
      free_.pop_back();
    }
  }
  int file = -1;
  try {
    file = disk_->open(name);
    const uint64_t wanted = std::min(largest_, std::max(kFirstSegment, 2 * size_));
    const uint64_t least = next_block(std::max(needed, disk_->size(file)));
    uint64_t size = std::max(least, next_block(wanted));
    for (;; size = std::max(least, next_block(size / 2))) try {
        disk_->allocate(file, size);
        break;
      } catch (const DiskError&) {  // a full disk may have room for a smaller file
        if (size == least) throw;
      }
    BlockHead head{};
    head.number = number_, head.use = random_number(), head.first = first, head.size = size;
    write_block(file, head, 0);
    disk_->rename(name, segment_name(number_));
    prepared_ = {file, segment_name(number_), head.use, size};
  } catch (...) {
    if (file >= 0) {
      disk_->close(file);
      const std::lock_guard<std::mutex> lock(mutex_);
      // The next attempt takes another free file, which may have more room.
      free_.insert(free_.begin(), std::move(name));
    }
    throw;
  }
  disk_->sync_folder();
  ++syncs;
}

// Continues the log in the next segment. A mark in the current segment, if there is one, first names the next segment.
// So only the log's first segment may have records although no mark names that segment.
void Journal::next_segment(uint64_t first, uint64_t needed) {
  if (prepared_.file >= 0 && prepared_.size < needed) {  // the group has grown while writes failed
    disk_->rename(prepared_.name, free_name(number_));
    disk_->close(std::exchange(prepared_.file, -1));
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(free_name(number_));
  }
  if (prepared_.file < 0) prepare(first, needed);
  if (file_ >= 0) {
    BlockHead mark{};
    mark.number = number_here_, mark.use = prepared_.use, mark.first = first, mark.size = size_, mark.next = number_;
    write_block(file_, mark, at_);
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    busy_.push_back({prepared_.name, first});
  }
  end();
  file_ = std::exchange(prepared_.file, -1);
  use_ = prepared_.use, size_ = prepared_.size, at_ = kBlock, is_new_ = false;
  number_here_ = number_++;
}

void Journal::end() noexcept {
  if (file_ >= 0) disk_->close(file_);
  file_ = -1;
}

}  // namespace fastagg::log
