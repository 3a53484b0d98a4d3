// The state of a direction: what it stores of the updates so far, and how the next ones make a step.
//
// A step takes three calls. `plan` may refuse, and reserves all that is needed without a visible change. `run` calls
// kernels, which cannot fail. `commit` moves the planned state into place, and cannot fail either. Where kernels are
// only collected they may still fail to start. `cancel` then takes `run` back.
//
// Facts about a direction are data (`is`). Abilities that only some have are interfaces to which `is` points: sums (a
// buffer) and rows (a row per client).
#pragma once

#include <cmath>
#include <vector>

#include "../client_id.h"
#include "../refusal.h"
#include "archive.h"
#include "contribution.h"
#include "device.h"

namespace fastagg::cpu {
class Tensors;
}

namespace fastagg::engine {

// The interface of directions that sum, in which updates wait for others.
class Sums {
 public:
  bool folds = false;     // several updates may be added in one pass
  int64_t majority = -1;  // the client that sent more than half of the last step's updates; -1: none
  std::vector<double> shares;

  // The number of updates that still make a step. A sum of several clients may have more.
  virtual int64_t room() const = 0;
  // The seconds for which a round with enough updates waits for more. Infinity: it has too few, or never ends by time.
  // The argument is the number of updates that wait elsewhere.
  virtual double grace(int64_t) const { return HUGE_VAL; }
  // Whether a round must end before a sum of this many updates is added.
  virtual bool closes_before(int64_t) const { return false; }
  // The sum of the waiting updates' weights.
  virtual double total() const { return 0.0; }
  // The planned sum, if the step uses nothing but the sum. Its memory may become the next version. Then `hand_over` is
  // called after `commit`.
  virtual store::Vector along() const { return {}; }
  virtual void hand_over() noexcept {}
  // Adds trained models, or updates (whose squares it writes), to memory that nobody reads. Returns how many, from the
  // first on, are valid (largest element, finite). If all are, `run` and `commit` may follow.
  virtual size_t fold(std::vector<double>*) { return 0; }

 protected:
  ~Sums() = default;
};

// The interface of directions with rows, for checkpoints and devices.
class RowKeeper {
 public:
  int format = kPlainRows;  // of the rows, even if only clients store them
  virtual int64_t writes(int64_t) const { return -1; }

 protected:
  ~RowKeeper() = default;
};

class Freshness;
class Privacy;

class DirectionState {
 public:
  struct Traits {
    double sign = 1.0;        // the factor with which an update is added to the model
    bool immediate = false;   // a step is made of one update, and its weight scales the step
    double divisor = 0.0;     // if > 0, its share divided by this also scales the step
    bool blends = false;      // it reads the versions that updates were trained from
    bool reads_once = false;  // `run` may find the norm of one update, in memory that nobody reads
    bool keeps = false;       // it stores updates until their round is complete
    bool combines = false;    // it combines them in another way than by their sum
    Sums* sums = nullptr;
    RowKeeper* rows = nullptr;
    Freshness* ages = nullptr;  // of clients (ACED)
    Privacy* privacy = nullptr;
    const Place* place = nullptr;     // its server's; `plan` may use the runner
    cpu::Tensors* tensors = nullptr;  // sums that it needs of each tensor and of the optimizer's m
  };
  Traits is;

  explicit DirectionState(double sign) { is.sign = sign; }
  virtual ~DirectionState() = default;
  DirectionState(const DirectionState&) = delete;
  DirectionState& operator=(const DirectionState&) = delete;

  // Refuses answers that this direction never takes.
  virtual void check(const ClientId&, int64_t, int64_t) const {}
  // Plans what these updates, in order, do. `closes`: make a step even if the round is not full. Only a buffer takes
  // several updates at a time. kReadOnce: the norm is not known yet, and before `commit` `run` writes only to memory
  // that nobody reads, besides the optimizer's. `measured` is called in between, with the norm.
  virtual Outcome plan(const Contributions& contributions, bool closes, ReadMode mode) = 0;
  virtual void measured(const Contributions&) {}
  // `optimizer` steps if and only if `plan` returned a step. Allocates nothing.
  virtual void run(Runner& runner, const Optimizer& optimizer) = 0;
  virtual void commit() noexcept = 0;
  virtual void cancel() noexcept {}

  // Whether this many more updates make a step.
  bool would_step(int64_t count) const { return is.sums == nullptr || count >= is.sums->room(); }
  // The updates whose statistics count now: these, or earlier ones as well.
  const Contributions& counted(const Contributions& contributions) const {
    return counted_ != nullptr ? *counted_ : contributions;
  }
  // The scale of an immediate step.
  double scale(const Contribution& contribution) const {
    return is.divisor > 0.0 ? contribution.share / is.divisor : 1.0;
  }
  // Of the plan: the versions of the step's updates, and bounds on the elements of the direction and of what this state
  // stores.
  const std::vector<int64_t>& versions() const { return versions_; }
  virtual double bound() const { return bound_; }
  double kept_bound() const { return kept_bound_; }
  // The most by which a step of lr times the direction makes the largest magnitude of any version's elements larger.
  virtual double growth(double lr) const { return std::abs(lr) * bound(); }

  // Saves or loads its numbers. Vectors and rows that Python has made are saved in Python.
  virtual void fields(Archive& archive) = 0;
  virtual int64_t nbytes() const { return 0; }

  double model_bound = 0.0;  // on the elements of the model and of kept versions

 protected:
  const Contributions* counted_ = nullptr;  // null: those that were passed in
  std::vector<int64_t> versions_;
  double bound_ = 0.0, kept_bound_ = 0.0;
};

}  // namespace fastagg::engine
