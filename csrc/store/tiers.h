// The rows of all clients on a disk, and some of them in memory: for more clients than memory has rows for.
//
// A row lies in a slot of a file. A frame is memory for one row. When a client is sent a model its row is fetched into
// a frame, so that it is there when the client answers. An arrival reads its client's frame and writes the new row to
// another frame, which a thread then writes to a free slot of the file. A slot that a checkpoint refers to is not
// written over: the checkpoint is the list of the slots, and the rows stay where they are.
// Kernels run on the CPU.
// This is the planned arrival. The parts that it is made of have a file each: which rows are in memory (frames.h), the
// threads that read and write (transfers.h), where a row lies in memory (windows.h), the slots (places.h), the scrub
// (sweep.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "frames.h"
#include "places.h"
#include "sweep.h"
#include "transfers.h"
#include "windows.h"

namespace fastagg::store {

class Tiers {
 public:
  struct Setting {
    int format;
    int64_t size, clients;
    int64_t memory;  // bytes for frames
    int64_t keep;    // checkpoints whose rows stay
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

  const Windows& windows() const { return windows_; }

  // `claim` is called once, before the first use: it sees to it that the file is this server's, and calls `open` or
  // `load`.
  std::function<void()> claim;
  std::function<void(const std::vector<int64_t>& clients)> on_loss;  // their rows were given up
  bool is_open() const { return file_.is_open() && !transfers_.is_forked(); }
  void open();  // nothing that is in the file is needed
  // Gives the file back. Rows cannot be used any more; what no checkpoint refers to is lost.
  void close() noexcept;

  // A client was sent a model.
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
  // until `take_aside`.
  bool moves_in_windows() const { return in_windows_; }
  void set_aside() { sweep_.set_aside(); }
  void move_in_windows(Runner& runner, float* sum);
  void take_aside() noexcept { sweep_.take_aside(); }
  Row old_row() const { return old_row_; }
  Row new_row() const { return new_row_; }
  Row row_of_term(size_t term) const { return term_rows_[term]; }
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
  // Of a cut: the clients whose rows cannot be read or have other checksums. Looks at so many bytes of rows, at one in
  // every few; once it has found one, at all. Takes no lock, and the rows need not be open.
  std::vector<int64_t> damaged(const Places::Cut& cut, int64_t most) const;

  // More clients whose rows are damaged, of those in the sum. Takes as long as reading them all.
  void find_lost(const std::vector<float>& weights, std::vector<int64_t>* lost);
  // Adds up all rows again, but for those of `lost` clients, which are given up. Takes as long as reading them all. If
  // it fails, nothing has changed.
  void rebuild(Runner& runner, const std::vector<float>& weights, const std::vector<int64_t>& lost, float* sum);

  int64_t nbytes() const;
  int64_t nbytes_on_disk() const;
  int64_t frames() const { return frames_.count(); }
  Counts counts() const;

 private:
  struct Due {  // a window of a row, for this arrival's scrub
    int64_t turn;
    Row row;  // at the window's begin; no data: not in the sum
    float weight;
  };
  typedef Transfers::Lock Lock;
  bool prepare(Lock& lock, bool replaces, const std::vector<float>& weights, float entering, bool may_wait);
  bool take_row(Lock& lock, int64_t client, bool may_wait, int64_t* frame, Row* row);
  void unpin_terms();
  float next_weight(int64_t client, const std::vector<float>& weights, float entering) const;
  bool prepare_due(Lock& lock, const std::vector<float>& weights, float entering, bool may_wait);
  void unplan();
  void ask_ahead() noexcept;
  void use();
  void take_file(SlotFile::Use use, const std::function<void()>& load);
  Row read_part(int64_t client, int64_t window, char* into);

  Setting setting_;
  std::string path_;
  Windows windows_;
  SlotFile file_;
  bool closed_ = false;
  Places places_;
  Sweep sweep_;
  Frames frames_;
  Transfers transfers_;  // its mutex is for all of these
  Counts counts_;        // but for the bytes

  // Planned.
  int64_t client_ = -1, old_ = -1, new_ = -1;
  Row old_row_, new_row_;  // where kernels find them
  bool in_windows_ = false;
  Terms terms_;
  std::vector<int64_t> term_frames_;
  std::vector<Row> term_rows_;
  Transfers::Way way_ = Transfers::kNone;
  std::vector<Due> due_;
};

}  // namespace fastagg::store
