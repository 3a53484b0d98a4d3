// What a host language may do within a step: rules that are written in it, and state that it keeps. The only
// implementation is in csrc/bindings. All of it runs before anything has changed. It returns its own changes as a
// `Change`, which the commit carries out.
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

// A change of a pointer, or of a number in memory that the host language also sees. The commit only exchanges values,
// so it does not call the host language. The old values are released when this object dies, after everything has
// changed.
class Change {
 public:
  virtual ~Change() = default;
  // Changes the next version, of this many elements, before anybody holds it (distillation). May fail, and may add
  // changes.
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

// The extension's results for an update, before its step is planned. All of them are optional.
struct Findings {
  std::optional<double> norm;  // of the update
  std::optional<double> weight, share;
  std::optional<double> reported_norm, reported_weight;  // for the receipt, if the step uses other values
  std::optional<double> gain;                            // the factor of clipping that is done already
  bool drops = false;                                    // the update counts as answered and changes nothing
  bool waits = false;                                    // it changes only what `change` stores
  bool finishes = false;                                 // `change` works on the next version
  int32_t next_steps = 0;                                // the client's next number of local steps; 0: unchanged
  std::optional<Update> update;                          // the vector to step along, in place of the update
  store::Owner owner;                                    // of all these
  std::unique_ptr<Change> change;
};

// An update about which the extension is asked, and what it may need. The extension may keep it.
struct Question {
  ClientId client;
  int64_t version, now;  // the version it was trained from; the server's
  int32_t local_steps;
  double norm, share;  // the update's norm before clipping; its share in a mean
  int64_t room;        // how many updates make a step, including this one; 0: no buffer
  double total;        // the sum of the shares of the updates in the buffer
  Update update;
  store::Owner owner;
  store::Vector model;    // the current model
  store::Vector kept;     // the data kept for the version it was trained from
  store::Vector control;  // vectors that came besides the update,
  int64_t control_size;   // with this many elements
  std::shared_ptr<const ReportedStatistics> reported;
  store::Owner extra;
};

// The BatchNorm statistics of an answer: read already, or in a form that only the extension knows. If both are null,
// the client sent none.
struct Statistics {
  const ReportedStatistics* reported;
  const void* extra;
  double share;  // in the mean of the statistics
  double gain;   // the factor of their movement (clipping)
};

struct Bounds {
  double model = 0.0;
  MomentBounds moments;
};

class Extension {
 public:
  virtual ~Extension() = default;

  // Which of the methods below are called. Fixed for a server.
  struct Callbacks {
    bool prepare = false;     // for every update; otherwise only for one with a control variate or extra data
    bool step = false;        // the optimizer is the extension's
    bool statistics = false;  // the model has running statistics
    bool bounds = false;      // vectors are on a device, so the extension measures them
  };
  Callbacks asks;

  virtual Findings prepare(Question question) = 0;
  // The weight from a user's own staleness policy. None: the update is dropped.
  virtual std::optional<double> weight(int64_t delay) = 0;
  virtual double rate(double lr, const std::vector<int64_t>& delays) = 0;
  struct StepResult {
    store::Vector model;
    std::unique_ptr<Change> change;
  };
  virtual StepResult step(const store::Vector& direction, const store::Vector& model, double lr, int64_t round) = 0;
  // Returns the statistics after these updates, in order, made a step ("step"), an empty step ("drop") or none
  // ("keep"). `shares`: those of all updates of a step, including earlier ones (Sums::shares).
  virtual std::unique_ptr<Change> statistics(const std::vector<Statistics>& updates, const std::vector<double>& shares,
                                             const char* outcome) = 0;
  virtual Bounds bounds(const store::Vector& model, const OptimizerState& optimizer) = 0;
};

}  // namespace fastagg::engine
