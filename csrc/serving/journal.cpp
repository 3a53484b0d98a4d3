#include "journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "../cpu/cpu.h"
#include "ledger.h"
#include "unlocked.h"

namespace fastagg::serving {
namespace {

using std::chrono::milliseconds;

constexpr size_t kHeader = 48, kBlock = 4096;
constexpr uint64_t kGroup = 32u << 20;     // the largest group of records for one sync, in bytes
constexpr uint64_t kPending = 256u << 20;  // the most bytes in the queue if no sender waits for the disk
constexpr milliseconds kIdle{50};          // the longest time that a record waits if no sender waits for it
constexpr milliseconds kAgain{500};        // the time between two attempts on a full disk
constexpr milliseconds kSignals{50};       // how often a waiting caller checks for Ctrl-C
constexpr int kIdleRounds = 20;            // after so many rounds without a record the thread sleeps until it is woken
constexpr size_t kMostBuffers = 512;       // of one call; the system's limit is 1,024
constexpr size_t kSpares = 64, kSmall = 65536;  // how many written records are reused, and the largest of them in bytes
constexpr uint8_t kZeros[8] = {};

thread_local double seconds_waited = 0.0;

using Header = std::array<uint8_t, kHeader>;

// The fields: magic, CRC of all that follows, use, sequence, synced, length, kind, zeros. They are little endian, as on
// all supported processors.
Header header_of(const Entry& entry, uint64_t use, uint64_t synced) {
  Header head{};
  const uint64_t numbers[4] = {use, entry.sequence, synced, entry.length()};
  std::memcpy(head.data(), "FAGR", 4);
  std::memcpy(head.data() + 8, numbers, sizeof numbers);
  head[40] = entry.kind;
  uint32_t crc = cpu::crc32c(head.data() + 8, kHeader - 8, 0, false);
  crc = cpu::crc32c(entry.own.data(), static_cast<int64_t>(entry.own.size()), crc, false);
  for (const Part& part : entry.parts) crc = cpu::crc32c(part.data, static_cast<int64_t>(part.size), crc, false);
  std::memcpy(head.data() + 4, &crc, sizeof crc);
  return head;
}

void add(std::vector<iovec>& buffers, const void* data, size_t size) {
  if (size > 0) buffers.push_back({const_cast<void*>(data), size});
}

std::string error_of(int number) { return "OSError: [Errno " + std::to_string(number) + "] " + std::strerror(number); }

}  // namespace

struct Journal::Failed {
  std::string what;
  bool final;
};

size_t Entry::length() const {
  size_t sum = own.size();
  for (const Part& part : parts) sum += part.size;
  return sum;
}

void Entry::copy_parts() {
  own.reserve(length());
  for (const Part& part : parts) {
    const auto* bytes = static_cast<const uint8_t*>(part.data);
    own.insert(own.end(), bytes, bytes + part.size);
  }
  parts.clear();
}

void Entry::clear() noexcept {
  waits = false;
  own.clear();
  parts.clear();
  row.reset();
  blob.reset();
}

Journal::Journal(py::object files, bool direct, std::string folder, uint64_t sequence)
    : durable(sequence),
      files_(std::move(files)),
      direct_(direct),
      folder_(std::move(folder)),
      process_(getpid()),
      last_(sequence) {}

Journal::~Journal() {
  if (PyGILState_Check() == 0) files_.release();  // the journal's thread destroys it if `close` did not wait
  // iterative, because recursion over a long queue would overflow the stack
  while (first_) first_ = std::move(first_->next);
  while (spare_) spare_ = std::move(spare_->next);
}

std::shared_ptr<Journal> Journal::begin(py::object files, bool direct, std::string folder, uint64_t sequence) {
  auto journal = std::make_shared<Journal>(std::move(files), direct, std::move(folder), sequence);
  std::thread([journal] { journal->work(); }).detach();  // `close` waits for the thread
  return journal;
}

double Journal::waited() { return seconds_waited; }

std::string Journal::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

std::string Journal::refusal() const {
  if (closing_) return folder_ + ": this server is closed";
  if (final_) return folder_ + ": the disk lost what was written to it (" + failure_ + "); open the folder again";
  return folder_ + ": the journal cannot be written: " + failure_ + ". It is tried again";
}

void Journal::check() {
  if (waiting >= max_waiting)
    throw Busy(std::to_string(waiting) + " answers wait for the journal already (max_waiting): send this one later");
  const bool full = mode != Mode::kArrival && pending > kPending;
  if (!failed_ && !full) return;
  Unlocked unlocked;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!failed_ && pending > kPending) {
    urgent_ = true;
    wake_.notify_one();
    if (done_.wait_for(lock, kSignals) != std::cv_status::timeout) continue;
    lock.unlock();
    unlocked.check_signals();
    lock.lock();
  }
  if (!failed_) return;
  urgent_ = true;  // wakes the thread, which tries the disk again
  wake_.notify_one();
  throw NotDurable(refusal());
}

