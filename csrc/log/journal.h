// The journal writes to disk what happens to a server. Records wait in a queue. One thread writes them in groups, with
// one sync for each group (segment.h has the format).
//
// A record is made before its call changes anything, because making it may fail. It is queued together with the change,
// which cannot fail. So neither an interrupt nor a failed allocation can fall between an answer and its record. A
// record has memory of its own, which the step may read its update from.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../store/blocks.h"
#include "disk.h"
#include "segment.h"

namespace fastagg::log {

// An update that was streamed into a file. The file is on the disk before its record is made. The journal knows no
// descriptor of it: it belongs to fastagg/durable/uploads.py.
struct Blob {
  uint64_t number = 0, nbytes = 0;
  uint32_t crc = 0;
  uint8_t dtype = 0;
  std::atomic<uint64_t> sequence{0};  // the number of that record, as soon as it has one
};

// A record. Its head and its body lie one behind the other in memory of its own.
struct Entry {
  Entry() = default;
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  uint8_t* body() const { return static_cast<uint8_t*>(memory.get()) + begin + kRecordHead; }
  size_t nbytes() const { return kRecordHead + length + gap_of(length); }
  template <typename... Each>
  void put(Each... each) {
    (static_cast<void>(std::memcpy(body() + length, &each, sizeof each), length += sizeof each), ...);
  }
  void put_bytes(const void* data, size_t size) {
    if (size > 0) std::memcpy(body() + length, data, size);
    length += size;
  }

  uint8_t kind = 0;
  bool waits = false;   // whether the sender waits for the disk
  bool counts = false;  // it is an answer: its receipt has a digest
  uint64_t sequence = 0;
  store::Block memory;
  size_t begin = 0, length = 0, capacity = 0;  // capacity: of the body
  size_t facts = 0;                            // so much of the body is in the chain (segment.h)
  size_t fields = 0;                           // where in the body an answer's fixed fields are
  std::shared_ptr<Blob> blob;
};
// One, or none: what is queued is not made there.
using RecordList = std::list<Entry>;

class Journal {
 public:
  enum class Mode { kNone, kStep, kArrival };  // for which answers the sender waits

  // Where a journal goes on writing.
  struct LogStart {
    std::string folder;          // for messages
    uint64_t folder_id = 0;      // its random number
    uint64_t sequence = 0;       // of the last record that is on the disk
    Digest digest{};             // of all up to it
    uint64_t number = 0;         // of the next segment
    uint64_t segment_bytes = 0;  // the largest size of a segment
    uint64_t pending_bytes = 0;  // so many may be in the queue before others wait
    struct NeededSegment {       // a segment that a recovery needs: its name and first record
      std::string name;
      uint64_t first;
    };
    std::vector<NeededSegment> busy;      // in order
    std::vector<std::string> free;        // files that wait to be used again, by names that say so
    uint64_t place = 0, number_here = 0;  // in the last busy segment, where the log goes on; 0: in a new one
  };
  Journal(std::unique_ptr<Disk> disk, LogStart start);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  static std::shared_ptr<Journal> begin(std::unique_ptr<Disk> disk, LogStart start);

  // Writers hold the server's lock. So records are in the order of events.
  // Throws Refusal: kNotDurable or kBusy. Waits if too many bytes are queued.
  void check();
  uint64_t next() const { return last_ + 1; }
  RecordList entry(uint8_t kind, size_t nbytes);  // with room for a body of so many bytes
  void push(RecordList entry) noexcept;           // gives the entry the number `next()`
  bool waits(bool applied) const { return mode == Mode::kArrival || (mode == Mode::kStep && applied); }

  void wait(uint64_t sequence);  // until the record is on the disk; throws Refusal, kNotDurable
  // Waits until so many bytes were written, with those of uploads, somebody calls `nudge`, the disk refuses, or the log
  // is closed.
  void wait_written(uint64_t bytes);
  void nudge() noexcept;
  // Writes what is queued and ends the thread. Waits at most `seconds`, or without a limit if it is negative. Returns
  // whether the thread has ended. Any thread may call it, and again.
  bool close(double seconds);
  // No recovery will need the records up to this one: their segments are marked free. Returns their new names. Throws
  // DiskFailed. Only one thread at a time calls this.
  std::vector<std::string> release(uint64_t sequence);
  void reuse(const std::string& name);  // The file, whatever is in it, may be the next segment: it is tried at once.
  std::string give_up();  // the name of a file that waits to be used again, and now does not; empty: there is none
  std::string failure() const;
  bool ended() const;  // nothing will be written any more

  std::atomic<Mode> mode{Mode::kNone};
  std::atomic<int64_t> max_waiting{std::numeric_limits<int64_t>::max()};
  std::atomic<uint64_t> durable, syncs{0}, groups{0}, written{0}, pending{0};
  std::atomic<int64_t> waiting{0};
  uint64_t last() const { return last_; }
  // The digest of all records up to this one, if it is on the disk and remembered: an answer's is for a while.
  std::optional<Digest> digest(uint64_t sequence) const;
  // The last record's digest will be remembered until the next call. The caller holds the server's lock.
  void mark() noexcept;

  static double waited();  // the seconds that the calling thread has waited so far

 private:
  void work() noexcept;
  void write(const std::vector<Entry*>& group);
  void open_segment();
  void begin_life(uint64_t first);
  void prepare(uint64_t first, uint64_t needed);
  void next_segment(uint64_t first, uint64_t needed);
  void write_block(int file, BlockHead head, uint64_t at);
  void write_end() noexcept;
  void end() noexcept;
  std::string refusal() const;

  std::unique_ptr<Disk> disk_;
  const std::string folder_;
  const uint64_t folder_id_, largest_, most_pending_;
  const int process_;

  mutable std::mutex mutex_;  // its holder waits for nothing
  std::condition_variable wake_, done_;
  std::list<Entry> queue_, spare_;  // spare_: written entries that are reused
  std::atomic<uint64_t> last_, marked_{0};
  bool urgent_ = false, closing_ = false, nudged_ = false, asleep_ = false, ended_ = false;
  std::atomic<bool> failed_{false};
  bool final_ = false;  // the failure is permanent
  std::string failure_;
  std::deque<LogStart::NeededSegment> busy_;
  std::vector<std::string> free_;
  struct Root {
    uint64_t sequence;
    Digest digest;
  };
  std::unique_ptr<Root[], void (*)(void*)> roots_;  // of answers, at their number modulo kRoots
  Root mark_{};

  // Used by the journal's thread only.
  uint64_t number_, place_, number_here_;
  std::string here_;
  int file_ = -1;
  bool is_new_ = true;  // this life has written nothing to the segment yet
  uint64_t use_ = 0, at_ = 0, size_ = 0;
  Digest digest_, digest_next_;  // of what is on the disk; and with the group that is being written
  std::vector<Root> found_;
  struct PreparedSegment {  // the next segment: its head is on the disk, and no mark names it yet
    int file = -1;
    std::string name;
    uint64_t use = 0, size = 0;
  } prepared_;
};

}  // namespace fastagg::log
