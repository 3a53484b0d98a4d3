// The interface of directions. A direction turns clients' updates into the vector along which the optimizer steps. A
// direction stores a state, such as the sum of the updates so far.
//
// In a transaction the engine makes three calls. `plan` may refuse the updates, and allocates memory without a visible
// change. `run` calls kernels. `commit` makes the planned state the current one. On the CPU `run` and `commit` cannot
// fail. On a device `run` only collects kernels. If these kernels do not start, `cancel` undoes `run`.
//
// `is` has the properties of a direction, and pointers to the interfaces that only some directions have: Sums (a
// buffer) and RowKeeper (a row for each client).
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

// The interface of buffers, which are the directions that collect several updates for a step.
class Sums {
 public:
  bool folds = false;          // whether several updates may be added in one pass
  int64_t majority = -1;       // the place of the client with over half of the last step's single updates; -1: none
  std::vector<double> shares;  // a combiner's weights of the planned step's updates; empty: no such weights

  // Returns how many more updates complete a step (INT64_MAX: no number does). A leaf server's sum may have more.
  virtual int64_t room() const = 0;
  // Returns for how many seconds a round with enough updates waits for more. Infinity: the round has too few updates,
  // or never ends by time. The argument is the number of further updates that an OrderedDirection stores.
  virtual double grace(int64_t) const { return HUGE_VAL; }
  // Whether the round must end before a leaf server's sum of this many updates is added.
  virtual bool closes_before(int64_t) const { return false; }
  // Returns the total weight of the round's updates so far (BufferedDirection::Round). Other buffers return 0.
  virtual double total() const { return 0.0; }
  // Returns the planned sum, if the step uses no other vector, otherwise an empty vector. If the sum's memory becomes
  // the next version, `hand_over` is called after `commit`, and gives up the memory.
  virtual store::Vector along() const { return {}; }
  virtual void hand_over() noexcept {}
  // Adds the planned models or updates to memory that nobody reads, or only checks them if `run` adds them in place.
  // Writes the updates' sums of squares to the argument, which is null for models. An update is invalid if it is not
  // finite. A model is invalid if its difference from the base has an element above kLargestElement. Returns how many
  // models or updates precede the first invalid one. If all are valid, `run` and `commit` may follow.
  virtual size_t fold(std::vector<double>*) { return 0; }

 protected:
  ~Sums() = default;
};

// The interface of directions that need a row for each client. Checkpoints and devices use this interface.
class RowKeeper {
 public:
  int format = kPlainRows;                              // the format of the rows, even if only clients store them
  virtual int64_t writes(int64_t) const { return -1; }  // the slot of the client's next row on the server; -1: none

 protected:
  ~RowKeeper() = default;
};

class Freshness;
class Privacy;

class DirectionState {
 public:
  struct Traits {
    double sign = 1.0;        // the factor with which an update is added to the model
    bool immediate = false;   // whether every update makes a step, scaled by the update's weight
    double divisor = 0.0;     // if positive, immediate steps are also scaled by the update's share / divisor
    bool blends = false;      // whether a step reads the version that its update was trained from
    bool reads_once = false;  // whether ReadMode::kReadOnce is allowed
    bool keeps = false;       // whether every update is stored until its round is complete
    bool combines = false;    // whether a Combiner combines the updates
    Sums* sums = nullptr;
    RowKeeper* rows = nullptr;
    Freshness* ages = nullptr;  // the ages of clients' rows (ACED); null: rows have no ages
    Privacy* privacy = nullptr;
    const Place* place = nullptr;     // where the server runs; `plan` may use the runner
    cpu::Tensors* tensors = nullptr;  // computes sums over each tensor (HeLoCo); null: not needed
  };
  Traits is;

  explicit DirectionState(double sign) { is.sign = sign; }
  virtual ~DirectionState() = default;
  DirectionState(const DirectionState&) = delete;
  DirectionState& operator=(const DirectionState&) = delete;

  // Refuses an answer that this direction cannot use. Arguments: the client, the answered version, the current version.
  virtual void check(const ClientId&, int64_t, int64_t) const {}
  // Plans the effect of these updates, in order. Only buffers take several updates at a time. `closes`: whether to make
  // a step even if the round is not full. In every mode except kMeasured the norms are not known yet. With kReadOnce
  // and kUpdates `measured` gets them before `commit`. With kReadOnce `run` writes only to memory that nobody reads
  // until `commit`, so a refused update changes nothing.
  virtual Outcome plan(const Contributions& contributions, bool closes, ReadMode mode) = 0;
  virtual void measured(const Contributions&) {}
  // `optimizer` steps if and only if `plan` returned a step. Allocates nothing after the first kernel.
  virtual void run(Runner& runner, const Optimizer& optimizer) = 0;
  virtual void commit() noexcept = 0;
  virtual void cancel() noexcept {}

  // Whether `count` more updates complete a step. Without a buffer every update does.
  bool would_step(int64_t count) const { return is.sums == nullptr || count >= is.sums->room(); }
  // Returns the updates whose statistics count with this plan: `contributions`, unless the direction sets `counted_`.
  const Contributions& counted(const Contributions& contributions) const {
    return counted_ != nullptr ? *counted_ : contributions;
  }
  // Returns the factor of an immediate step that follows from the update's share. 1: the share has no effect.
  double scale(const Contribution& contribution) const {
    return is.divisor > 0.0 ? contribution.share / is.divisor : 1.0;
  }
  // Properties of the plan: the versions that the step's updates were trained from, a bound on the direction's
  // elements, and a bound on the elements of the updates or sums that are stored.
  const std::vector<int64_t>& versions() const { return versions_; }
  virtual double bound() const { return bound_; }
  double kept_bound() const { return kept_bound_; }
  // Returns a bound on how much a step of lr times the direction increases `model_bound`.
  virtual double growth(double lr) const { return std::abs(lr) * bound(); }

  // Saves or loads the state, without the vectors and rows that Python allocated. Python saves those.
  virtual void fields(Archive& archive) = 0;
  virtual int64_t nbytes() const { return 0; }

  double model_bound = 0.0;  // a bound on the elements of the model and of kept versions

 protected:
  const Contributions* counted_ = nullptr;  // the result of `counted`; null: its argument
  std::vector<int64_t> versions_;
  double bound_ = 0.0, kept_bound_ = 0.0;
};

}  // namespace fastagg::engine
