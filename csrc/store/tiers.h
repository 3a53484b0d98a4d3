// The rows of all clients on a disk, and some of them in memory: for more clients than memory has rows for.
//
// A row lies in a slot of a file. A frame is memory for one row. When a client is sent a model its row is fetched into
// a frame, so that it is there when the client answers. An arrival reads its client's frame and writes the new row to
// another frame, which a thread then writes to a free slot of the file. A slot that a checkpoint refers to is not
// written over: the checkpoint is the list of the slots, and the rows stay where they are.
// If the kernels run on a device, there are frames on the device, too, and arrivals read and write those.
// Four parts have a file each: where a row lies in memory (windows.h), the slots (places.h), the scrub (sweep.h) and
// the frames on a device (device_rows.h).
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

#include "device_rows.h"
#include "places.h"
#include "sweep.h"
#include "windows.h"

namespace fastagg::store {

// A row that is not what was written.
class RowDamaged : public SlotsFailed {
 public:
  RowDamaged(int64_t which, const std::string& what) : SlotsFailed(what), client(which) {}
  int64_t client;
};

class Tiers {
 public:
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
    int64_t there = 0;  // that were on the device already: a part of `ahead`
    int64_t read = 0;   // bytes
    int64_t written = 0;
    int64_t lost = 0;  // rows that were given up
  };

  Tiers(const Setting& setting, std::string path);
  ~Tiers();
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;
  const Setting& setting() const { return setting_; }

  const Windows& windows() const { return windows_; }

  // Before the first use: kernels run on a device, which holds rows in so many bytes (DeviceRows::Setting).
  void use_device(std::shared_ptr<Copies> copies, int64_t bytes, DeviceRows::Allocate memory);
  // `claim` is called once, before the first use: it sees to it that the file is this server's, and calls `open` or
  // `load`.
  std::function<void()> claim;
  bool is_open() const { return file_.is_open(); }
  void open();  // nothing that is in the file is needed

  // A client is about to be sent a model. May fail.
  void before_sending();
  // It was sent.
  void expect(int64_t client) noexcept;
  // Clients whose rows leave the sum or come back into it, in order, and by how much their weights change: from or to
  // 0.
  typedef std::vector<std::pair<int64_t, float>> Terms;
  // Before an arrival changes anything: its client's row is there, if it `replaces` one, those of `terms`, a frame and
  // a slot for the new one, and what the scrub reads. Weights are those of the rows in the sum, `entering` that of the
  // new one.
  void plan(int64_t client, bool replaces, const Terms& terms, const std::vector<float>& weights, float entering);
  // Whether there are more terms than memory has frames for. Then they have no rows; `move_in_windows` adds them to
  // this sum, a window of each at a time, as it is read. It may fail. The scrub follows on a copy from `set_aside` on,
  // until `take_aside`. Not for a device.
  bool moves_in_windows() const { return in_windows_; }
  void set_aside() { sweep_.set_aside(); }
  void move_in_windows(Runner& runner, float* sum);
  void take_aside() noexcept { sweep_.take_aside(); }
  Row old_row() const { return old_row_; }
  Row new_row() const { return new_row_; }
  Row row_of_term(size_t term) const { return term_rows_[term]; }
  // All kernels that use these rows are called between the two.
  void begin(Runner& runner);
  void end(Runner& runner);
  // What the row weighs in the sum goes away, or comes. The first before the row is written, the second after.
  void leaves(Runner& runner, float weight) { sweep_.follow(runner, client_, old_row(), -weight); }
  void enters(Runner& runner, float weight) { sweep_.follow(runner, client_, new_row(), weight); }
  void moves(Runner& runner, size_t term) {
    sweep_.follow(runner, terms_[term].first, row_of_term(term), terms_[term].second);
  }
  // After all that: a quarter of a row more, and a window of the sum if all rows are in it.
  void advance(Runner& runner, float* sum);
  void commit() noexcept;

  // A client's row as it is now: its data and, behind the data's pages, its scales. False: it has none.
  bool copy_row(int64_t client, std::vector<char>& into);

