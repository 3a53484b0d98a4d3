// The weights of clients' rows in the sum of rows (AllClients), and the ages at which rows leave the sum (ACED).
#pragma once

#include <unordered_map>
#include <utility>
#include <vector>

#include "direction.h"
#include "exact.h"

namespace fastagg::engine {

class RowWeights {
 public:
  explicit RowWeights(int64_t clients) : shares(static_cast<size_t>(clients)), weights(shares.size()) {}

  // `shares`: by client, the row's weight; 0: no row. `weights`: by client, the weight of the row in the sum.
  std::vector<float> shares, weights;
  int64_t arrivals = 0, heard = 0;  // the number of updates so far; the number of clients that have a row
  double row_bound = 0.0;           // a bound on the elements of all rows
  int64_t clients() const { return static_cast<int64_t>(shares.size()); }

  // The clients whose rows leave or re-enter the sum, in ascending order. With each client: the change of the weight.
  using Terms = std::vector<std::pair<int64_t, float>>;

  // The weights after the next update. `entering`, `leaving`: the weights in the sum of the client's new and old row.
  struct PlannedWeights {
    int64_t client = 0, heard = 0;
    float share = 0.0f, entering = 0.0f, leaving = 0.0f;
    Terms terms;  // the changes of other clients' rows
    ExactSum sum;
    double total = 0.0, heaviest_total = 0.0;
    double row_bound = 0.0, peak = 0.0;
  };
  PlannedWeights next;
  // Plans the next update. `enters`: whether the client's new row is recent enough for the sum.
  void plan(int64_t client, double share, bool enters);
  // Returns a bound on the mean's elements. `of_rows`, `of_sum`: bounds on the elements of the rows, and of their sum.
  // `direct`: whether this update recomputes the whole sum.
  double bound(double of_rows, double of_sum, bool direct);
  // Whether rounding errors are too large now, because the total weight was much larger before (row_weights.cpp).
  bool fell() const;
  void put() noexcept;               // sets the planned weights
  void take_back() noexcept;         // undoes `put`
  void commit(bool whole) noexcept;  // `whole`: whether this update has recomputed the whole sum
  void fields(Archive& archive);
  void fields_of_totals(Archive& archive, bool resums);  // the fields after all others; `resums`: with a Resummation
  int64_t nbytes() const { return 2 * clients() * static_cast<int64_t>(sizeof(float)); }

 private:
  void heard_of(float share) noexcept;

  ExactSum total_;
  double peak_ = 0.0;  // the largest bound on the sum since one update last recomputed the whole sum
  double heaviest_total_ = 0.0, heaviest_before_ = 0.0;
  double lightest_ = 0.0, heaviest_ = 0.0;  // the smallest and the largest share so far
};

// The ages of clients' rows (ACED). A row leaves the sum when the row is too old. A row that is young enough again is
// in the sum after its client answers, or also, with `by_dispatch`, after its client is sent a model.
class Freshness {
 public:
  // `max_delay`: the largest age of a row in the sum, in versions. `by_dispatch`: whether a row's age counts from the
  // version last sent to its client; false: from the version that the row was trained from. `full`: whether no step is
  // made, and no row leaves the sum, until all clients have answered.
  Freshness(RowWeights& of, int64_t max_delay, bool by_dispatch, bool full);
  // With `by_dispatch`, the engine calls `before_sending` before it sends a version to a client, and `sent` afterwards.
  // Only `before_sending` may fail.
  void before_sending(int64_t version);
  void sent(int64_t client, int64_t version) noexcept;
  // Plans in `next.terms` which rows leave and return. Returns false if the new row itself is too old for the sum.
  bool plan(const Contribution& contribution);
  void commit(const Contribution& contribution) noexcept;
  void fields(Archive& archive);
  int64_t nbytes() const { return static_cast<int64_t>(begun_.size() * sizeof(int64_t)); }

 private:
  bool begins() const { return !full_ || of_.heard == of_.clients(); }
  void plan_terms(int64_t client, int64_t oldest);
  std::unordered_map<int64_t, std::vector<int64_t>> last_due() const;

  RowWeights& of_;
  const int64_t max_delay_;
  const bool by_dispatch_, full_;
  std::vector<int64_t> begun_;                             // by client: the version from which its row's age counts
  std::unordered_map<int64_t, std::vector<int64_t>> due_;  // by version: clients to check when the version is too old
  int64_t expired_ = 0, expired_next_ = 0;                 // versions below `expired_` have been checked
  int64_t due_count_ = 0;
  std::vector<int64_t> back_;  // clients that were sent a model while their rows were out of the sum
};

}  // namespace fastagg::engine
