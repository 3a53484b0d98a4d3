// The two threads that move rows between the frames and the file: one reads what was asked for and compares checksums,
// one writes the rows that arrivals made. This has the mutex of all that a store of rows on a disk changes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "frames.h"
#include "places.h"

namespace fastagg::store {

// A row that is not what was written.
class RowDamaged : public SlotsFailed {
 public:
  RowDamaged(int64_t which, const std::string& what) : SlotsFailed(what), client(which) {}
  int64_t client;
};

class Transfers {
 public:
  typedef std::unique_lock<std::mutex> Lock;
  enum Way { kNone, kAhead, kLate, kCold };  // how a row was there: before it was needed, on its way, not asked for

  Transfers(std::string path, const Windows& windows, SlotFile& file, Frames& frames, Places& places);
  ~Transfers() { end(); }
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  void start();
  void end();
  bool is_forked() const;  // the threads are those of a parent process
  void check_process() const;

  std::mutex& mutex() const { return mutex_; }  // nobody who holds it waits for the host language (blocking.h)

  // All from here on by whoever has the mutex.

  // The client's row is read into this frame. `first`: before what was asked for ahead of time. If this fails, the
  // frame is free again.
  void ask_row(int64_t frame, int64_t client, bool first);
  // A window of it is read to where `turn` of the scrub looks for it. May fail.
  void ask_window(int64_t turn, int64_t client, int64_t window, bool first);
  // Raises why the client's row could not be read, if somebody `asked` for it; forgets other failures.
  void raise_failure(int64_t client, bool asked);
  // The frame that has the client's row. Negative: it must be waited for. Raises `way` to how the row was there.
  int64_t fetched(Lock& lock, int64_t client, bool may_wait, Way* way);
  int64_t empty_frame(Lock& lock, bool may_wait);
  bool may_write() const { return writing_ < most_writing_; }
  void write(int64_t frame, int64_t slot) noexcept;
  // Until a thread has done something. Raises that rows cannot be written.
  void wait(Lock& lock);
  // Until all is written.
  void drain(Lock& lock);
  int64_t bytes_read() const { return bytes_read_; }
  int64_t bytes_written() const { return bytes_written_; }

  // Compares a window with its checksum; without the mutex.
  void check(const Row& part, int64_t window, uint32_t sum, int64_t client, int64_t slot) const;

 private:
  struct Ask {
    int64_t frame;          // to be filled with the whole row; negative: a window goes to `place` of what is read ahead
    int64_t place, window;  // negative: none
    int64_t client, slot;
  };
  struct Failure {
    int64_t client = -1;
    bool damaged = false;
    std::string what;
  };

  void push(const Ask& ask, bool first);
  void hurry(int64_t frame);
  void reads();
  void writes();
  void fill(const Ask& ask, const std::vector<uint32_t>& expected);

  const std::string path_;
  const Windows& windows_;
  SlotFile& file_;
  Frames& frames_;
  Places& places_;
  int process_ = 0;

  mutable std::mutex mutex_;
  struct Threads {
    std::condition_variable to_read, to_write, done_one;
    std::thread reader, writer;
  };
  std::unique_ptr<Threads> threads_ = std::make_unique<Threads>();
  bool ends_ = false;
  std::deque<Ask> asks_;
  std::vector<std::pair<int64_t, int64_t>> queue_;  // (frame, slot) to be written: a ring
  size_t queue_begin_ = 0;
  int64_t writing_ = 0;
  const int64_t most_writing_;
  std::string write_failed_;
  Failure read_failed_;
  int64_t bytes_read_ = 0, bytes_written_ = 0;
};

}  // namespace fastagg::store
