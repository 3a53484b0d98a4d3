// The rows of all clients on a disk, and some of them in memory: for more clients than memory has rows for.
//
// A row lies in a slot of a file. A frame is memory for one row. When a client is sent a model its row is fetched into
// a frame, so that it is there when the client answers. An arrival reads its client's frame and writes the new row to
// another frame, which a thread then writes to a free slot of the file. A slot that a checkpoint refers to is not
// written over: the checkpoint is the list of the slots, and the rows stay where they are.
//
// Every row has a checksum for each window of 131,072 elements. The scrub (scrub.h says what for) goes through the
// rows one after the other, a window of each, and verifies them: a quarter of a row at every arrival, read ahead.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../memory/slots.h"
#include "../plan.h"

namespace fastagg::serving {

class Runner;

// A row that is not what was written.
class RowDamaged : public memory::SlotsFailed {
 public:
  RowDamaged(int64_t which, const std::string& what) : SlotsFailed(what), client(which) {}
  int64_t client;
};

class Tiers {
 public:
  static constexpr int64_t kWindow = 131072;  // elements

  struct Setting {
    int format;
    int64_t size, clients;
    int64_t memory;  // bytes for frames
    int64_t keep;    // checkpoints whose rows stay
    bool warms_up;   // a client whose row is damaged begins anew; else nothing is received
  };

  // Counted since the rows were opened.
  struct Counts {
    int64_t ahead = 0;  // rows that were there when their clients answered
    int64_t late = 0;   // that were on their way
    int64_t cold = 0;   // that nobody had asked for
    int64_t read = 0;   // bytes
    int64_t written = 0;
    int64_t lost = 0;  // rows that were given up
  };

  Tiers(const Setting& setting, std::string path);
  ~Tiers();
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;
  const Setting& setting() const { return setting_; }

  // Bytes of a slot, and of a frame: those of the row and of its scales, each in whole pages.
  static int64_t stride_of(int format, int64_t size);

  // `claim` is called once, before the first use: it sees to it that the file is this server's, and calls `open` or
  // `load`.
  std::function<void()> claim;
  bool is_open() const { return file_.is_open(); }
  void open();  // nothing that is in the file is needed

  // The client was sent a model.
  void expect(int64_t client) noexcept;
  // Clients whose rows leave the sum or come back into it, in order, and by how much their weights change: from or to
  // 0.
  typedef std::vector<std::pair<int64_t, float>> Terms;
  // Before an arrival changes anything: its client's row is there, if it `replaces` one, those of `terms`, a frame and
  // a slot for the new one, and what the scrub reads. Weights are those of the rows in the sum, `entering` that of the
  // new one.
  void plan(int64_t client, bool replaces, const Terms& terms, const std::vector<float>& weights, float entering);
  Row old_row() const { return row_in(old_); }
  Row new_row() const { return row_in(new_); }
  Row row_of_term(size_t term) const { return row_in(term_frames_[term]); }
  // What the row weighs in the sum goes away, or comes. The first before the row is written, the second after.
  void leaves(Runner& runner, float weight);
  void enters(Runner& runner, float weight);
  void moves(Runner& runner, size_t term);
  // After all that: a quarter of a row more, and a window of the sum if all rows are in it.
  void advance(Runner& runner, float* sum);
  void commit() noexcept;

  // A client's row as it is now: its data and, behind the data's pages, its scales. False: it has none.
  bool copy_row(int64_t client, std::vector<char>& into);
  int64_t scales_at() const { return scales_at_; }

  struct Cut {
    int64_t number = 0;
    std::vector<int64_t> slots;  // by client; negative: no row
    std::vector<uint32_t> sums;  // of the rows that are there, in order: one for each window
    int64_t arrivals = 0;        // where the scrub is
    std::vector<double> shadow;  // of the window that is begun
  };
  // A checkpoint begins: when this returns, everything is on the disk.
  Cut cut();
  // Which checkpoints can be loaded once that of this number is written: it and the last before it.
  std::vector<int64_t> kept_with(int64_t number) const;
  // It is written. Slots that only older ones need are free.
  void confirm(int64_t number);
  // Rows as a cut has them.
  void load(const Cut& cut);

  // Adds up all rows again, but for that of `without`, which is given up. Takes as long as reading them all.
  void rebuild(Runner& runner, const std::vector<float>& weights, int64_t without, float* sum);

  int64_t nbytes() const;
  int64_t nbytes_on_disk() const;
  int64_t frames() const { return static_cast<int64_t>(frames_.size()); }
  Counts counts() const;
  int64_t windows() const { return windows_; }

