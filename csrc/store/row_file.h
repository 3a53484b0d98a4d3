// The rows of all clients in a file: for more clients than memory has rows for. Kernels run on the CPU.
//
// When a client is sent a model the system is asked for its row, so that it is in the page cache when the client
// answers. An arrival reads its client's row into memory, and writes the new one to a free slot (slots.h).
//
// The sum is added up again little by little (engine/resummation.h says what for), in an order that makes the file read
// one window of a row after the other: turn t is window t / clients of row t % clients. Every arrival takes a quarter
// of a row. When all rows of a window are added up, in double, they become that window of the sum.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "blocks.h"
#include "row_store.h"
#include "slots.h"

namespace fastagg::store {

class RowFile : public RowStore {
 public:
  // `path`: for messages.
  RowFile(const RowShape& shape, int64_t clients, std::string path);

  // `claim` is called once, before the first use: it sees to it that the file is this server's, and calls `take`.
  std::function<void()> claim;
  std::function<void(const std::vector<int64_t>& clients)> on_loss;  // their rows were given up
  int64_t lost = 0;                                                  // so many, since the file was opened
  Slots slots;

  struct Cut {
    Slots::Cut slots;
    int64_t arrivals = 0;       // where the scrub is
    std::vector<double> begun;  // the sums of its window; empty: none has begun
  };
  // The file (Slots::take), with the rows that a cut has, and what else stays (Slots::keep). No cut: with none.
  void take(int file, const Cut* cut, const std::vector<Slots::Places>& kept);
  // Gives the file back. Rows cannot be used any more; what no checkpoint refers to is lost.
  void close() noexcept;

  Rows shape() const override { return {slots.shape.format, slots.shape.size, slots.clients(), nullptr, nullptr}; }
  void expect(int64_t client) noexcept override;
  void plan(const RowStep& arrival) override;
  Row read(int64_t) const override { return slots.shape.row_at(old_.get()); }
  Row place(int64_t) const override { return slots.shape.row_at(new_.get()); }
  bool is_aside() const override { return !terms_.empty(); }
  void add_terms(Runner& runner, float* sum) override;
  void leaves(Runner& runner, int64_t client, float weight) override;
  void enters(Runner& runner, int64_t client, float weight) override;
  void advance(Runner& runner, const float* weights, float* sum) override;
  // If the file refuses the new row, it stays in memory. It is tried again before the next arrival or checkpoint, which
  // is refused as long as that fails: a disk may be freed.
  void put() noexcept override;
  int64_t nbytes() const override;

  Cut cut();
  std::vector<int64_t> find_lost(const std::vector<float>& weights) override;
  void give_up(Runner& runner, const std::vector<float>& weights, const std::vector<int64_t>& lost,
               float* sum) override;

 private:
  // Turns before `done` are over; an arrival takes those up to `next`.
  int64_t done() const { return turns_after(arrivals_); }
  int64_t next() const { return turns_after(arrivals_ + 1); }
  int64_t most_due() const { return turns_after(1) + 1; }
  int64_t turns_after(int64_t arrivals) const { return slots.shape.windows() * arrivals / 4; }
  int64_t client_of(int64_t turn) const { return turn % slots.clients(); }
  int64_t window_of(int64_t turn) const { return turn / slots.clients() % slots.shape.windows(); }

  void use();
  void finish();
  bool will_weigh(const RowStep& arrival, int64_t client) const;
  const std::vector<RowJob>& jobs(int64_t window, double* shadow);
  void add(Runner& runner, const Row& part, int64_t window, float weight, double* shadow);
  void follow(Runner& runner, int64_t client, const Row& part, float weight);

  bool is_closed_ = false;
  int64_t pending_ = -1;  // the client whose new row the file has refused; negative: there is none
  int64_t arrivals_ = 0;
  std::vector<double> shadow_;  // the sums of the window that is begun
  std::vector<RowJob> jobs_;

  // Planned.
  int64_t client_ = -1;
  Block old_, new_, due_rows_;
  Terms terms_;
  std::vector<double> aside_;  // in place of the shadow, if there are terms
  std::vector<Row> due_;       // by turn of this arrival's scrub: a window; no data: its row is not in the sum
};

}  // namespace fastagg::store