Queued Journal::fresh(uint8_t kind) {
  if (!ready_) return std::make_unique<Entry>(kind);
  ready_->kind = kind;
  return std::move(ready_);
}

void Journal::push(Queued entry) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  entry->sequence = ++last_;
  if (entry->blob) entry->blob->sequence = entry->sequence;
  pending += kHeader + entry->length();
  Entry* added = entry.get();
  (newest_ == nullptr ? first_ : newest_->next) = std::move(entry);
  newest_ = added;
  if (!ready_ && spare_) {
    Queued rest = std::move(spare_->next);
    ready_ = std::move(spare_);
    spare_ = std::move(rest);
    --spares_;
  }
  const bool much = pending > kGroup / 4 && !urgent_;
  urgent_ = urgent_ || much;
  if (asleep_ || much) wake_.notify_one();
}

void Journal::wait(uint64_t sequence) {
  if (durable >= sequence) return;
  const auto begun = std::chrono::steady_clock::now();
  struct Counted {
    Journal& journal;
    std::chrono::steady_clock::time_point begun;
    ~Counted() {
      --journal.waiting;
      seconds_waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    }
  };
  ++waiting;
  const Counted counted{*this, begun};
  Unlocked unlocked;
  std::unique_lock<std::mutex> lock(mutex_);
  while (durable < sequence) {
    if (failed_) throw NotDurable(refusal());
    if (!urgent_) {
      urgent_ = true;
      wake_.notify_one();
    }
    if (done_.wait_for(lock, kSignals) != std::cv_status::timeout) continue;
    lock.unlock();
    unlocked.check_signals();
    lock.lock();
  }
}

void Journal::take_back(const uint64_t* sequences, size_t count) noexcept {
  const auto written_now = [&](bool at_all) {
    for (size_t k = 0; k < count; ++k)
      if (sequences[k] > durable && (at_all || sequences[k] <= begun_)) return true;
    return false;
  };
  if (!written_now(true)) return;
  const Unlocked unlocked;
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [&] { return !written_now(false); });
  for (Entry* one = first_.get(); one != nullptr; one = one->next.get()) {
    bool mine = false;
    for (size_t k = 0; k < count; ++k) mine = mine || sequences[k] == one->sequence;
    if (!mine) continue;
    try {
      if (!final_) one->copy_parts();
    } catch (const std::bad_alloc&) {  // the update is in the model, but its record cannot be kept
      failed_ = final_ = true;
      failure_ = "MemoryError";
    }
    one->parts.clear();
  }
}

