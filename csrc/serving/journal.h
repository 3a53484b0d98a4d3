// The journal writes to disk what happens to a server. Records wait in a queue. One thread, which does not hold the
// GIL, writes them in groups, with one sync for each group. fastagg/storage/segments.py defines and reads the files'
// format.
//
// A record is made before its call changes anything, because making it may fail. It is queued in the same native call,
// which cannot fail. So neither Ctrl-C nor a failed allocation can fall between an arrival and its record. A client's
// encoded row is known only after the step: its record is made with memory for it, which the step fills.
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

#include "../memory/blocks.h"
#include "past_cache.h"

namespace fastagg::serving {

namespace py = pybind11;

// In Python: fastagg.errors.NotDurable.
class NotDurable : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An update that was streamed into a file. The file must be on the disk before the record that refers to it.
struct Blob {
  uint64_t number, nbytes;
  uint32_t crc;
  uint8_t dtype;
  int file;
  std::atomic<uint64_t> sequence{0};  // the number of that record, as soon as it has one
};

struct Part {
  const void* data;
  size_t size;
};

// A record. Its body is `own`, followed by `parts`. These lie in `row`, or in the memory of a sender who waits.
struct Entry {
  explicit Entry(uint8_t of) : kind(of) {}
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  size_t length() const;
  void copy_parts();  // after this call the sender may reuse its memory
  void clear() noexcept;

  uint8_t kind;
  bool waits = false;  // whether the sender waits for the disk
  uint64_t sequence = 0;
  std::vector<uint8_t> own;
  std::vector<Part> parts;
  memory::Block row;  // a client's encoded row
  std::shared_ptr<Blob> blob;
  std::unique_ptr<Entry> next;
};
using Queued = std::unique_ptr<Entry>;

class Journal {
 public:
  enum class Mode { kNone, kStep, kArrival };  // for which arrivals the sender waits

  // `files` does the rare operations: next_segment(first, nbytes) -> (file, use, nbytes), settle(file), close(file). If
  // `direct` is false, it also does write(file, buffers, offset) and sync(file) instead of the operating system. All of
  // them may raise OSError. `sequence` is the number of the last record that is already on the disk.
  Journal(py::object files, bool direct, std::string folder, uint64_t sequence);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  ~Journal();
  static std::shared_ptr<Journal> begin(py::object files, bool direct, std::string folder, uint64_t sequence);

  // Writers hold the server's lock and the GIL. So records are in the order of events.
  // Throws NotDurable or Busy. Waits if too many bytes are queued for which no sender waits.
  void check();
  uint64_t next() const { return last_ + 1; }
  Queued fresh(uint8_t kind);        // an empty entry; reuses the memory of one that was written
  void push(Queued entry) noexcept;  // gives the entry the number `next()`
  bool waits(bool applied) const { return mode == Mode::kArrival || (mode == Mode::kStep && applied); }

  void wait(uint64_t sequence);  // waits until the record is on the disk; throws NotDurable
  // The senders of these records stop waiting. What is not written yet is copied.
  void take_back(const uint64_t* sequences, size_t count) noexcept;
  // Writes what is queued and ends the thread. Waits at most `seconds`, or without a limit if it is negative.
  void close(double seconds);
  std::string failure() const;

  Mode mode = Mode::kNone;
  int64_t max_waiting = std::numeric_limits<int64_t>::max();
  std::atomic<uint64_t> durable, syncs{0}, groups{0}, written{0}, pending{0};
  std::atomic<int64_t> waiting{0};
  uint64_t last() const { return last_; }

  static double waited();  // the seconds that the calling thread has waited so far

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

  mutable std::mutex mutex_;  // its holder never waits for the GIL
  std::condition_variable wake_, done_;
  Queued first_, spare_;  // spare_: written entries that are reused
  size_t spares_ = 0;
  Queued ready_;  // a spare entry for the next writer; only the holder of the server's lock uses it
  Entry* newest_ = nullptr;
  std::atomic<uint64_t> last_;
  uint64_t begun_ = 0;  // the last record of the group that is being written
  bool urgent_ = false, closing_ = false, asleep_ = false, ended_ = false;
  std::atomic<bool> failed_{false};
  bool final_ = false;  // the failure is permanent
  std::string failure_;

  // Used by the journal's thread only.
  int file_ = -1;
  PastCache past_cache_;
  uint64_t use_ = 0, at_ = 0, size_ = 0;
};

}  // namespace fastagg::serving
