// The engine of a server: its operations, and its lock. Answers, and the end of a round, are transactions
// (transaction.h). What a server is made of (core.h) is for the holder of the lock.
//
// Read once: an update's bytes are copied into memory of the engine's own while they are inspected, and all later
// stages and the log read that copy. A large one, where that costs time, is instead read by the step's kernel alone,
// which writes to new memory (AnswerTransaction::may_read_once). Its sender may do with its memory what it likes.
#pragma once

#include <optional>
#include <string>

#include "../refusal.h"
#include "core.h"
#include "lock.h"

namespace fastagg::engine {

constexpr int kAsItIs = -1;  // a format of what is sent

// A task as a client is sent it.
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

class Engine : public Core, public std::enable_shared_from_this<Engine> {
 public:
  using Core::Core;

  // Each takes the lock, and throws Refusal with nothing changed.
  // `format`: of WireFormats, in which the model is sent; negative: as it is.
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
    std::optional<Refusal> refused;     // why the next one does not count,
    std::exception_ptr failed;          // or what else went wrong
    std::optional<ClientId> majority;   // whose updates were more than half of a step; it is told once
    std::optional<ClientId> misformed;  // whose answer looks as if it had another form; it is told once
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

  Lock lock;

 private:
  // Executes an operation that is no answer. Returns how many tasks ended.
  int64_t apply(const log::Operation& operation);
  Task send(log::Operation operation, int format = kAsItIs);
  size_t take(Answer* answers, size_t count);
  int64_t end_overdue(int64_t limit);  // tasks, at most so many; all if it is negative. Returns how many ended
  Model::SentModel sent_now(int format);
  store::Vector ahead_now();

  bool told_majority_ = false, told_misformed_ = false;
};

}  // namespace fastagg::engine
