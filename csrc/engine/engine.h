// The engine of a server: what it knows, its operations, and its lock. Answers, and the end of a round, are
// transactions (transaction.h).
//
// Read once: an update's bytes are copied into memory of the engine's own while they are inspected, and all later
// stages and the log read that copy. A large one, where that costs time, is instead read by the step's kernel alone,
// which writes to new memory (OneAnswer::may_read_once). Its sender may do with its memory what it likes.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../refusal.h"
#include "../store/encoded.h"
#include "../store/row_cut.h"
#include "direction.h"
#include "extension.h"
#include "inspector.h"
#include "ledger.h"
#include "lock.h"
#include "optimizer.h"
#include "privacy.h"
#include "records.h"
#include "staleness.h"
#include "transaction.h"

namespace fastagg::engine {

struct Settings {
  int64_t size = 0;                      // of the model's vector
  int64_t clients = -1;                  // ids are 0..clients-1; negative: any
  double clip_norm = 0.0;                // of an update; 0: none
  bool weighs_by_samples = false;        // whether an update's weight in a mean is its client's number of samples
  double max_samples = kHeaviest;        // a larger number counts as this
  double largest_model = kLargestModel;  // what the model's own types hold
  int32_t local_steps = 0;               // of a task by default; 0: none are told
  bool keeps_versions = false;           // every one that a client may answer
  bool closes_early = false;             // `close_round` steps along what has come
  bool folds = false;                    // trained models may be added several at a time, in one pass
  bool defers = false;                   // kernels obey the device's verdict, for which nobody waits
  Staleness staleness;
};

constexpr int kAsItIs = -1;  // a format of what is sent

// What a client is sent.
struct Task {
  ClientId client;
  int64_t version = 0;
  int32_t local_steps = 0;  // 0: none are told
  uint64_t incarnation = 0;
  int64_t id = 0;
  store::Vector model;
  std::shared_ptr<store::Encoded> encoded;  // that the model was read back from; null: it is the version itself
  store::Owner state;  // what the extension holds of the model besides its vector: running statistics
};

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  Engine(const Settings& settings, std::shared_ptr<DirectionState> direction, const OptimizerSettings& optimizer,
         uint64_t seed, std::shared_ptr<store::Memory> memory, std::shared_ptr<Runner> runner,
         std::shared_ptr<Extension> extension, store::Vector model);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // -- Operations. Each takes the lock, and throws Refusal with nothing changed.
  // `format`: of WireFormat, in which the model is sent; negative: as it is.
  Task dispatch(const ClientId& client, int format = kAsItIs);
  // Gives an open task of one client to one more.
  Task hand_on(const ClientId& from, int64_t version, const ClientId& to);
  // Drops tasks that nobody will answer: one, or all of a client, which is then unknown.
  void forget(const ClientId& client, std::optional<int64_t> version);
  // Ends tasks that are over; with `before` also all tasks of versions below it. Returns how many ended.
  int64_t expire(std::optional<int64_t> before);
  void set_rate(double lr);
  void begin_incarnation(int64_t version, uint64_t number);
  // Takes answers one after the other, up to the first that does not count. Those before it count.
  struct Result {
    size_t done = 0;
    std::optional<Refusal> refused;  // why the next one does not count,
    std::exception_ptr failed;       // or what else went wrong
  };
  Result receive(Answer* answers, size_t count);
  // Steps now along what has come; `if_due`: only if the round's time is over. False: it is not, nothing has come, or
  // the rule has no buffer.
  bool close_round(Receipt* receipt, bool if_due = false);
  // Whether the round has had enough updates for long enough.
  bool is_due();
  // Executes an operation of a log; `answer` is the answer of one that is an answer. Throws Refusal with nothing
  // changed; kSetting: the outcome would not be the recorded one, so this server's rule is another one.
  void execute(const log::Operation& operation, Answer* answer);
  // Sets the limits of tasks. All leases, and the time of a round that has enough, begin anew. No limits, while a log
  // is executed: it says which tasks ended.
  void limit(const Limits& limits);

  // -- For the holder of the lock.
  Lock lock;
  Ledger& ledger() { return ledger_; }
  const Ledger& ledger() const { return ledger_; }
  DirectionState& direction() { return *direction_; }
  const OptimizerState& optimizer() const { return optimizer_; }
  const store::Vector& model() const { return model_; }
  store::Memory& memory() const { return *memory_; }
  const store::Owner& state() const { return state_; }
  void set_state(store::Owner state) { state_ = std::move(state); }
  // The current version, for somebody who may hold it: it never changes from now on.
  const store::Vector& share_model() {
    shared_ = true;
    return model_;
  }
  // Versions of before that somebody still holds: a task, or whoever was handed one.
  std::vector<store::Vector> held_before() const;
  // Lets the caller's work on a device, which reads what the server holds, wait for the server's.
  void follow() const { runner_->follow(); }
  double lr() const { return optimizer_.settings.lr; }
  const Settings& settings() const { return settings_; }
  // What updates are clipped to; 0: nothing.
  double clip_norm() const { return direction_->is.privacy ? direction_->is.privacy->clip() : settings_.clip_norm; }
  // The task that an answer refers to. Throws Refusal: kUnknownClient, kUnknownVersion, kStaleIncarnation,
  // kAlreadyCounted.
  Ledger::Found find(const Answer& answer) const;
  Extension* extension() const { return extension_.get(); }

  Records records;                    // of every operation, once a log is attached
  int64_t end_overdue(int64_t most);  // tasks, at most so many; all if it is negative. Returns how many ended
  // The rows that a checkpoint has not written yet; a row is copied before it changes. None: no checkpoint is written.
  void cut_rows(std::shared_ptr<store::RowCut> cut) { cut_ = std::move(cut); }
  void measure();  // computes new bounds of elements

 private:
  friend class Transaction;
  friend class OneAnswer;
  friend class Several;
  friend class EndOfRound;

  // What an operation does that is no answer; how many tasks ended.
  int64_t apply(const log::Operation& operation);
  Task send(const log::Operation& operation, int format = kAsItIs);
  size_t take(Answer* answers, size_t count);
  void give_up(const std::vector<int64_t>& slots);
  bool steps_in_python() const { return extension_ && extension_->asks.step; }
  bool prepares(const Answer& answer) const;
  store::Vector kept_now() const;
  // What clients are sent of this version: made for the first of them, and the same for all.
  struct Sent {
    store::Vector model;
    std::shared_ptr<store::Encoded> encoded;
  };
  Sent sent_now(int format);
  store::Vector ahead_now();
  cpu::Tensors* tensors();

  Settings settings_;
  std::shared_ptr<DirectionState> direction_;
  OptimizerState optimizer_;
  Ledger ledger_;
  std::shared_ptr<store::Memory> memory_;
  std::shared_ptr<Runner> runner_;
  std::unique_ptr<Inspector> inspector_;
  std::shared_ptr<Extension> extension_;
  std::shared_ptr<store::RowCut> cut_;
  store::Vector model_;
  store::Owner state_;
  double model_bound_ = 0.0;
  bool shared_ = false;       // whether somebody may hold this version
  std::map<int, Sent> sent_;  // in place of this version, once it was: by format; as it is, a look-ahead
  struct Before {
    std::weak_ptr<void> owner;
    float* data;
  };
  std::vector<Before> before_;  // versions that were shared; a step makes room for all that is sent of one
  double enough_since_ = std::numeric_limits<double>::quiet_NaN();  // when the round had enough, by the ledger's clock

  Scratch scratch_;
};

}  // namespace fastagg::engine
