// The rows of all clients in a file: for more clients than memory has rows for.
//
// A row lies in a slot of the file, and its windows have checksums (slot_file.h). When a client is sent a model the
// system is asked for its row, so that it is in the page cache when the client answers. An arrival reads its client's
// row into memory, and writes the new one to a free slot, which the page cache takes.
// A slot that a checkpoint refers to is not written over (places.h): the checkpoint is the list of the slots, and the
// rows stay where they are. The sum is added up again window by window (sweep.h). Kernels run on the CPU.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "blocks.h"
#include "places.h"
#include "row_store.h"
#include "slot_file.h"
#include "sweep.h"

namespace fastagg::store {

class RowFile : public RowStore {
 public:
  struct Setting {
    int format;
    int64_t size, clients;
    int64_t memory;  // bytes that are asked for ahead
    int64_t keep;    // checkpoints whose rows stay
  };

  // Counted since the rows were opened.
  struct Counts {
    int64_t ahead = 0;  // answers whose clients' rows were asked for when they were sent a model
    int64_t cold = 0;   // and that were not
    int64_t read = 0;   // bytes
    int64_t written = 0;
    int64_t lost = 0;  // rows that were given up
  };

  RowFile(const Setting& setting, std::string path);
  RowFile(const RowFile&) = delete;
  RowFile& operator=(const RowFile&) = delete;
  const Setting& setting() const { return setting_; }
  const Windows& windows() const { return windows_; }

  // `claim` is called once, before the first use: it sees to it that the file is this server's, and calls `open` or
  // `load`.
  std::function<void()> claim;
  std::function<void(const std::vector<int64_t>& clients)> on_loss;  // their rows were given up
  bool is_open() const { return file_.is_open(); }
  void open();  // nothing that is in the file is needed
  // Gives the file back. Rows cannot be used any more; what no checkpoint refers to is lost.
  void close() noexcept;

  Rows shape() const override { return {setting_.format, setting_.size, setting_.clients, nullptr, nullptr}; }
  void expect(int64_t client) noexcept override;
  void plan(const RowStep& arrival) override;
  Row read(int64_t) const override { return windows_.row_at(bytes(old_)); }
  Row place(int64_t) const override { return windows_.row_at(bytes(new_)); }
  bool is_aside() const override { return !terms_.empty(); }
  void add_terms(Runner& runner, float* sum) override;
  void leaves(Runner& runner, int64_t client, float weight) override;
  void enters(Runner& runner, int64_t client, float weight) override;
  void advance(Runner& runner, const float* weights, float* sum) override;
  // If the file refuses the new row, it stays in memory. It is tried again before the next arrival or checkpoint, which
  // is refused as long as that fails: a disk may be freed.
  void put() noexcept override;
  int64_t nbytes() const override;

  // A client's row as it is now: its data and, behind the data's pages, its scales. False: it has none.
  bool copy_row(int64_t client, std::vector<char>& into);

  struct Cut {
    Places::Cut places;
    int64_t arrivals = 0;       // where the scrub is
    std::vector<double> begun;  // the sums of its window
  };
  // Most of what is not on the disk yet comes there, while others go on; any thread may call it. A cut finds little
  // left.
  void sync();
  // A checkpoint begins: when this returns, everything is on the disk.
  Cut cut();
  // Which checkpoints can be loaded once that of this number is written: it and the last before it.
  std::vector<int64_t> kept_with(int64_t number) const { return places_.kept_with(number); }
  // It is written. Slots that only older ones need are free.
  void confirm(int64_t number) { places_.confirm(number); }
  // Rows as a cut has them. `others`: checkpoints that can still be loaded, too.
  // `last`: no cut had a larger number.
  void load(const Cut& cut, const std::vector<Places::CountingCut>& others, int64_t last);
  // Of a cut: the clients whose rows cannot be read or have other checksums. Looks at so many bytes of rows, at one in
  // every few; once it has found one, at all. Takes no lock, and the rows need not be open.
  std::vector<int64_t> damaged(const Places::Cut& cut, int64_t most) const;

  std::vector<int64_t> find_lost(const std::vector<float>& weights) override;
  void give_up(Runner& runner, const std::vector<float>& weights, const std::vector<int64_t>& lost,
               float* sum) override;

  int64_t nbytes_on_disk() const { return file_.slots() * windows_.stride(); }
  const Counts& counts() const { return counts_; }

 private:
  struct Due {  // a window of a row, for this arrival's scrub
    int64_t turn;
    Row row;  // at the window's begin; no data: not in the sum
    float weight;
  };
  static char* bytes(const Block& block) { return static_cast<char*>(block.get()); }
  void use();
  template <typename Act>
  void in_windows(Act act) const;
  void finish();
  void take_file(SlotFile::Use use, const std::function<void()>& load);
  void write_again();
  void sync_file();
  Row read_row(int64_t client, const Block& into);
  Row read_window(int64_t client, int64_t window, char* into);
  void check(const Row& part, int64_t window, int64_t client) const;
  float next_weight(const RowStep& arrival, int64_t client) const;
  void plan_due(const RowStep& arrival);
  void forget_ask(int64_t client) noexcept;

  Setting setting_;
  std::string path_;
  Windows windows_;
  SlotFile file_;
  bool closed_ = false;
  std::mutex syncs_;
  bool synced_ = true;  // no sync has failed since the last one that did not
  Places places_;
  Sweep sweep_;
  Counts counts_;
  int64_t pending_ = -1;        // the slot of a new row that the file has refused; negative: there is none
  std::vector<int64_t> asked_;  // by client: after how many arrivals its row was asked for; negative: it was not
  int64_t asked_count_ = 0;

  // Planned.
  int64_t client_ = -1;
  Block old_, new_;
  Terms terms_;
  std::vector<Block> window_rows_;
  std::vector<Due> due_;
};

}  // namespace fastagg::store
