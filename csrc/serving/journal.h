// What happens to a server, on its way to the disk: records in a queue, and one thread, which does not hold the GIL,
// that writes them in groups, one sync for each. The format of the files is fastagg/storage/segments.py's, which reads
// them.
//
// A record is made before its call changes anything, since that may fail, and is queued in the same native call, which
// cannot: neither Ctrl-C nor a failed allocation falls between an arrival and its record.
#pragma once

#include <pybind11/pybind11.h>
#include <sys/uio.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "past_cache.h"

namespace fastagg::serving {

namespace py = pybind11;

// Becomes fastagg.errors.NotDurable.
class NotDurable : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An update that was streamed into a file, which must be on the disk before the record that tells of it.
struct Blob {
  uint64_t number, nbytes;
  uint32_t crc;
  uint8_t dtype;
  int file;
  std::atomic<uint64_t> sequence{0};  // of that record, once there is one
};

struct Part {
  const void* data;
  size_t size;
};

// A record: its body is `own`, and then `parts`, which lie in the memory of a sender who waits.
struct Entry {
  explicit Entry(uint8_t of) : kind(of) {}
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  size_t length() const;
  void copy_parts();  // the sender may use its memory again
  void clear() noexcept;

  uint8_t kind;
  bool waits = false;  // whether its sender waits for the disk
  uint64_t sequence = 0;
  std::vector<uint8_t> own;
  std::vector<Part> parts;
  std::shared_ptr<Blob> blob;
  std::unique_ptr<Entry> next;
};
using Queued = std::unique_ptr<Entry>;

class Journal {
 public:
  enum class Mode { kNone, kStep, kArrival };  // which arrivals are waited for

  // `files` does what is rare: next_segment(first, nbytes) -> (file, use, nbytes), settle(file), close(file); and,
  // unless a file is the operating system's own (`direct`), write(file, buffers, offset) and sync(file). All of them
  // may raise OSError. `sequence`: of the last record, which is on the disk.
  Journal(py::object files, bool direct, std::string folder, uint64_t sequence);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  ~Journal();
  static std::shared_ptr<Journal> begin(py::object files, bool direct, std::string folder, uint64_t sequence);

  // Those who write hold the server's lock and the GIL, so that records are in the order in which things happened.
  void check();  // throws NotDurable or Busy; waits where too much does that nobody waits for
  uint64_t next() const { return last_ + 1; }
  Queued fresh(uint8_t kind);        // an empty one: memory that was written is used again
  void push(Queued entry) noexcept;  // `next()` is its number
  bool waits(bool applied) const { return mode == Mode::kArrival || (mode == Mode::kStep && applied); }

  void wait(uint64_t sequence);  // until it is on the disk; throws NotDurable
  // Whoever sent these does not wait any longer: what is not written yet is copied.
  void take_back(const uint64_t* sequences, size_t count) noexcept;
  // Write what waits, and end, no later than after so many seconds; negative: however long that takes.
  void close(double seconds);
  std::string failure() const;

  Mode mode = Mode::kNone;
  int64_t max_waiting = std::numeric_limits<int64_t>::max();
  std::atomic<uint64_t> durable, syncs{0}, groups{0}, written{0}, pending{0};
  std::atomic<int64_t> waiting{0};
  uint64_t last() const { return last_; }

  static double waited();  // seconds that this thread has waited, so far

 private:
  struct Failed;
  void work() noexcept;
  void write(const std::vector<Entry*>& group);
  void put(std::vector<iovec>& buffers, uint64_t offset);
  void sync();
  template <typename Act>
  void ask(bool final, Act act);
  void next_segment(uint64_t first, uint64_t needed);
  void end();
  std::string refusal() const;

  py::object files_;
  const bool direct_;
  const std::string folder_;
  const int process_;

  mutable std::mutex mutex_;  // whoever holds it never waits for the GIL
  std::condition_variable wake_, done_;
  Queued first_, spare_;  // spare_: what was written and may be used again
  size_t spares_ = 0;
  Queued ready_;  // one of those, for who writes next: theirs who hold the server's lock
  Entry* newest_ = nullptr;
  std::atomic<uint64_t> last_;
  uint64_t begun_ = 0;  // the last record of the group that is being written
  bool urgent_ = false, closing_ = false, asleep_ = false, ended_ = false;
  std::atomic<bool> failed_{false};
  bool final_ = false;  // the failure stays
  std::string failure_;

  // The thread's own.
  int file_ = -1;
  PastCache past_cache_;
  uint64_t use_ = 0, at_ = 0, size_ = 0;
};

}  // namespace fastagg::serving