 private:
  enum State : uint8_t { kFree, kReading, kClean, kWriting, kPlanned };
  struct Frame {
    int64_t client = -1;
    int32_t before = -1, after = -1;  // in the list that it is in
    State state = kFree;
    bool expected = false;  // its client was sent a model
    bool pinned = false;    // the arrival that is planned reads it
    bool orphan = false;    // its client has a newer row: free when it is written
  };
  struct List {  // of clean frames, the one that was used longest ago first
    int32_t first = -1, last = -1;
  };
  struct Ask {
    int32_t frame;  // to be filled with the whole row; negative: a window goes to `place` of what is read ahead
    int64_t place;
    int64_t client, slot;
  };
  struct Ahead {  // a window of a row, read ahead for the scrub
    int64_t turn = -1, slot = -1;
    State state = kFree;
  };
  struct Due {  // a window of a row, for this arrival's scrub
    int64_t turn;
    Row row;  // at the window's begin; no data: not in the sum
    float weight;
  };
  struct Failure {
    int64_t client = -1;
    bool damaged = false;
    std::string what;
  };

  char* at(int64_t frame) const { return arena_ + frame * stride_; }
  Row row_at(char* place) const;
  Row row_in(int64_t frame) const { return frame < 0 ? Row{} : row_at(at(frame)); }
  Row window_of(Row row, int64_t window) const;
  int64_t elements(int64_t window) const;
  int64_t window_bytes(int64_t window) const;
  int64_t window_of_turn(int64_t turn) const { return turn / setting_.clients % windows_; }
  int64_t turns_after(int64_t arrivals) const { return windows_ * arrivals / 4; }
  char* ahead_at(int64_t place) const { return ahead_arena_ + place * ahead_bytes_; }
  Row row_ahead(int64_t place) const;

  typedef std::unique_lock<std::mutex> Lock;
  bool prepare(Lock& lock, bool replaces, const std::vector<float>& weights, float entering, bool may_wait);
  float next_weight(int64_t client, const std::vector<float>& weights, float entering) const;
  bool prepare_due(Lock& lock, const std::vector<float>& weights, float entering, bool may_wait);
  int64_t fetched(Lock& lock, int64_t client, bool may_wait);
  void hurry(int64_t frame);
  void pin(int64_t frame);
  void unpin(int64_t frame);
  void follow(Runner& runner, int64_t client, const Row& row, float weight);
  int64_t empty_frame(Lock& lock, bool may_wait);
  int64_t victim(bool also_expected);
  void reserve_slot();
  void retire(int64_t slot) noexcept;
  void unplan();
  void ask_ahead() noexcept;
  void drained(Lock& lock);
  void wait(Lock& lock);
  [[noreturn]] void fail_as_read();
  void link(int64_t frame);
  void unlink(int64_t frame);
  void release(int64_t frame);
  void check_process() const;
  void start();
  void reads();
  void writes();
  void fill(const Ask& ask, const std::vector<uint32_t>& expected);
  uint32_t sum_of(const Row& row, int64_t window) const;
  void add(Runner& runner, const Row& row, int64_t window, float weight);
  void settle(Runner& runner, int64_t window, float* sum);

  Setting setting_;
  std::string path_;
  int64_t row_bytes_, row_scales_, scales_at_, stride_, windows_;
  memory::SlotFile file_;
  int process_ = 0;

  mutable std::mutex mutex_;  // nobody who holds it waits for Python's lock
  struct Threads {
    std::condition_variable to_read, to_write, done_one;
    std::thread reader, writer;
  };
  std::unique_ptr<Threads> threads_ = std::make_unique<Threads>();
  bool ends_ = false;
  std::deque<Ask> asks_;
  std::vector<std::pair<int32_t, int64_t>> queue_;  // (frame, slot) to be written: a ring
  size_t queue_begin_ = 0;
  int64_t writing_ = 0, most_writing_ = 1;
  std::string write_failed_;
  Failure read_failed_;

  char* arena_ = nullptr;
  std::vector<Frame> frames_;
  std::vector<int32_t> free_frames_;
  List idle_, expected_;
  std::vector<int32_t> frame_of_;  // by client; negative: none
  std::vector<int64_t> slot_;      // by client; negative: none

  std::vector<uint32_t> sums_;  // of every slot: one for each window
  std::vector<int64_t> born_;   // by slot: how many cuts there had been
  std::vector<int64_t> free_slots_;
  int64_t used_slots_ = 0;                            // slots from here on were never used
  std::vector<std::pair<int64_t, int64_t>> retired_;  // (cuts so far, slot), in order: a checkpoint may need it
  int64_t cuts_ = 0;
  std::vector<int64_t> confirmed_;
  Counts counts_;

  // The scrub. Turn t is window t / clients % windows of row t % clients.
  int64_t arrivals_ = 0, done_ = 0;
  std::vector<double> shadow_;
  std::vector<RowJob> jobs_;
  std::vector<Ahead> ahead_;
  char* ahead_arena_ = nullptr;
  int64_t ahead_bytes_ = 0;

  // Planned.
  enum Way { kNone, kAhead, kLate, kCold };
  int64_t client_ = -1, old_ = -1, new_ = -1, new_slot_ = -1;
  Terms terms_;
  std::vector<int64_t> term_frames_;
  Way way_ = kNone;
  std::vector<Due> due_;
};

}  // namespace fastagg::serving
