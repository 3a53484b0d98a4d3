// The scrub of rows that are not all in memory (scrub.h says what a scrub is for). It goes through the rows one after
// the other, a window of each: turn t is window t / clients of row t % clients. Every arrival takes a quarter of a row.
// When all rows of a window are added up, in double, they become that window of the sum.
#pragma once

#include <functional>
#include <vector>

#include "../math/reduce.h"
#include "../runner.h"
#include "slot_file.h"

namespace fastagg::store {

class Sweep {
 public:
  Sweep(const Windows& windows, int64_t clients);

  // Turns before `done` are over. An arrival takes those up to `next`.
  int64_t done() const { return turns_after(arrivals_); }
  int64_t next() const { return turns_after(arrivals_ + 1); }
  int64_t client_of(int64_t turn) const { return turn % clients_; }
  int64_t window_of(int64_t turn) const { return turn / clients_ % windows_.count(); }

  // A row that weighs so much comes into the sum, or with a negative weight leaves it. Rows that the window has not
  // reached are added up when their turn comes.
  void follow(Runner& runner, int64_t client, const Row& row, float weight);
  // The same, of a part that is the window that is begun.
  void follow_part(Runner& runner, int64_t client, const Row& part, float weight);
  // From here on `follow` works on a copy, until `take_aside` puts it in place or `drop_aside` forgets it.
  void begin_copy();
  void take_aside() noexcept;
  void drop_aside() noexcept { aside_ = {}; }
  // A turn: the window of the row, from its own begin; no data: the row is not in the sum.
  void take(Runner& runner, int64_t turn, const Row& part, float weight, float* sum);
  void commit() noexcept { ++arrivals_; }

  // All of `sum` anew, from rows that weigh so much; `part(client, window)` gives a row's window and may throw, and
  // then nothing has changed.
  void rebuild(Runner& runner, const std::vector<float>& weights,
               const std::function<Row(int64_t client, int64_t window)>& part, float* sum);

  // Where it is: arrivals so far, and the sums of the window that is begun, if one is.
  int64_t arrivals() const { return arrivals_; }
  std::vector<double> begun() const;
  // Throws std::invalid_argument, with nothing changed.
  void check(int64_t arrivals, const std::vector<double>& begun) const;
  void load(int64_t arrivals, const std::vector<double>& begun);

  int64_t nbytes() const { return static_cast<int64_t>(shadow_.size() * sizeof(double)); }

 private:
  int64_t turns_after(int64_t arrivals) const { return windows_.count() * arrivals / 4; }
  const std::vector<RowJob>& jobs(int64_t window, double* shadow);
  void add(Runner& runner, const Row& part, int64_t window, float weight, double* shadow);

  Windows windows_;
  int64_t clients_, arrivals_ = 0;
  std::vector<double> shadow_;  // the sums of the window that is begun
  std::vector<double> aside_;   // a copy of the shadow; empty: none
  std::vector<RowJob> jobs_;
};

}  // namespace fastagg::store
