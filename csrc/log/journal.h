// The journal writes a server's operations to disk as records. Records wait in a queue. One thread writes the queued
// records in groups, with one sync for each group (segment.h has the format).
//
// A record is made before the engine changes anything, because making a record may fail. Queueing the record cannot
// fail, and is part of the change. So neither an interrupt nor a failed allocation can come between a change and its
// record. A record owns its memory. The step may read the update from that memory.
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

// An update that was streamed into a file. The file is on the disk before the answer's record is made. The journal has
// no descriptor of the file, because fastagg/durable/uploads.py owns the file.
struct Blob {
  uint64_t number = 0, nbytes = 0;
  uint32_t crc = 0;
  uint8_t dtype = 0;
  std::atomic<uint64_t> sequence{0};  // the number of the answer's record; 0 until the record is queued
};

// A record in the queue. The record's head, directly followed by its body, lies in memory that the entry owns.
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
  bool waits = false;   // whether the sender waits until the record is on the disk
  bool counts = false;  // whether the record's digest is kept, for the receipt of an answer
  uint64_t sequence = 0;
  store::Block memory;
  size_t begin = 0, length = 0, capacity = 0;  // in bytes: the head's offset, the body's length, the body's capacity
  size_t facts = 0;                            // the most bytes of the body that the digest covers
  size_t fields = 0;                           // the offset in the body of the fixed fields, in bytes
  std::shared_ptr<Blob> blob;
};
// A list of one entry, or an empty list. `push` moves the list's node into the queue, so `push` allocates nothing.
using RecordList = std::list<Entry>;

class Journal {
 public:
  enum class Mode { kNone, kStep, kArrival };  // the senders that wait for the disk: none, those of a step, or all

  // The log that a journal continues.
  struct LogStart {
    std::string folder;          // the folder's name, for messages
    uint64_t folder_id = 0;      // the folder's random number
    uint64_t sequence = 0;       // the number of the last record that is on the disk
    Digest digest{};             // the digest of all records up to `sequence`
    uint64_t number = 0;         // the number of the next segment
    uint64_t segment_bytes = 0;  // the largest size of a segment, in bytes
    uint64_t pending_bytes = 0;  // `check` waits while the queue has more bytes than this
    struct NeededSegment {       // a segment that a recovery needs, and the number of its first record
      std::string name;
      uint64_t first;
    };
    std::vector<NeededSegment> busy;  // the needed segments, in the order of their records
    std::vector<std::string> free;    // names of files that may become segments
    // The log continues at byte `place` of the last segment in `busy`. That segment has the number `number_here`. If
    // `place` is 0, the log continues in a new segment.
    uint64_t place = 0, number_here = 0;
  };
  Journal(std::unique_ptr<Disk> disk, LogStart start);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  static std::shared_ptr<Journal> begin(std::unique_ptr<Disk> disk, LogStart start);

  // The caller of the next four functions holds the server's lock, so records are in the order of the changes. `check`
  // waits while too many bytes are queued, and throws Refusal: kNotDurable after a failed write, or kBusy if too many
  // senders wait for the disk.
  void check();
  uint64_t next() const { return last_ + 1; }
  RecordList entry(uint8_t kind, size_t nbytes);  // makes an entry for a body of up to `nbytes` bytes
  void push(RecordList entry) noexcept;           // queues the entry with the number `next()`
  // Whether an answer's sender waits for the disk. `applied`: whether the answer made a step.
  bool waits(bool applied) const { return mode == Mode::kArrival || (mode == Mode::kStep && applied); }

  void wait(uint64_t sequence);  // Waits until the record is on the disk. Throws Refusal, kNotDurable.
  // Waits until the journal has written `bytes` bytes in all, including uploads. Returns earlier if `nudge` is called,
  // a write fails, or the journal is closed.
  void wait_written(uint64_t bytes);
  void nudge() noexcept;
  // Makes the journal's thread write the queued records and end. Waits for the thread's end, but at most `seconds` if
  // `seconds` is not negative. Returns whether the thread has ended. Several threads may call `close`.
  bool close(double seconds);
  // Renames the segments that no recovery needs any more to free files. All records of these segments have numbers up
  // to `sequence`. Returns the new names. Throws DiskError. Only one thread at a time may call `release`.
  std::vector<std::string> release(uint64_t sequence);
  void reuse(const std::string& name);  // Adds a free file. If a write has failed, it is tried again at once.
  std::string give_up();                // Removes a free file from the list. Returns its name, or "" if there is none.
  std::string failure() const;          // the last write's error, or "" if the write succeeded
  bool ended() const;                   // whether the journal's thread has ended

  std::atomic<Mode> mode{Mode::kNone};
  std::atomic<int64_t> max_waiting{std::numeric_limits<int64_t>::max()};
  std::atomic<uint64_t> durable, syncs{0}, groups{0}, written{0}, pending{0};
  std::atomic<int64_t> waiting{0};  // the number of senders that wait for the disk
  uint64_t last() const { return last_; }
  // Returns the digest of all records up to record `sequence`. Returns nullopt if that record is not on the disk, or if
  // its digest is no longer kept.
  std::optional<Digest> digest(uint64_t sequence) const;
  // Keeps the last record's digest until the next call of `mark`. The caller holds the server's lock.
  void mark() noexcept;

  static double waited();  // the seconds that the calling thread has waited for disks so far

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

  mutable std::mutex mutex_;  // never held while a file is written
  std::condition_variable wake_, done_;
  std::list<Entry> queue_, spare_;  // spare_: written entries, for reuse
  std::atomic<uint64_t> last_, marked_{0};
  bool urgent_ = false, closing_ = false, nudged_ = false, asleep_ = false, ended_ = false;
  std::atomic<bool> failed_{false};
  bool final_ = false;  // whether the failure is permanent
  std::string failure_;
  std::deque<LogStart::NeededSegment> busy_;
  std::vector<std::string> free_;
  struct Root {
    uint64_t sequence;
    Digest digest;
  };
  std::unique_ptr<Root[], void (*)(void*)> roots_;  // recent digests; that of record i is at i % kRoots
  Root mark_{};

  // Used by the journal's thread only.
  uint64_t number_, place_, number_here_;
  std::string here_;
  int file_ = -1;
  bool is_new_ = true;  // whether this journal has written nothing to the segment yet
  uint64_t use_ = 0, at_ = 0, size_ = 0;
  Digest digest_, digest_next_;  // digest_: of all records on the disk; digest_next_: also of the group being written
  std::vector<Root> found_;
  struct PreparedSegment {  // the next segment, whose head is on the disk, and which no mark names
    int file = -1;
    std::string name;
    uint64_t use = 0, size = 0;
  } prepared_;
};

}  // namespace fastagg::log
