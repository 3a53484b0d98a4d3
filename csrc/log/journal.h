// The journal writes a server's operations (operation.h) to disk as records. The engine puts records into a queue. One
// thread writes the queued records in groups, with one sync for each group (segment.h has the format).
//
// The engine makes an operation's record before it changes anything, because making a record may fail. It queues the
// record together with the change. Queueing cannot fail. So neither an interrupt nor a failed allocation can come
// between a change and its record. A record owns its memory. The engine may read an update from that memory.
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

// The file `upload-<number>`, into which a client's update was streamed. The file is on the disk before the answer's
// record is made. fastagg/durable/uploads.py owns the file, and the journal never opens it.
struct Blob {
  uint64_t number = 0, nbytes = 0;
  uint32_t crc = 0;
  uint8_t dtype = 0;
  std::atomic<uint64_t> sequence{0};  // the number of the answer's record; 0 until the record is queued
};

// A record for the queue. The entry owns the memory of the record's head and of the body, which follows the head.
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
  bool counts = false;  // whether the journal keeps the record's digest, for an answer's receipt
  uint64_t sequence = 0;
  store::Block memory;
  size_t begin = 0, length = 0, capacity = 0;  // in bytes: the head's offset, the body's length, the body's capacity
  size_t facts = 0;                            // the digest covers this many bytes of the body, or all if it has fewer
  size_t fields = 0;                           // in bytes: the offset of RecordFields in the body (operation.h)
  std::shared_ptr<Blob> blob;
};
// A list of one entry, or an empty list. `push` moves the list's node into the queue, so `push` allocates nothing.
using RecordList = std::list<Entry>;

class Journal {
 public:
  // The answers whose senders wait for the disk. kStep: only answers that made a step. kArrival: all answers.
  enum class Mode { kNone, kStep, kArrival };

  // The log that a journal continues.
  struct LogStart {
    std::string folder;          // the folder's name, for messages
    uint64_t folder_id = 0;      // the folder's random number
    uint64_t sequence = 0;       // the number of the last record that is on the disk
    Digest digest{};             // the digest of all records up to `sequence`
    uint64_t number = 0;         // the number of the next segment
    uint64_t segment_bytes = 0;  // in bytes: the largest size of a segment, unless one group of records needs more
    uint64_t pending_bytes = 0;  // `check` waits while the queue has more bytes than this number
    struct NeededSegment {       // a segment that a recovery needs, and the number of its first record
      std::string name;
      uint64_t first;
    };
    std::vector<NeededSegment> busy;  // the needed segments, in the order of their records
    std::vector<std::string> free;    // names of files that may become segments
    // The log ends at byte `place` of the last segment in `busy`, and continues at the next block. That segment has the
    // number `number_here`. If `place` is 0, the log continues in a new segment.
    uint64_t place = 0, number_here = 0;
  };
  Journal(std::unique_ptr<Disk> disk, LogStart start);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  static std::shared_ptr<Journal> begin(std::unique_ptr<Disk> disk, LogStart start);

  // The callers of `check`, `next`, `entry` and `push` hold the server's lock, so records are in the order of the
  // changes. `check` waits while the queue has more than `pending_bytes` bytes. It throws Refusal: kBusy if at least
  // `max_waiting` senders wait for the disk, and kNotDurable if the last write has failed.
  void check();
  uint64_t next() const { return last_ + 1; }
  RecordList entry(uint8_t kind, size_t nbytes);  // makes an entry for a body of up to `nbytes` bytes
  void push(RecordList entry) noexcept;           // queues the entry with the number `next()`
  // Whether an answer's sender waits for the disk. `applied`: whether the answer made a step.
  bool waits(bool applied) const { return mode == Mode::kArrival || (mode == Mode::kStep && applied); }

  // Waits until record `sequence` is on the disk. Throws Refusal, kNotDurable, after a failed write or `close`.
  void wait(uint64_t sequence);
  // Waits until `written` is at least `bytes`. Returns earlier after a failed write, `nudge` or `close`.
  void wait_written(uint64_t bytes);
  void nudge() noexcept;
  // Makes the journal's thread write the queued records and end. Waits for the thread's end, but at most `seconds` if
  // `seconds` is not negative. Returns whether the thread has ended. Several threads may call `close`. Returns false in
  // a forked child, which does not have the thread.
  bool close(double seconds);
  // Gives names of free files to the segments whose records all have numbers up to `sequence`, except to the last
  // segment. Returns the new names. The caller may remove these files, or pass their names to `reuse`. Throws
  // DiskError. Only one thread at a time may call `release`.
  std::vector<std::string> release(uint64_t sequence);
  void reuse(const std::string& name);  // adds a free file to the list; a failed write is then tried again immediately
  std::string give_up();                // removes a free file from the list; returns its name, or "" if there is none
  std::string failure() const;          // the last write's error; "": no error; "OSError: closed" after an orderly end
  bool ended() const;                   // whether the journal's thread has ended

  std::atomic<Mode> mode{Mode::kNone};
  std::atomic<int64_t> max_waiting{std::numeric_limits<int64_t>::max()};
  // `durable`: the number of the last record on the disk. `syncs`, `groups`: how many syncs and groups of records there
  // were. `written`: the bytes of all writes, and of uploads that written records name. `pending`: the bytes in the
  // queue. `waiting`: the number of senders that wait for the disk.
  std::atomic<uint64_t> durable, syncs{0}, groups{0}, written{0}, pending{0};
  std::atomic<int64_t> waiting{0};
  uint64_t last() const { return last_; }
  // Returns the digest of all records up to record `sequence`. Returns nullopt if that record is not on the disk, or if
  // the journal has not kept its digest.
  std::optional<Digest> digest(uint64_t sequence) const;
  // Keeps the last record's digest until the next call of `mark`. The caller holds the server's lock.
  void mark() noexcept;

  static double waited();  // the seconds that the calling thread has spent in `wait` so far, for all journals

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
  std::list<Entry> queue_, spare_;  // spare_: entries that are kept for reuse
  std::atomic<uint64_t> last_, marked_{0};
  bool urgent_ = false, closing_ = false, nudged_ = false, asleep_ = false, ended_ = false;
  std::atomic<bool> failed_{false};
  bool final_ = false;  // whether no later write can succeed: data may be lost, or the thread has ended
  std::string failure_;
  std::deque<LogStart::NeededSegment> busy_;
  std::vector<std::string> free_;
  struct Root {
    uint64_t sequence;
    Digest digest;
  };
  std::unique_ptr<Root[], void (*)(void*)> roots_;  // digests of recent records; record i's digest is at i % kRoots
  Root mark_{};

  // Only the journal's thread uses the following members.
  uint64_t number_, place_, number_here_;
  std::string here_;
  int file_ = -1;
  bool is_new_ = true;  // whether this journal has written nothing to the current segment yet
  uint64_t use_ = 0, at_ = 0, size_ = 0;
  Digest digest_, digest_next_;  // digests of all records on the disk, and of those records and the group being written
  std::vector<Root> found_;
  // The next segment, if `file` is not -1. The segment's head is on the disk, and no mark names the segment yet.
  struct PreparedSegment {
    int file = -1;
    std::string name;
    uint64_t use = 0, size = 0;
  } prepared_;
};

}  // namespace fastagg::log
