// Transactions change a server: by one answer, by a batch of answers in one pass, or by the end of a round. Each of
// these kinds defines the stages `find` to `read` and `decide`, some of them empty. The other stages are the same for
// all kinds. `Transaction::execute` alone defines the order of the stages:
//
//     find       finds the answers' tasks, and the updates' shares and weights
//     inspect    reads the updates' bytes once, checks them, computes norms, makes log records
//     prepare    gives the updates to a rule in the host language, if there is one
//     plan       plans the direction's step and rate, allocates the next version, checks bounds
//     read       calls kernels that read senders' memory, and write only to memory that nobody else reads
//     finish     if the host language takes part in the step: calls the kernels, then the host language
//     decide     makes the receipts, and writes the outcomes into the log records
//     conclude   computes running statistics, copies a row that a checkpoint has not saved yet
//     run        calls the planned kernels, unless an earlier stage has called them
//     commit     changes the model, the moments, the direction, the ledger and the log
//
// Every stage before `run` may refuse, and then nothing has changed: kernels that run earlier write only to memory that
// nobody else reads. From the first kernel of `run` to the end of `commit` nothing allocates or fails. On a device,
// `run` can still fail until the first launch.
#pragma once

#include <optional>
#include <vector>

#include "direction.h"
#include "extension.h"
#include "ledger.h"
#include "optimizer.h"

namespace fastagg::engine {

class Core;

// An answer in a transaction, with the results of the stages so far.
struct PendingAnswer {
  Answer* answer = nullptr;
  Ledger::TaskReference task{};
  Contribution brings;
  Findings findings;
  log::Operation operation;
  log::RecordList record;
  store::Vector base;
  double norm = 0.0;
  std::vector<int64_t> participants;  // the places of the answer's clients in Participation; empty: none is counted
  bool counts = true;                 // whether the update counts; false: the answer only ends its task
  bool is_misformed = false;          // whether the answer seems to be of another kind than its sender states
};

// The plan of a step.
struct Step {
  bool planned = false;   // whether the direction has planned the updates
  bool has_run = false;   // whether the plan's kernels have been called
  bool finishes = false;  // whether the host language takes part in the step
  Outcome outcome = Outcome::kKept;
  double lr = 0.0;
  store::Vector next;  // the memory of the next version; empty: the step is in place
  store::Vector sum;   // the planned sum, whose memory may become the next version; empty: none
  Optimizer kernel;
  std::optional<OptimizerState> moments;  // the copied state that the step changes; none: the step changes no copy
  Bounds bounds;
  std::unique_ptr<Change> change, statistics;  // changes by the extension; null: none
  log::RecordList record;                      // the log record of a round's end; empty: none
};

// Memory that is kept from one transaction to the next, so that transactions rarely allocate.
struct TransactionScratch {
  std::vector<PendingAnswer> pending;
  Contributions contributions;
  std::vector<Statistics> statistics;
};

// The stages that several kinds of transactions share.
class Stages {
 public:
  Stages(const Stages&) = delete;
  Stages& operator=(const Stages&) = delete;

 protected:
  // Throws Refusal, kNotDurable or kBusy, if the log takes no more records now.
  explicit Stages(Core& core);
  ~Stages() { pending_.clear(); }

  PendingAnswer& add(Answer& answer);
  void find_task(PendingAnswer& pending);
  void check_participants(const Answer& answer) const;
  void place_participants(PendingAnswer& pending);
  void compare_form(PendingAnswer& pending);
  void inspect_update(PendingAnswer& pending);
  void ask_extension(PendingAnswer& pending);
  void plan_direction(bool closes, ReadMode mode);
  void check_bounds();
  void write_receipt(PendingAnswer& pending, bool ends, double norm);
  bool steps() const { return step_.outcome == Outcome::kStep; }
  bool applied() const;
  bool keeps_version() const;

  Core& core_;
  const InOrder order_;
  std::vector<PendingAnswer>& pending_;
  Step step_;

 private:
  void plan_step(ReadMode mode);
};

class Transaction : protected Stages {
 public:
  // Executes all stages. Returns false, with nothing changed, if there is nothing to do or if an answer of a batch is
  // invalid. Throws Refusal, or the extension's exception, with nothing changed.
  bool execute();

 protected:
  using Stages::Stages;
  ~Transaction() = default;

  virtual bool find() = 0;
  virtual void inspect() = 0;
  virtual void prepare() = 0;
  virtual bool plan() = 0;
  virtual bool read() = 0;
  virtual void decide() = 0;

 private:
  void finish();
  void conclude();
  void run();
  void commit() noexcept;
};

class AnswerTransaction final : public Transaction {
 public:
  AnswerTransaction(Core& core, Answer& answer) : Transaction(core), answer_(answer) {}
  // Refuses an answer that has no open task, or that the inspector refuses. Changes nothing.
  void check();

 private:
  bool find() override;
  void inspect() override;
  void prepare() override;
  bool plan() override;
  bool read() override;
  void decide() override;
  bool may_read_once() const;
  PendingAnswer& pending() { return pending_.front(); }

  Answer& answer_;
  bool reads_once_ = false;
};

// Executes one or more answers, all with trained models or all with updates, in one pass. The buffer must have room.
class BatchTransaction final : public Transaction {
 public:
  // Returns how many of these answers, from the first on, one pass can execute. 0: the first is executed alone.
  static size_t capacity(const Core& core, const Answer* answers, size_t count);

  BatchTransaction(Core& core, Answer* answers, size_t count) : Transaction(core), answers_(answers), count_(count) {}
  // If `execute` returned true: how many answers have counted. If false: how many of the first answers may be tried
  // again in one pass.
  size_t fit() const { return fit_; }

 private:
  bool find() override;
  void inspect() override {}  // `read` checks the updates, in the pass that adds them
  void prepare() override {}  // the extension prepares no answer of a batch
  bool plan() override;
  bool read() override;
  void decide() override;
  bool has_models() const { return answers_->kind == Answer::kModel; }

  Answer* const answers_;
  const size_t count_;
  size_t fit_ = 0;
};

class RoundEndTransaction final : public Transaction {
 public:
  // `recorded`: in a recovery, the outcome that the log has for this round's end. Otherwise null.
  RoundEndTransaction(Core& core, Receipt& receipt, const log::RecordFields* recorded = nullptr)
      : Transaction(core), receipt_(receipt), recorded_(recorded) {}

 private:
  bool find() override { return true; }  // there is no answer
  void inspect() override {}
  void prepare() override {}
  bool plan() override;
  bool read() override { return true; }
  void decide() override;

  Receipt& receipt_;
  const log::RecordFields* const recorded_;
};

}  // namespace fastagg::engine
