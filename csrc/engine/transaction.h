// A change of a server by answers, or by the end of a round. There are three kinds: one answer, several in one
// pass, and the end of a round. Each is a short function over the same stages:
//
//     find       the task, its share and weight
//     inspect    the update's bytes are read once: finite, norm; the log's record is made
//     prepare    what a rule in the host language finds out
//     plan       what the direction makes of it, the rate, the next version's memory, bounds
//     aside      kernels that may still fail, which only write to memory that nobody reads: an update that is read
//                once, models of which one may be unfit, a step or a distillation in the host language
//     conclude   receipts, statistics, what the log says of the outcome
//     run        all other kernels
//     commit     model, moments, direction, ledger, log
//
// Until `run` anything may be refused, and then nothing has changed. From the first line of `run` to the last one of
// `commit` nothing allocates and nothing can fail (on a device: `run`, until the first launch).
#pragma once

#include <optional>
#include <vector>

#include "direction.h"
#include "extension.h"
#include "ledger.h"
#include "optimizer.h"

namespace fastagg::engine {

class Core;

// An answer in a transaction, and what is known of it.
struct Given {
  Answer* answer = nullptr;
  Ledger::Found task{};
  Contribution brings;
  Findings findings;
  log::Operation operation;
  log::Queued record;
  store::Vector base;
  double norm = 0.0;
  int64_t participant = -1;  // where its client's participations are counted; -1: they are not
  bool counts = true;        // no rule has dropped it
};

// What is planned of a step.
struct Step {
  bool planned = false;  // the direction has a plan
  bool aside = false;    // the step may still fail after its kernels
  Outcome outcome = Outcome::kKept;
  double lr = 0.0;
  store::Vector next;  // the next version; none: the step is in place
  store::Vector sum;   // its memory may become the next version's
  Optimizer kernel;
  std::optional<OptimizerState> moments;  // a copy of the optimizer, if the real one must not change yet
  Bounds bounds;
  std::unique_ptr<Change> change, statistics;  // of the extension's
};

// Memory that transactions use again.
struct Scratch {
  std::vector<Given> given;
  Contributions contributions;
  std::vector<Statistics> statistics;
};

class Transaction {
 public:
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

 protected:
  // Refuses if the log could not acknowledge it.
  explicit Transaction(Core& of);
  ~Transaction() { given_.clear(); }

  Given& add(Answer& answer);
  void find(Given& given);
  void inspect(Given& given);
  void prepare(Given& given);
  void plan(bool closes, Way way);
  void check_bounds();
  void decide(Given& given, bool ends, double norm);
  void conclude();
  void run();
  void finish();
  void commit() noexcept;
  bool steps() const { return step_.outcome == Outcome::kStep; }
  bool applied() const;

  Core& of_;
  const InOrder order_;
  std::vector<Given>& given_;
  Step step_;

 private:
  void plan_step(Way way);
};

class OneAnswer : public Transaction {
 public:
  explicit OneAnswer(Core& of) : Transaction(of) {}
  void take(Answer& answer);
  // Refuses what can be known to be unfit before anything is done for it.
  void look_at(Answer& answer);

 private:
  bool may_read_once(const Given& given) const;
  void read_once(Given& given);
};

// Trained models, or updates, as many as fit the buffer, in one pass.
class Several : public Transaction {
 public:
  explicit Several(Core& of) : Transaction(of) {}
  // How many of these answers one pass can take.
  static size_t together(const Core& of, const Answer* answers, size_t count);
  // Returns how many it took. 0: nothing has changed, and the first `fit` may be taken together.
  size_t take(Answer* answers, size_t count);
  size_t fit() const { return fit_; }

 private:
  size_t fit_ = 0;
};

class EndOfRound : public Transaction {
 public:
  explicit EndOfRound(Core& of) : Transaction(of) {}
  // False: nothing has come. `was`: in a recovery, the outcome that it must have.
  bool take(Receipt* receipt, const log::Decided* was = nullptr);
};

}  // namespace fastagg::engine
