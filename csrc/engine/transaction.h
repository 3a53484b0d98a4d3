// A change of a server by answers, or by the end of a round. `Transaction::execute` alone defines the order of the
// stages. Three kinds of transactions define the stages: one answer, a batch of answers in one pass, and the end of a
// round. Each kind defines every stage, even one without work.
//
//     find       finds the tasks, their shares and their weights
//     inspect    reads the updates' bytes once: checks them, computes norms, makes the log's records
//     prepare    lets a rule in the host language look at the updates
//     plan       plans the direction's step, the rate, the next version's memory and bounds
//     read       calls kernels that read the senders' memory, and write only to memory that nobody reads
//     finish     makes the step in the host language (an optimizer, a distillation), after kernels for its vector
//     decide     makes the receipts, and writes the outcome into the log's records
//     conclude   makes statistics, and copies rows that a checkpoint has not written yet
//     run        calls all other kernels
//     commit     changes the model, the moments, the direction, the ledger and the log
//
// Every stage before `run` may refuse, and then nothing has changed. From the beginning of `run` to the end of `commit`
// nothing allocates, and nothing can fail (on a device, `run` can fail until the first launch).
#pragma once

#include <optional>
#include <vector>

#include "direction.h"
#include "extension.h"
#include "ledger.h"
#include "optimizer.h"

namespace fastagg::engine {

class Core;

// An answer in a transaction, and the results of its stages.
struct PendingAnswer {
  Answer* answer = nullptr;
  Ledger::TaskReference task{};
  Contribution brings;
  Findings findings;
  log::Operation operation;
  log::RecordList record;
  store::Vector base;
  double norm = 0.0;
  std::vector<int64_t> participants;  // the counts of the answer's clients (participation.h); empty: not counted
  bool counts = true;                 // false: a rule has dropped the answer
  bool is_misformed = false;          // whether the answer looks like another form than its sender states
};

// The plan of a step.
struct Step {
  bool planned = false;   // whether the direction has a plan
  bool has_run = false;   // whether the plan's kernels have been called
  bool finishes = false;  // whether the host language works on the next version, which may fail
  Outcome outcome = Outcome::kKept;
  double lr = 0.0;
  store::Vector next;  // the next version; none: the step is in place
  store::Vector sum;   // the planned sum, whose memory may become the next version's
  Optimizer kernel;
  std::optional<OptimizerState> moments;  // a copy of the optimizer, if the real one must not change yet
  Bounds bounds;
  std::unique_ptr<Change> change, statistics;  // made by the extension
  log::RecordList record;                      // the record of a round's end
};

// Memory that transactions reuse.
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
  // Refuses if the log could not acknowledge the change.
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

  Core& core_;
  const InOrder order_;
  std::vector<PendingAnswer>& pending_;
  Step step_;

 private:
  void plan_step(ReadMode mode);
};

class Transaction : protected Stages {
 public:
  // Carries out the change. Returns false, with nothing changed, if there is nothing to do or if an answer of a batch
  // is not valid. Throws Refusal, or the extension's exception, with nothing changed.
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
  // Rejects an answer early if it is certainly invalid.
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

// Takes several trained models or updates in one pass, at most as many as the buffer has room for.
class BatchTransaction final : public Transaction {
 public:
  // How many of these answers, from the first on, one pass can take.
  static size_t capacity(const Core& core, const Answer* answers, size_t count);

  BatchTransaction(Core& core, Answer* answers, size_t count) : Transaction(core), answers_(answers), count_(count) {}
  // After `execute`: how many answers counted. If `execute` returned false: how many of the first answers may be tried
  // again together.
  size_t fit() const { return fit_; }

 private:
  bool find() override;
  void inspect() override {}  // `read` inspects the updates, in the pass that adds them
  void prepare() override {}  // a batch has no answers that the extension prepares
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
  // `recorded`: in a recovery, the outcome that the round's end must have. Otherwise null.
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