void Journal::close(double seconds) {
  if (getpid() != process_) return;  // the thread does not exist in a forked child
  {
    const Unlocked unlocked;
    std::unique_lock<std::mutex> lock(mutex_);
    closing_ = true;
    wake_.notify_one();
    done_.notify_all();
    const auto ended = [this] { return ended_; };
    if (seconds < 0) {
      done_.wait(lock, ended);
    } else {
      done_.wait_for(lock, std::chrono::duration<double>(seconds), ended);
    }
    if (!ended_) return;
  }
  files_ = py::none();
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
      const uint64_t its = kHeader + one->length();
      if (!group.empty() && size + its > kGroup) break;
      group.push_back(one);
      size += its;
    }
    begun_ = group.back()->sequence;
    urgent_ = false;
    lock.unlock();
    std::string wrong;
    bool final = false;
    try {
      write(group);
    } catch (const Failed& failed) {
      wrong = failed.what;
      final = failed.final;
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    lock.lock();
    begun_ = 0;
    failure_ = wrong;
    failed_ = !wrong.empty();
    final_ = final_ || final;
    if (wrong.empty()) {
      durable = group.back()->sequence;
      for (size_t k = 0; k < group.size(); ++k) {
        pending -= kHeader + first_->length();
        Queued rest = std::move(first_->next);
        if (spares_ < kSpares && first_->own.capacity() <= kSmall) {
          first_->clear();
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

void Journal::write(const std::vector<Entry*>& group) {
  uint64_t needed = 0;
  for (const Entry* one : group) needed += kHeader + one->length() + 8;
  if (file_ < 0 || at_ + needed > size_) next_segment(group.front()->sequence, needed + kBlock);
  std::vector<Header> heads;
  std::vector<iovec> buffers;
  heads.reserve(group.size());
  uint64_t end = at_;
  for (const Entry* one : group) {
    if (one->blob) {
      ask(true, [&] { files_.attr("settle")(one->blob->file); });
      ++syncs;
    }
    heads.push_back(header_of(*one, use_, durable));
    add(buffers, heads.back().data(), kHeader);
    add(buffers, one->own.data(), one->own.size());
    for (const Part& part : one->parts) add(buffers, part.data, part.size);
    const size_t length = one->length(), gap = (8 - length % 8) % 8;
    add(buffers, kZeros, gap);
    end += kHeader + length + gap;
  }
  const bool past = direct_ && end - at_ >= PastCache::kLarge && past_cache_.write(buffers, at_);
  if (!past) put(buffers, at_);
  sync();
  for (const Entry* one : group)
    if (one->blob) ask(true, [&] { files_.attr("close")(one->blob->file); });
  ++groups;
  written += end - at_;
  at_ = (end + kBlock - 1) / kBlock * kBlock;
}

void Journal::put(std::vector<iovec>& buffers, uint64_t offset) {
  if (!direct_) {
    ask(false, [&] {
      py::list views;
      for (const iovec& one : buffers)
        views.append(py::memoryview::from_memory(one.iov_base, static_cast<py::ssize_t>(one.iov_len), true));
      files_.attr("write")(file_, views, offset);
    });
    return;
  }
  for (size_t i = 0; i < buffers.size();) {
    const auto count = static_cast<int>(std::min(buffers.size() - i, kMostBuffers));
    const ssize_t done = pwritev(file_, &buffers[i], count, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) throw Failed{error_of(errno), false};
    offset += static_cast<uint64_t>(done);
    auto left = static_cast<size_t>(done);
    while (i < buffers.size() && left >= buffers[i].iov_len) left -= buffers[i++].iov_len;
    if (left > 0) {
      buffers[i].iov_base = static_cast<char*>(buffers[i].iov_base) + left;
      buffers[i].iov_len -= left;
    }
  }
}

// After a failed sync the system may have dropped the data. A second sync could then falsely succeed, so the failure is
// final.
void Journal::sync() {
  ++syncs;
  if (!direct_) return ask(true, [&] { files_.attr("sync")(file_); });
  int failed = 0;
  do {
#if defined(__linux__)
    failed = fdatasync(file_);
#else
    failed = fsync(file_);
#endif
  } while (failed != 0 && errno == EINTR);
  if (failed != 0) throw Failed{error_of(errno), true};
}

// Asks Python to do `act`. `final`: if it fails, nothing in this folder can be relied on any more.
template <typename Act>
void Journal::ask(bool final, Act act) {
  if (Py_IsInitialized() == 0) throw Failed{"Python has ended", true};
  or_sleep([&] {
    const py::gil_scoped_acquire acquire;
    try {
      act();
    } catch (py::error_already_set& error) {
      const bool of_disk = error.matches(PyExc_OSError);
      const std::string name = py::str(error.type().attr("__name__")), said = py::str(error.value());
      throw Failed{name + ": " + said, final || !of_disk};
    }
  });
}

void Journal::next_segment(uint64_t first, uint64_t needed) {
  end();
  ask(false, [&] {
    const py::tuple found = files_.attr("next_segment")(first, needed);
    file_ = py::cast<int>(found[0]);
    use_ = py::cast<uint64_t>(found[1]);
    size_ = py::cast<uint64_t>(found[2]);
  });
  if (direct_) past_cache_.open(file_);
  at_ = kBlock;
}

void Journal::end() {
  if (file_ < 0) return;
  const int file = file_;
  file_ = -1;
  if (direct_) {
    past_cache_.close();
    ::close(file);
    return;
  }
  try {
    ask(true, [&] { files_.attr("close")(file); });
  } catch (const Failed&) {  // the file is not written to any more
  }
}

}  // namespace fastagg::serving
