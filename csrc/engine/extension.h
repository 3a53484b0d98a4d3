// The interface to rules and state in a host language. csrc/bindings has the only implementation, for Python. The
// engine calls an extension only before a commit. The extension returns changes of its own state as a `Change`, which
// the commit carries out.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "../math/hyper.h"
#include "answer.h"
#include "ledger.h"
#include "optimizer.h"

namespace fastagg::engine {

// New values of pointers and numbers in memory that the host language also reads. `commit` only exchanges old and new
// values, so `commit` does not call the host language. The old values are released with the Change, after the commit.
class Change {
 public:
  virtual ~Change() = default;
  // Changes the next version, before anybody else holds that version (distillation). The second argument is the
  // version's number of elements. May fail, and may add values to this Change.
  virtual void finish(const store::Vector&, int64_t) {}
  void commit() noexcept {
    for (auto& [place, value] : pointers) value = __atomic_exchange_n(place, value, __ATOMIC_ACQ_REL);
    for (auto& [place, value] : numbers) __atomic_store_n(place, value, __ATOMIC_RELEASE);
  }
  store::Owner state;  // the model's new running statistics; empty: unchanged

 protected:
  std::vector<std::pair<void**, void*>> pointers;
  std::vector<std::pair<int64_t*, int64_t>> numbers;
};

// The extension's answer to a Question. All results are optional.
struct Findings {
  std::optional<double> norm;  // the update's norm; none: the inspector's value
  std::optional<double> weight, share;
  std::optional<double> reported_norm, reported_weight;  // for the receipt; none: the step's values
  std::optional<double> gain;                            // the factor with which the extension has clipped the update
  bool drops = false;                                    // true: the update is dropped; the answer only ends its task
  bool waits = false;                                    // true: only `change` uses the update, and no step is planned
  bool finishes = false;                                 // whether `change` changes the next version (Change::finish)
  int32_t next_steps = 0;                                // the client's next number of local steps; 0: unchanged
  std::optional<Update> update;                          // the vector that replaces the update; none: the update stays
  store::Owner owner;                                    // the owner of the memory of `update`
  std::unique_ptr<Change> change;
};

// The argument of Extension::prepare: an update, and the state that a rule may need. The extension may keep a Question.
struct Question {
  ClientId client;
  int64_t version, now;  // the version that the update was trained from, and the server's current version
  int32_t local_steps;
  double norm, share;  // `norm`: the update's norm before clipping; `share`: the update's weight in a mean
  int64_t room;        // how many updates complete the step, including this one; 0: the rule has no buffer
  double total;        // the total weight of the updates in the buffer (Sums::total)
  Update update;
  store::Owner owner;
  store::Vector model;    // the current model
  store::Vector kept;     // the model of `version`, if it is kept; otherwise empty
  store::Vector control;  // more vectors of the client (Answer::control)
  int64_t control_size;   // the number of elements of `control`
  std::shared_ptr<const ReportedStatistics> reported;
  store::Owner extra;
};

// A client's BatchNorm statistics: `reported`, or `extra` in a form that only the extension knows. If both are null,
// the client sent none.
struct Statistics {
  const ReportedStatistics* reported;
  const void* extra;
  double share;  // the answer's weight in the mean of statistics
  double gain;   // the clipping factor of the change of the statistics
};

struct Bounds {
  double model = 0.0;
  MomentBounds moments;
};

class Extension {
 public:
  virtual ~Extension() = default;

  // Which of the methods below the engine calls. The choice is fixed for a server.
  struct Callbacks {
    bool prepare = false;     // true: for every update; false: only for an update with a control variate or extra data
    bool step = false;        // whether the extension's optimizer makes the steps
    bool statistics = false;  // whether the model has running statistics
    bool bounds = false;      // whether the extension measures bounds, because vectors are on a device
  };
  Callbacks asks;

  virtual Findings prepare(Question question) = 0;
  // Returns the weight of an update that is `delay` versions old, by a user's own policy. None: the update is dropped.
  virtual std::optional<double> weight(int64_t delay) = 0;
  virtual double rate(double lr, const std::vector<int64_t>& delays) = 0;
  struct StepResult {
    store::Vector model;
    std::unique_ptr<Change> change;
  };
  virtual StepResult step(const store::Vector& direction, const store::Vector& model, double lr, int64_t round) = 0;
  // Returns the change of the model's statistics by these updates, in order. `outcome`: the updates make a step
  // ("step"), an empty step ("drop") or no step ("keep"). `shares`: the weights of the step's updates (Sums::shares).
  virtual std::unique_ptr<Change> statistics(const std::vector<Statistics>& updates, const std::vector<double>& shares,
                                             const char* outcome) = 0;
  virtual Bounds bounds(const store::Vector& model, const OptimizerState& optimizer) = 0;
};

}  // namespace fastagg::engine
