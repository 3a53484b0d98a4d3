// The journal writes a server's operations to disk as records. Records wait in a queue. One thread writes them in
// groups, with one sync for each group (segment.h has the format).
//
// A record is made before its call changes anything, because making a record may fail. Queueing the record cannot fail,
// and is part of the change. So neither an interrupt nor a failed allocation can fall between an answer and its record.
// A record owns its memory. The step may read the update from that memory.
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

// An update that was streamed into a file. The file is on the disk before its record is made. The journal has no
// descriptor of the file, because fastagg/durable/uploads.py owns the file.
struct Blob {
  uint64_t number = 0, nbytes = 0;
  uint32_t crc = 0;
  uint8_t dtype = 0;
  std::atomic<uint64_t> sequence{0};  // the record's number; 0 until it is queued
};

// A record. Its head, directly followed by its body, lies in memory that the entry owns.
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
  bool counts = false;  // whether the record is an answer's, whose receipt has a digest
  uint64_t sequence = 0;
  store::Block memory;
  size_t begin = 0, length = 0, capacity = 0;  // in bytes; `capacity`: of the body
  size_t facts = 0;                            // how many bytes of the body the digest covers
  size_t fields = 0;                           // the byte of the body where fixed fields begin
  std::shared_ptr<Blob> blob;
};
// One entry, or none. `push` moves the list's node into the queue, so `push` allocates nothing.
using RecordList = std::list<Entry>;

class Journal {
 public:
  enum class Mode { kNone, kStep, kArrival };  // the senders that wait for the disk: none, those of a step, or all

  // Where a journal continues a log.
  struct LogStart {
    std::string folder;          // its name, for messages
    uint64_t folder_id = 0;      // the folder's random number
    uint64_t sequence = 0;       // the number of the last record that is on the disk
    Digest digest{};             // of all records up to `sequence`
    uint64_t number = 0;         // the number of the next segment
    uint64_t segment_bytes = 0;  // the largest size of a segment, in bytes
    uint64_t pending_bytes = 0;  // with more bytes in the queue, `check` waits
    struct NeededSegment {       // a segment that a recovery needs, and the number of its first record
      std::string name;
      uint64_t first;
    };
    std::vector<NeededSegment> busy;  // in the order of their records
    std::vector<std::string> free;    // names of files that may become segments
    // The log continues at byte `place` of the last busy segment, whose number is `number_here`. 0: in a new segment.
    uint64_t place = 0, number_here = 0;
  };
  Journal(std::unique_ptr<Disk> disk, LogStart start);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  static std::shared_ptr<Journal> begin(std::unique_ptr<Disk> disk, LogStart start);

  // Whoever makes records holds the server's lock. So records are in the order of the changes.
  // Throws Refusal: kNotDurable, or kBusy if too many senders wait. Waits while too many bytes are queued.
  void check();
  uint64_t next() const { return last_ + 1; }
  RecordList entry(uint8_t kind, size_t nbytes);  // with room for a body of `nbytes` bytes
  void push(RecordList entry) noexcept;           // gives the entry the number `next()`
  bool waits(bool applied) const { return mode == Mode::kArrival || (mode == Mode::kStep && applied); }

  void wait(uint64_t sequence);  // Waits until the record is on the disk. Throws Refusal, kNotDurable.
  // Waits until so many bytes were written (those of uploads count), or `nudge` is called, or a write fails, or the
  // journal is closed.
  void wait_written(uint64_t bytes);
  void nudge() noexcept;
  // Makes the journal's thread write the queued records and end. Waits for that at most `seconds`; negative: no limit.
  // Returns whether the thread has ended. Any thread may call `close`, and more than once.
  bool close(double seconds);
  // Renames segments as free files if all their records are numbered at most `sequence`: no recovery will need those
  // records. Returns the new names. Throws DiskError. Only one thread at a time calls this.
  std::vector<std::string> release(uint64_t sequence);
  void reuse(const std::string& name);  // Adds a free file. A failed write is tried again at once.
  std::string give_up();                // Removes a free file, and returns its name; empty: there is none.
  std::string failure() const;
  bool ended() const;  // whether the journal's thread has ended

  std::atomic<Mode> mode{Mode::kNone};
  std::atomic<int64_t> max_waiting{std::numeric_limits<int64_t>::max()};
  std::atomic<uint64_t> durable, syncs{0}, groups{0}, written{0}, pending{0};
  std::atomic<int64_t> waiting{0};
  uint64_t last() const { return last_; }
  // The digest of all records up to this one. None if the record is not on the disk, or its digest is forgotten
  // already.
  std::optional<Digest> digest(uint64_t sequence) const;
  // Keeps the last record's digest until the next call of `mark`. The caller holds the server's lock.
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
  std::unique_ptr<Root[], void (*)(void*)> roots_;  // at the record's number modulo kRoots
  Root mark_{};

  // Used by the journal's thread only.
  uint64_t number_, place_, number_here_;
  std::string here_;
  int file_ = -1;
  bool is_new_ = true;  // this life has written nothing to the segment yet
  uint64_t use_ = 0, at_ = 0, size_ = 0;
  Digest digest_, digest_next_;  // of all records on the disk; the same with the group being written
  std::vector<Root> found_;
  struct PreparedSegment {  // the next segment: its head is on the disk, and no mark names it yet
    int file = -1;
    std::string name;
    uint64_t use = 0, size = 0;
  } prepared_;
};

}  // namespace fastagg::log
