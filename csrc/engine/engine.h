// The engine of a server. Its methods are the server's operations. Answers and the ends of rounds are executed as
// transactions (transaction.h). Only the thread that holds the lock may use the server's state (core.h).
//
// An update's sender may write to the update's memory at any time, unless Answer::is_private is true. Such a write must
// neither put NaN into the state nor break a bound. So the engine reads an update in one of three ways:
//   copied      Inspection copies the elements to the engine's memory. All later stages, and the log, read the copy.
//   read once   One pass reads the elements, and writes to new memory (AnswerTransaction::may_read_once, or a batch).
//   read twice  Only if `still` is true. Inspection measures the elements. The step's kernel reads them again, and
//               limits each element's magnitude to the measured norm, in case that somebody writes (Update::limit).
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
  int32_t local_steps = 0;  // the number of local steps to take; 0: the client is not told
  uint64_t incarnation = 0;
  int64_t id = 0;
  store::Vector model;
  std::shared_ptr<store::Encoded> encoded;  // the bytes from which `model` was decoded; null: not encoded
  store::Owner state;                       // the model's running statistics, as the extension stores them
};

class Engine : public Core, public std::enable_shared_from_this<Engine> {
 public:
  using Core::Core;

  // Each method except `is_due` takes the lock. If a method throws Refusal, nothing has changed, except that
  // `dispatch`, `hand_on` and `expire` may have ended overdue tasks.
  // `dispatch` opens a task of the current version. `format`: the encoding of the model that the client is sent, as an
  // index in WireFormats; negative: no encoding.
  Task dispatch(const ClientId& client, int format = kAsItIs);
  // Opens a task of this version for client `to`. Client `from` must have the open task `task` of this version, and
  // keeps it.
  Task hand_on(const ClientId& from, int64_t version, int64_t task, const ClientId& to);
  // Ends the client's open task of this version. Without a version, ends all the client's tasks and forgets the client.
  void forget(const ClientId& client, std::optional<int64_t> version);
  // Ends overdue tasks. With `before`, also ends all tasks of versions below `before`. Returns how many tasks ended.
  int64_t expire(std::optional<int64_t> before);
  void set_rate(double lr);
  void begin_incarnation(int64_t version, uint64_t number);
  // Executes answers in order, up to the first answer that is refused. All answers before that one are executed.
  struct Result {
    size_t done = 0;                    // how many answers were executed
    std::optional<Refusal> refused;     // why the next answer is refused; empty: no answer is refused
    std::exception_ptr failed;          // another error, which stopped the call; null: none
    std::optional<ClientId> majority;   // the client that sent more than half of a step's updates; reported once
    std::optional<ClientId> misformed;  // a client whose answer seems to be of another kind than stated; reported once
  };
  Result receive(Answer* answers, size_t count);
  // Ends the round with the updates so far, and sets `receipt`. `if_due`: only if `is_due`, and if the step is not too
  // large. Returns false if the round stays open. A round without updates stays open, and so does every round of a rule
  // that ends only full rounds.
  bool close_round(Receipt* receipt, bool if_due = false);
  // Whether the round has had enough updates for Sums::grace seconds. The round's clock starts once the round has
  // enough updates. The caller must hold the lock.
  bool is_due();
  // Executes an operation from a log again. If the operation is an answer, `answer` has the answer's contents. If
  // `execute` throws Refusal, nothing has changed. A Refusal with kSetting means that the outcome differs from the
  // recorded one, because the server has another rule or another model.
  void execute(const log::Operation& operation, Answer* answer);
  // Sets the limits of tasks. Restarts all leases, and the clock of a round with enough updates (is_due). There must be
  // no limits while a log is executed, because the log records which tasks ended.
  void limit(const Limits& limits);

  Lock lock;

 private:
  // Executes a kForget, kExpire, kRate or kIncarnation operation. Returns how many tasks kExpire ended.
  int64_t apply(const log::Operation& operation);
  Task send(log::Operation operation, int format = kAsItIs);
  size_t take(Answer* answers, size_t count);
  // Prepares to send a client a task: ends a few overdue tasks, all of the client's, and all if no client has room.
  void make_room(const ClientId& client);
  int64_t end_overdue(int64_t limit);  // passes `limit` overdue tasks (negative: all); returns how many ended
  Model::SentModel sent_now(int format);
  store::Vector ahead_now();

  bool told_majority_ = false, told_misformed_ = false;
};

}  // namespace fastagg::engine
