// A direction: it stores a state, such as a sum of the updates so far, and makes steps from updates.
//
// A step takes three calls. `plan` may refuse, and reserves all that is needed without a visible change. `run` calls
// kernels, which cannot fail. `commit` moves the planned state into place, and cannot fail either. On a device `run`
// only collects kernels, which may still fail to start. `cancel` then undoes `run`.
//
// `is` holds facts about a direction. It also points to the interfaces that only some directions have: Sums (a buffer)
// and RowKeeper (a row for each client).
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

// The interface of buffers: directions that sum updates, so that an update waits for others.
class Sums {
 public:
  bool folds = false;     // whether several updates may be added in one pass
  int64_t majority = -1;  // the client that sent more than half of the last step's updates; -1: none
  std::vector<double> shares;

  // How many more updates make a step. A leaf's sum may have more updates than that.
  virtual int64_t room() const = 0;
  // The seconds for which a round with enough updates waits for more. Infinity: the round has too few updates, or never
  // ends by time. The argument is the number of updates that wait elsewhere.
  virtual double grace(int64_t) const { return HUGE_VAL; }
  // Whether a round must end before a sum of this many updates is added.
  virtual bool closes_before(int64_t) const { return false; }
  // The sum of the waiting updates' weights.
  virtual double total() const { return 0.0; }
  // The planned sum, if the step uses nothing but the sum. Its memory may become the next version. Then `hand_over` is
  // called after `commit`.
  virtual store::Vector along() const { return {}; }
  virtual void hand_over() noexcept {}
  // Adds the planned models or updates to memory that nobody reads. Writes the updates' sums of squares to the
  // argument, which is null for models. Returns how many come before the first invalid one, which is not finite or has
  // too large an element. If all are valid, `run` and `commit` may follow.
  virtual size_t fold(std::vector<double>*) { return 0; }

 protected:
  ~Sums() = default;
};

// The interface of directions with rows, for checkpoints and devices.
class RowKeeper {
 public:
  int format = kPlainRows;  // the rows' format, even if only clients store the rows
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
    bool immediate = false;   // whether a step uses one update, whose weight scales the step
    double divisor = 0.0;     // if > 0, the update's share / divisor also scales the step
    bool blends = false;      // whether steps read the versions that updates were trained from
    bool reads_once = false;  // whether `run` may find one update's norm, and write only to memory that nobody reads
    bool keeps = false;       // whether updates are stored until their round is complete
    bool combines = false;    // whether updates are combined in another way than by their sum
    Sums* sums = nullptr;
    RowKeeper* rows = nullptr;
    Freshness* ages = nullptr;  // the ages of clients' information (ACED)
    Privacy* privacy = nullptr;
    const Place* place = nullptr;     // the server's place; `plan` may use its runner
    cpu::Tensors* tensors = nullptr;  // computes the sums over tensors that steps need
  };
  Traits is;

  explicit DirectionState(double sign) { is.sign = sign; }
  virtual ~DirectionState() = default;
  DirectionState(const DirectionState&) = delete;
  DirectionState& operator=(const DirectionState&) = delete;

  // Refuses answers that this direction never takes.
  virtual void check(const ClientId&, int64_t, int64_t) const {}
  // Plans the effect of these updates, in order. Only a buffer takes several updates at a time. `closes`: make a step
  // even if the round is not full. With kReadOnce the norm is not known yet. `run` then writes only to memory that
  // nobody reads, and to moments. `measured` is called between `run` and `commit`, with the norm.
  virtual Outcome plan(const Contributions& contributions, bool closes, ReadMode mode) = 0;
  virtual void measured(const Contributions&) {}
  // `optimizer` steps if and only if `plan` returned a step. Allocates nothing.
  virtual void run(Runner& runner, const Optimizer& optimizer) = 0;
  virtual void commit() noexcept = 0;
  virtual void cancel() noexcept {}

  // Whether this many more updates make a step.
  bool would_step(int64_t count) const { return is.sums == nullptr || count >= is.sums->room(); }
  // The updates whose statistics count now: `contributions`, or earlier updates as well.
  const Contributions& counted(const Contributions& contributions) const {
    return counted_ != nullptr ? *counted_ : contributions;
  }
  // The scale of an immediate step.
  double scale(const Contribution& contribution) const {
    return is.divisor > 0.0 ? contribution.share / is.divisor : 1.0;
  }
  // About the plan: the versions that the step's updates were trained from, and bounds on the elements of the direction
  // and of the updates or sums that this state stores.
  const std::vector<int64_t>& versions() const { return versions_; }
  virtual double bound() const { return bound_; }
  double kept_bound() const { return kept_bound_; }
  // The most that a step of lr times the direction adds to the largest magnitude among all versions' elements.
  virtual double growth(double lr) const { return std::abs(lr) * bound(); }

  // Saves or loads the state. Vectors and rows that Python has made are saved in Python.
  virtual void fields(Archive& archive) = 0;
  virtual int64_t nbytes() const { return 0; }

  double model_bound = 0.0;  // a bound on the elements of the model and of kept versions

 protected:
  const Contributions* counted_ = nullptr;  // null: the contributions that were passed in
  std::vector<int64_t> versions_;
  double bound_ = 0.0, kept_bound_ = 0.0;
};

}  // namespace fastagg::engine
