// What a host language may do within a step, typed: rules that are written in it, and state that it keeps.
// There is one implementation, in csrc/bindings. All of it runs before anything has changed; what it wants to change
// comes back as a `Change`, which the commit carries out.
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

// A change is a pointer, or a number in memory that the host language sees, too. Both are exchanged, so a commit needs
// nothing of the host language. What was there before is let go with this object, when all has changed.
class Change {
 public:
  virtual ~Change() = default;
  // Works on the next version, of so many elements, before anybody holds it (distillation). May fail, and may add more.
  virtual void finish(const store::Vector&, int64_t) {}
  void commit() noexcept {
    for (auto& [place, value] : pointers) value = __atomic_exchange_n(place, value, __ATOMIC_ACQ_REL);
    for (auto& [place, value] : numbers) __atomic_store_n(place, value, __ATOMIC_RELEASE);
  }
  store::Owner state;  // of the model besides its vector, from now on; none: it stays

 protected:
  std::vector<std::pair<void**, void*>> pointers;
  std::vector<std::pair<int64_t*, int64_t>> numbers;
};

// The extension's findings about an update, before its step is planned. All of them are optional.
struct Findings {
  std::optional<double> norm;  // of the update
  std::optional<double> weight, share;
  std::optional<double> reported_norm, reported_weight;  // for the receipt, where the step uses others
  std::optional<double> gain;                            // of its clipping, which is done already
  bool drops = false;                                    // the update is counted as answered and changes nothing
  bool waits = false;                                    // it changes only what `change` keeps
  bool finishes = false;                                 // `change` works on the next version
  int32_t next_steps = 0;                                // the client's next number of local steps; 0: unchanged
  std::optional<Update> update;                          // to step along in place of what came
  store::Owner owner;                                    // of all that
  std::unique_ptr<Change> change;
};

// An update that the extension is asked about, and what it may need to know. The extension may keep it.
struct Question {
  ClientId client;
  int64_t version, now;  // it was trained from; the server's
  int32_t local_steps;
  double norm, share;  // of the update, before clipping; in a mean
  int64_t room;        // how many updates make a step, this one among them; 0: it is no sum
  double total;        // what those in the sum count for
  Update update;
  store::Owner owner;
  store::Vector model;    // the current one
  store::Vector kept;     // what was kept with the version that it was trained from
  store::Vector control;  // what came besides the update,
  int64_t control_size;   // of so many numbers
  std::shared_ptr<const ReportedStatistics> reported;
  store::Owner extra;
};

// BatchNorm's statistics that came with an answer: read already, or in a form that only the extension knows. Neither:
// its client sent none.
struct Statistics {
  const ReportedStatistics* reported;
  const void* extra;
  double share;  // in their mean
  double gain;   // how much of their movement counts
};

struct Bounds {
  double model = 0.0;
  MomentBounds moments;
};

class Extension {
 public:
  virtual ~Extension() = default;

  // Which of the methods below are called; fixed for a server.
  struct Callbacks {
    bool prepare = false;     // for every update; otherwise only for one with a control variate or something extra
    bool step = false;        // the optimizer is the extension's
    bool statistics = false;  // the model has running statistics
    bool bounds = false;      // it measures vectors: they are on a device
  };
  Callbacks asks;

  virtual Findings prepare(Question question) = 0;
  // The weight by a user's own staleness policy. None: the update is dropped.
  virtual std::optional<double> weight(int64_t delay) = 0;
  virtual double rate(double lr, const std::vector<int64_t>& delays) = 0;
  struct StepResult {
    store::Vector model;
    std::unique_ptr<Change> change;
  };
  virtual StepResult step(const store::Vector& direction, const store::Vector& model, double lr, int64_t round) = 0;
  // The statistics after these updates, in order, made a step ("step"), an empty one ("drop") or none ("keep").
  // `shares`: of all updates of a step, those that came before too (Sums::shares).
  virtual std::unique_ptr<Change> statistics(const std::vector<Statistics>& updates, const std::vector<double>& shares,
                                             const char* outcome) = 0;
  virtual Bounds bounds(const store::Vector& model, const OptimizerState& optimizer) = 0;
};

}  // namespace fastagg::engine
