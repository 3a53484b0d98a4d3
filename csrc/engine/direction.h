// What a direction remembers of the updates so far, and what the next ones make of it.
//
// A step goes through three calls. `plan` may refuse and reserves whatever is needed; nothing that anybody can see has
// changed. `run` calls kernels, which cannot fail. `commit` moves what was planned into place and cannot fail either.
// Where kernels are not called at once they may still come to nothing: `cancel` takes `run` back.
#pragma once

#include <cmath>
#include <vector>

#include "../client_id.h"
#include "../refusal.h"
#include "../runner.h"
#include "archive.h"
#include "contribution.h"

namespace fastagg::engine {

struct RowsLost {  // rows on a disk are damaged, and must be given up first
  std::vector<int64_t> slots;
};

class DirectionState {
 public:
  using Given = std::vector<Contribution>;
  using Updates = std::vector<const Update*>;

  explicit DirectionState(double sign) : sign_(sign) {}
  virtual ~DirectionState() = default;
  DirectionState(const DirectionState&) = delete;
  DirectionState& operator=(const DirectionState&) = delete;

  // Refuses what this direction never takes.
  virtual void check(const ClientId&, int64_t, int64_t) const {}
  // What these updates, in order, make. `closes`: a step, whether or not the round is full. All but a buffer take one
  // update at a time. Throws RowsLost.
  virtual Outcome plan(const Given& given, bool closes) = 0;
  // `optimizer` steps exactly if `plan` said so.
  virtual void run(Runner& runner, const Updates& updates, const Optimizer& optimizer) = 0;
  virtual void commit() noexcept = 0;
  virtual void cancel() noexcept {}

  // Whether one update's norm may be found by `run`. Then `plan` is told no norm, and `plan_aside` follows: from there
  // on `run` only writes to memory that nobody reads before `commit`, besides the optimizer's. `measured` tells the
  // norm before `commit`.
  virtual bool sets_aside() const { return false; }
  virtual void plan_aside() {}
  virtual void measured(const Given&) {}

  // How many more updates make a step; a sum of several clients may have more. 0: this direction adds nothing up.
  virtual int64_t room() const { return 0; }
  // The unit of sums of whole numbers (math/fixed.h); 0: sums are of floats.
  virtual double unit() const { return 0.0; }
  // For how many seconds a round that has as many updates as it needs waits for more; infinity: it needs more, or never
  // ends by time. `waiting`: updates of an ordered round.
  virtual double grace(int64_t) const { return HUGE_VAL; }
  // Whether a round ends, as it is, before a sum of so many updates is added.
  virtual bool closes_before(int64_t) const { return false; }
  // Adds trained models to the sum, several in one pass, which also finds out which of them are fit (largest element).
  // If one is not, nothing has changed. Planned with `plan`; then `folded` is the sum, and a full round steps along it.
  virtual bool folds() const { return false; }
  virtual void plan_fold(bool) {}  // `still`: nobody writes to the models meanwhile
  virtual std::vector<bool> run_fold(const std::vector<Trained>&) { return {}; }
  virtual store::Vector folded() const { return {}; }
  // The sum's memory may become the next version's, if nobody needs it.
  virtual void commit_fold(bool) noexcept {}

  // A client is about to be sent a version, which may fail, and was sent it.
  virtual void before_sending(int64_t) {}
  virtual void sent(int64_t, int64_t) noexcept {}
  // The slot of the row that the next update of this client will write over; negative: none.
  virtual int64_t writes(int64_t) const { return -1; }
  // A row, without slots, if all that an update changes follows from the encoded row that it becomes: then a log keeps
  // that row. No size: the update's own numbers are needed.
  virtual Rows coded_row() const { return {}; }
  // The format of its rows, with or without memory for them; negative: it has none.
  virtual int format() const { return -1; }
  // After `plan`: `run` puts the new row, packed, here, too.
  virtual void copy_row_to(void*) noexcept {}
  virtual bool immediate() const { return false; }  // a step is made of one update, whose weight scales it
  virtual double scale(const Contribution&) const { return 1.0; }  // and what else does
  // Gives up rows that are damaged, as if their clients were never heard. Returns one that turns out to be damaged,
  // too, with nothing changed; negative: it is done.
  virtual int64_t give_up(const std::vector<int64_t>&) {
    throw Refusal(Why::kDamaged, "rows on a disk were lost, and this server has none");
  }
  virtual bool blends() const { return false; }  // reads the versions that updates were trained from

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

  double sign() const { return sign_; }
  double model_bound = 0.0;  // of the model's elements, and of versions that are kept

 protected:
  double sign_;  // what an update is multiplied by to be added to the model
  std::vector<int64_t> versions_;
  double bound_ = 0.0, kept_bound_ = 0.0;
};

}  // namespace fastagg::engine
