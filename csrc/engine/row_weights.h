// The weights of clients' rows in the sum of rows, and when rows leave the sum (ACED).
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

  std::vector<float> shares, weights;  // by client: for rows that have come, and for rows in the sum; otherwise 0
  int64_t arrivals = 0, heard = 0;
  double row_bound = 0.0;  // a bound on the elements of rows
  int64_t clients() const { return static_cast<int64_t>(shares.size()); }

  // Clients whose rows leave or re-enter the sum, in order, each with the change of the row's weight from or to 0.
  using Terms = std::vector<std::pair<int64_t, float>>;

  // The weights after the next update.
  struct PlannedWeights {
    int64_t client = 0, heard = 0;
    float share = 0.0f, entering = 0.0f, leaving = 0.0f;
    Terms terms;  // of other clients' rows
    ExactSum sum;
    double total = 0.0, heaviest_total = 0.0;
    double row_bound = 0.0, peak = 0.0;
  };
  PlannedWeights next;
  // `enters`: whether the client's row is recent enough for the sum.
  void plan(int64_t client, double share, bool enters);
  // A bound on the mean's elements, from bounds of rows and of the sum. `direct`: whether the sum is always recomputed.
  double bound(double of_rows, double of_sum, bool direct);
  // Whether the sum was so much heavier before that its old rounding errors are now too large.
  bool fell() const;
  void put() noexcept;
  void take_back() noexcept;         // undoes `put`
  void commit(bool whole) noexcept;  // `whole`: whether the sum was recomputed
  void fields(Archive& archive);
  void fields_of_totals(Archive& archive, bool resums);  // the fields that come last
  int64_t nbytes() const { return 2 * clients() * static_cast<int64_t>(sizeof(float)); }

 private:
  void heard_of(float share) noexcept;

  ExactSum total_;
  double peak_ = 0.0;  // the largest bound of the sum so far
  double heaviest_total_ = 0.0, heaviest_before_ = 0.0;
  double lightest_ = 0.0, heaviest_ = 0.0;  // the least and the largest share that clients have had
};

// The age of each client's information. A client's row leaves the sum when the information is too old. The row returns
// when the client is sent a model, or answers.
class Freshness {
 public:
  // `max_delay`: the largest age of a row in the sum, in versions. `by_dispatch`: ages count from the last model that a
  // client was sent; otherwise from the version of its row. `full`: no step is made until all clients have answered.
  Freshness(RowWeights& of, int64_t max_delay, bool by_dispatch, bool full);
  // `before_sending` is called before a client is sent a version, and may fail. `sent` is called afterwards.
  void before_sending(int64_t version);
  void sent(int64_t client, int64_t version) noexcept;
  // Plans which rows leave and return with this update, in `next.terms`. Returns false if the client's own row is too
  // old to enter the sum.
  bool plan(const Contribution& contribution);
  void commit(const Contribution& contribution) noexcept;
  void fields(Archive& archive);
  int64_t nbytes() const { return static_cast<int64_t>(begun_.size() * sizeof(int64_t)); }

 private:
  bool begins() const { return !full_ || of_.heard == of_.clients(); }
  void plan_terms(int64_t client, int64_t oldest);

  RowWeights& of_;
  const int64_t max_delay_;
  const bool by_dispatch_, full_;
  std::vector<int64_t> begun_;                             // by client: the version of its information
  std::unordered_map<int64_t, std::vector<int64_t>> due_;  // by version: clients to check once the version is too old
  int64_t expired_ = 0, expired_next_ = 0;                 // versions below `expired_` have been checked
  int64_t due_count_ = 0;
  std::vector<int64_t> back_;  // clients that were sent a model while their rows were out of the sum
};

}  // namespace fastagg::engine
