// The engine of a server: its operations, and its lock. Answers, and the end of a round, are transactions
// (transaction.h). Only the holder of the lock may use the server's state (core.h).
//
// A sender may change an update's memory at any time. There are three ways to take an update, so that such a change can
// neither leave NaN behind nor exceed a bound:
//   copied   Inspection copies the numbers into the engine's memory. All later stages, and the log, read the copy.
//   once     Only the step's kernel reads the numbers, and writes to new memory (AnswerTransaction::may_read_once).
//   twice    Inspection measures the numbers. The step's kernel reads them again, and limits each to the measured norm
//            (Update::limit).
#pragma once

#include <optional>
#include <string>

#include "../refusal.h"
#include "core.h"
#include "lock.h"

namespace fastagg::engine {

constexpr int kAsItIs = -1;  // the format of a model that is sent without encoding

// A task as it is sent to a client.
struct Task {
  ClientId client;
  int64_t version = 0;
  int32_t local_steps = 0;  // 0: not told
  uint64_t incarnation = 0;
  int64_t id = 0;
  store::Vector model;
  std::shared_ptr<store::Encoded> encoded;  // `model` was decoded from it; null: `model` is the version itself
  store::Owner state;                       // the extension's state of the model besides its vector: running statistics
};

class Engine : public Core, public std::enable_shared_from_this<Engine> {
 public:
  using Core::Core;

  // Each method takes the lock. If a method throws Refusal, nothing has changed. `format`: the place in WireFormats of
  // the model's encoding; negative: none.
  Task dispatch(const ClientId& client, int format = kAsItIs);
  // Gives an open task of one client to one more client.
  Task hand_on(const ClientId& from, int64_t version, const ClientId& to);
  // Ends tasks that nobody will answer: the client's task of this version. Without a version, ends all tasks of the
  // client, and forgets the client.
  void forget(const ClientId& client, std::optional<int64_t> version);
  // Ends overdue tasks. With `before`, also ends all tasks of versions below `before`. Returns how many tasks ended.
  int64_t expire(std::optional<int64_t> before);
  void set_rate(double lr);
  void begin_incarnation(int64_t version, uint64_t number);
  // Takes answers one after the other, up to the first answer that does not count. The answers before it count.
  struct Result {
    size_t done = 0;
    std::optional<Refusal> refused;     // why the next answer does not count,
    std::exception_ptr failed;          // or the error that stopped the call
    std::optional<ClientId> majority;   // the client that sent more than half of a step's updates; reported once
    std::optional<ClientId> misformed;  // a client whose answer looks like another form than stated; reported once
  };
  Result receive(Answer* answers, size_t count);
  // Steps along the updates so far. `if_due`: only if the round's time is over. Returns false if the time is not over,
  // if no update has come, or if the rule has no buffer.
  bool close_round(Receipt* receipt, bool if_due = false);
  // Whether the round has had enough updates for long enough.
  bool is_due();
  // Executes an operation of a log. If the operation is an answer, `answer` has its contents. If `execute` throws
  // Refusal, nothing has changed. kSetting: the outcome would not be the recorded one, so this server has another rule.
  void execute(const log::Operation& operation, Answer* answer);
  // Sets the limits of tasks. All leases, and the clock of a round with enough updates, begin anew. A log is executed
  // without limits, because the log records which tasks ended.
  void limit(const Limits& limits);

  Lock lock;

 private:
  // Executes an operation that is not an answer. Returns how many tasks ended.
  int64_t apply(const log::Operation& operation);
  Task send(log::Operation operation, int format = kAsItIs);
  size_t take(Answer* answers, size_t count);
  int64_t end_overdue(int64_t limit);  // ends at most `limit` overdue tasks, or all if it is negative. Returns how many
  Model::SentModel sent_now(int format);
  store::Vector ahead_now();

  bool told_majority_ = false, told_misformed_ = false;
};

}  // namespace fastagg::engine
