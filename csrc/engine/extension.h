// The interface of rules that are written in a host language, and of the host language's state. csrc/bindings has the
// only implementation. An extension runs before anything has changed. It returns its own changes as a `Change`, which
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

// Changes of pointers, and of numbers, in memory that the host language also sees. The commit only exchanges values, so
// it does not call the host language. The old values are released when the Change dies, after everything has changed.
class Change {
 public:
  virtual ~Change() = default;
  // Changes the next version, before anybody else holds that version (distillation). The second argument is the
  // version's number of elements. May fail, and may add changes.
  virtual void finish(const store::Vector&, int64_t) {}
  void commit() noexcept {
    for (auto& [place, value] : pointers) value = __atomic_exchange_n(place, value, __ATOMIC_ACQ_REL);
    for (auto& [place, value] : numbers) __atomic_store_n(place, value, __ATOMIC_RELEASE);
  }
  store::Owner state;  // the new state of the model besides its vector; empty: unchanged

 protected:
  std::vector<std::pair<void**, void*>> pointers;
  std::vector<std::pair<int64_t*, int64_t>> numbers;
};

// The extension's results for an update, before its step is planned. All results are optional.
struct Findings {
  std::optional<double> norm;  // the update's norm
  std::optional<double> weight, share;
  std::optional<double> reported_norm, reported_weight;  // for the receipt, if the step uses other values
  std::optional<double> gain;                            // the factor of the clipping that the extension has done
  bool drops = false;                                    // whether the update counts as answered and changes nothing
  bool waits = false;                                    // whether only `change` uses the update, and no step
  bool finishes = false;                                 // whether `change` works on the next version
  int32_t next_steps = 0;                                // the client's next number of local steps; 0: unchanged
  std::optional<Update> update;                          // the vector to step along, instead of the update
  store::Owner owner;                                    // the owner of the vector's memory
  std::unique_ptr<Change> change;
};

// An update about which the extension is asked, and the state that a rule may need. The extension may keep a Question.
struct Question {
  ClientId client;
  int64_t version, now;  // the version that the update was trained from; the server's version
  int32_t local_steps;
  double norm, share;  // the update's norm before clipping; its share in a mean
  int64_t room;        // how many updates make a step, including this one; 0: no buffer
  double total;        // the sum of the shares of the updates in the buffer
  Update update;
  store::Owner owner;
  store::Vector model;    // the current model
  store::Vector kept;     // the data kept for the version `version`
  store::Vector control;  // vectors that came besides the update,
  int64_t control_size;   // with this many elements
  std::shared_ptr<const ReportedStatistics> reported;
  store::Owner extra;
};

// The BatchNorm statistics of an answer: `reported`, or `extra` in a form that only the extension knows. If both are
// null, the client sent none.
struct Statistics {
  const ReportedStatistics* reported;
  const void* extra;
  double share;  // the answer's share in the mean of statistics
  double gain;   // the factor of the statistics' change (clipping)
};

struct Bounds {
  double model = 0.0;
  MomentBounds moments;
};

class Extension {
 public:
  virtual ~Extension() = default;

  // Which of the methods below are called. The choice is fixed for a server.
  struct Callbacks {
    bool prepare = false;     // true: for every update; false: only for one with a control variate or extra data
    bool step = false;        // whether the optimizer is the extension's
    bool statistics = false;  // whether the model has running statistics
    bool bounds = false;      // whether vectors are on a device, so that the extension measures them
  };
  Callbacks asks;

  virtual Findings prepare(Question question) = 0;
  // Returns the weight from a user's own staleness policy. None: the update is dropped.
  virtual std::optional<double> weight(int64_t delay) = 0;
  virtual double rate(double lr, const std::vector<int64_t>& delays) = 0;
  struct StepResult {
    store::Vector model;
    std::unique_ptr<Change> change;
  };
  virtual StepResult step(const store::Vector& direction, const store::Vector& model, double lr, int64_t round) = 0;
  // Returns the model's statistics after these updates, in order. `outcome`: the updates made a step ("step"), an empty
  // step ("drop") or no step ("keep"). `shares`: of all updates of a step, including earlier ones (Sums::shares).
  virtual std::unique_ptr<Change> statistics(const std::vector<Statistics>& updates, const std::vector<double>& shares,
                                             const char* outcome) = 0;
  virtual Bounds bounds(const store::Vector& model, const OptimizerState& optimizer) = 0;
};

}  // namespace fastagg::engine