  struct Cut {
    Places::Cut places;
    int64_t arrivals = 0;       // where the scrub is
    std::vector<double> begun;  // the sums of its window
  };
  // A checkpoint begins: when this returns, everything is on the disk.
  Cut cut();
  // Which checkpoints can be loaded once that of this number is written: it and the last before it.
  std::vector<int64_t> kept_with(int64_t number) const;
  // It is written. Slots that only older ones need are free.
  void confirm(int64_t number);
  // Rows as a cut has them.
  void load(const Cut& cut);

  // Adds up all rows again, but for those of `lost` clients, which are given up. Takes as long as reading them all. If
  // it fails, nothing has changed.
  void rebuild(Runner& runner, const std::vector<float>& weights, const std::vector<int64_t>& lost, float* sum);

  int64_t nbytes() const;
  int64_t nbytes_on_disk() const;
  int64_t frames() const { return static_cast<int64_t>(frames_.size()); }
  int64_t device_frames() const;
  Counts counts() const;

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
    DeviceRows::Mark mark = nullptr;  // of the host's memory that the row is in; null: it is where the kernels run
  };
  struct Failure {
    int64_t client = -1;
    bool damaged = false;
    std::string what;
  };

  char* at(int64_t frame) const { return arena_ + frame * stride_; }
  Row row_in(int64_t frame) const { return frame < 0 ? Row{} : windows_.row_at(at(frame)); }
  // The frame that has the client's row; negative: none has, or it is being read.
  int64_t frame_with(int64_t client) const;
  char* ahead_at(int64_t place) const { return ahead_arena_ + place * windows_.read_bytes(); }

  typedef std::unique_lock<std::mutex> Lock;
  bool prepare(Lock& lock, bool replaces, const std::vector<float>& weights, float entering, bool may_wait);
  bool take_row(Lock& lock, int64_t client, bool may_wait, int64_t* frame, Row* row);
  void make_device_room(int64_t least);
  DeviceRows::Mark mark_of(int64_t frame) const { return device_->mark_of_host(frame); }
  void ask_device(int64_t frame) noexcept;
  void expected(int64_t frame, bool is) noexcept;
  void unpin_terms();
  float next_weight(int64_t client, const std::vector<float>& weights, float entering) const;
  bool prepare_due(Lock& lock, const std::vector<float>& weights, float entering, bool may_wait);
  int64_t fetched(Lock& lock, int64_t client, bool may_wait);
  void hurry(int64_t frame);
  void pin(int64_t frame);
  void unpin(int64_t frame);
  int64_t empty_frame(Lock& lock, bool may_wait);
  int64_t victim(bool also_expected);
  void unplan();
  void ask_ahead() noexcept;
  void drained(Lock& lock);
  void wait(Lock& lock);
  [[noreturn]] void fail_as_read();
  void link(int64_t frame);
  void unlink(int64_t frame);
  void release(int64_t frame);
  void check_process() const;
  void take_file(const std::function<void()>& load);
  void start();
  void reads();
  void writes();
  void fill(const Ask& ask, const std::vector<uint32_t>& expected);
  void check(const Row& part, int64_t window, uint32_t sum, int64_t client, int64_t slot) const;
  Row read_part(int64_t client, int64_t window, char* into);

  Setting setting_;
  std::string path_;
  Windows windows_;
  int64_t stride_;
  SlotFile file_;
  int process_ = 0;

  mutable std::mutex mutex_;  // nobody who holds it waits for the host language (blocking.h)
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
  Places places_;
  Sweep sweep_;
  std::unique_ptr<DeviceRows> device_;  // null: kernels run on the host
  int64_t pinned_ = 0;                  // frames from here on were never used
  std::vector<Ahead> ahead_;
  char* ahead_arena_ = nullptr;
  Counts counts_;

  // Planned.
  enum Way { kNone, kAhead, kLate, kCold };
  int64_t client_ = -1, old_ = -1, new_ = -1;  // `old_` is negative, too, if the row is on the device
  Row old_row_, new_row_;                      // where kernels find them
  bool in_windows_ = false;
  bool there_ = false;  // the old row was on the device
  Terms terms_;
  std::vector<int64_t> term_frames_;
  std::vector<Row> term_rows_;
  Way way_ = kNone;
  std::vector<Due> due_;
};

}  // namespace fastagg::store
