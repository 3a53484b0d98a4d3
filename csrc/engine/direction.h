// What a direction remembers of the updates so far, and what the next ones make of it.
//
// A step goes through three calls. `plan` may refuse and reserves whatever is needed; nothing that anybody can see has
// changed. `run` calls kernels, which cannot fail. `commit` moves what was planned into place and cannot fail either.
// Where kernels are not called at once they may still come to nothing: `cancel` takes `run` back.
//
// What a direction is, is data (`is`). What only some have are interfaces of their own, to which `is` points: sums
// (a buffer), rows (a row per client).
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

// The interface of directions that sum: updates wait in them for others.
class Sums {
 public:
  bool folds = false;     // several are added in one pass
  int64_t majority = -1;  // the client whose updates were more than half of the last step; -1: none
  // What a rule that compares updates lets each one of the planned step count for, in the order in which they came.
  std::vector<double> shares;

  // How many more updates make a step; a sum of several clients may have more.
  virtual int64_t room() const = 0;
  // For how many seconds a round that has as many updates as it needs waits for more; infinity: it needs more, or never
  // ends by time. It is given how many more wait elsewhere.
  virtual double grace(int64_t) const { return HUGE_VAL; }
  // Whether a round ends, as it is, before a sum of so many updates is added.
  virtual bool closes_before(int64_t) const { return false; }
  // The weights of the updates that wait in it.
  virtual double total() const { return 0.0; }
  // Of what was planned: the sum, if the step is along it and reads nothing else. Its memory may become the next
  // version's: then `hand_over` comes after `commit`.
  virtual store::Vector along() const { return {}; }
  virtual void hand_over() noexcept {}
  // Adds trained models, or updates, of which it finds the squares, to memory that nobody reads. Returns how many of
  // them, from the first on, are fit (largest element; finite). If all are, `run` and `commit` may follow.
  virtual size_t fold(std::vector<double>*) { return 0; }

 protected:
  ~Sums() = default;
};

// The interface of directions with rows, for checkpoints and devices.
class RowKeeper {
 public:
  int format = kPlainRows;  // of the rows, with or without memory for them
  // The slot of the row that the next update of this client will write over; negative: none.
  virtual int64_t writes(int64_t) const { return -1; }

 protected:
  ~RowKeeper() = default;
};

class Freshness;
class Privacy;

class DirectionState {
 public:
  struct Traits {
    double sign = 1.0;        // what an update is multiplied by to be added to the model
    bool immediate = false;   // a step is made of one update, whose weight scales it,
    double divisor = 0.0;     // and so does its share, divided by this; 0: it does not
    bool blends = false;      // it reads the versions that updates were trained from
    bool reads_once = false;  // one update's norm may be found by `run`, aside
    bool keeps = false;       // it keeps updates until their round is complete
    bool combines = false;    // which becomes something else than their sum
    Sums* sums = nullptr;
    RowKeeper* rows = nullptr;
    Freshness* ages = nullptr;  // of clients (ACED)
    Privacy* privacy = nullptr;
    const Place* place = nullptr;     // its server's, whose runner `plan` may ask
    cpu::Tensors* tensors = nullptr;  // what it wants to know of each tensor, and of the optimizer's m
  };
  Traits is;

  explicit DirectionState(double sign) { is.sign = sign; }
  virtual ~DirectionState() = default;
  DirectionState(const DirectionState&) = delete;
  DirectionState& operator=(const DirectionState&) = delete;

  // Refuses what this direction never takes.
  virtual void check(const ClientId&, int64_t, int64_t) const {}
  // What these updates, in order, make. `closes`: a step, whether or not the round is full. All but a buffer take one
  // update at a time. kOnce: its norm is not known, and `run` only writes to memory that nobody reads before `commit`,
  // besides the optimizer's; `measured` tells the norm in between.
  virtual Outcome plan(const Contributions& contributions, bool closes, ReadMode mode) = 0;
  virtual void measured(const Contributions&) {}
  // `optimizer` steps exactly if `plan` said so. Allocates nothing.
  virtual void run(Runner& runner, const Optimizer& optimizer) = 0;
  virtual void commit() noexcept = 0;
  virtual void cancel() noexcept {}

  // Whether so many more updates make a step.
  bool would_step(int64_t count) const { return is.sums == nullptr || count >= is.sums->room(); }
  // Of those that were given, and came before: the updates whose statistics count now.
  const Contributions& counted(const Contributions& contributions) const {
    return counted_ != nullptr ? *counted_ : contributions;
  }
  // The scale of an immediate step.
  double scale(const Contribution& contribution) const {
    return is.divisor > 0.0 ? contribution.share / is.divisor : 1.0;
  }
  // Of what was planned: the versions of the updates in the step, and the largest magnitudes that an element of the
  // direction, and of what this state keeps, can have.
  const std::vector<int64_t>& versions() const { return versions_; }
  virtual double bound() const { return bound_; }
  double kept_bound() const { return kept_bound_; }
  // Of what a step of lr times the direction adds to the largest magnitude that an element of any version has had.
  virtual double growth(double lr) const { return std::abs(lr) * bound(); }

  // Its numbers; vectors and rows that Python made are saved there.
  virtual void fields(Archive& archive) = 0;
  virtual int64_t nbytes() const { return 0; }

  double model_bound = 0.0;  // of the model's elements, and of versions that are kept

 protected:
  const Contributions* counted_ = nullptr;  // null: those that were given
  std::vector<int64_t> versions_;
  double bound_ = 0.0, kept_bound_ = 0.0;
};

}  // namespace fastagg::engine
