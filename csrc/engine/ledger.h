// The ledger knows which client was sent which version and has not answered it yet, which versions are kept for that,
// and in which incarnation of the server every version was made. Every operation takes O(1) time in the number of
// clients. Memory: 8 bytes per client and what its id takes (clients.h), 40 per open task and 24 for each of the last
// 16,384 tasks that ended; 4 per client if clients are told how many steps to take; with a lease, also 32 bytes for
// each task that was sent within the lease's time.
//
// All that may fail happens before anything changes. `close` and `tell_next` cannot fail.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../client_id.h"
#include "../store/vector.h"
#include "clients.h"
#include "ids.h"
#include "open_tasks.h"
#include "participation.h"

namespace fastagg::engine {

// How long a server waits for its clients, and how many tasks and clients it allows.
struct Limits {
  double lease = std::numeric_limits<double>::infinity();         // the most seconds that a task may take
  int64_t max_delay = std::numeric_limits<int64_t>::max();        // the most versions that a task may be old
  int64_t open_per_client = std::numeric_limits<int64_t>::max();  // the most unanswered tasks of one client
  int64_t clients = std::numeric_limits<int64_t>::max();          // the most clients known at a time
  bool expires() const { return lease < std::numeric_limits<double>::infinity() || max_delay < INT64_MAX; }
};

class Ledger {
 public:
  static constexpr int64_t kLast = INT64_MIN;  // as a version: the one that the client was sent last
  static constexpr int64_t kNoTask = 0;        // as an id: none

  // `clients` >= 0: the ids are the whole numbers 0..clients-1. Negative: every id is accepted.
  // `keeps`: whether the data of a version is kept for as long as a client may answer it.
  Ledger(int64_t clients, bool keeps) : numbered_(clients), keeps_(keeps), tasks_(std::max<int64_t>(clients, 0)) {}

  Limits limits;
  Participation participation;
  double skew = 0.0;                                             // seconds by which this clock is ahead; for tests
  double given_time = std::numeric_limits<double>::quiet_NaN();  // at which leases are compared, in a test; NaN: now
  double own_time() const;                                       // seconds, by this process' clock

  int64_t now = 0;      // the version t: counts all steps of the model, also those that left it unchanged
  int64_t steps = 0;    // the optimizer's steps
  int64_t offset = -1;  // in the log that answers came from: of the last answer that told one. -1: none has

  // Throws Refusal, kUnknownClient: the id is not one of 0..clients-1.
  void check(const ClientId& id) const;

  // Throws Refusal, kTooSoon: it has an open task of another version, whose answer may come at any time.
  void check_alone(const ClientId& id, int64_t version) const;

  // The task that an answer refers to.
  struct Found {
    int64_t client;  // the place of the client's record; its number, if clients are numbered
    int64_t version;
    int32_t local_steps;  // that it was told to take; 0 if none were told
    int64_t id;
  };
  // With a task's id, only that task is found. Throws Refusal: kUnknownClient, kUnknownVersion, kStaleIncarnation,
  // kAlreadyCounted.
  Found find(const ClientId& id, int64_t version, int64_t task = kNoTask) const;

  // The local steps that `id` is told to take with its next task: its own number if one was set, otherwise `usual`.
  int32_t local_steps(const ClientId& id, int32_t usual) const;
  // Records that `id` was sent that version and told so many steps. Sending a version twice makes one task, with the
  // values of the last time. `task`: its id, if a log tells it. Returns the place of the client's record. Throws
  // Refusal, kBusy, beyond a limit.
  int64_t send(const ClientId& id, int64_t version, int32_t local_steps, const store::Vector& kept,
               int64_t task = kNoTask);
  // The id of the task that sending this version makes.
  int64_t next_id(const ClientId& id, int64_t version) const;

  // Ends a task. `outcome`: what is remembered of its answer (Ids::pack); otherwise, why it ended without one.
  void close(int64_t client, int64_t version, int64_t outcome) noexcept;
  void close(int64_t client, int64_t version, Ids::Why why = Ids::kGivenUp) noexcept {
    close(client, version, Ids::unanswered(version, why));
  }
  // What a client is told with its next task. It was told some steps with a task before.
  void tell_next(int64_t client, int32_t local_steps) noexcept {
    if (!next_steps_.empty()) next_steps_[static_cast<size_t>(client)] = local_steps;
  }
  void tell_next_to(const ClientId& id, int32_t local_steps);
  void forget(const ClientId& id);  // ends its tasks and removes it

  // What is over next, in order of time: a task whose lease is over or whose version is too old, or a client without an
  // open task that was not heard of for the same time. `pass` ends it and goes on to the next one.
  struct Overdue {
    ClientId client;
    int64_t version;
    bool ends, forgets;  // the task; the client. Neither: both were gone before
  };
  std::optional<Overdue> overdue() const;
  void pass(const Overdue& one) noexcept;
  // Ends all tasks of versions below this one. Returns how many.
  int64_t expire_before(int64_t version);
  // All leases begin anew, under the current limits.
  void renew();

  int64_t expired() const { return expired_; }  // tasks that have expired so far
  int64_t open_tasks() const { return tasks_.count(); }
  // The seconds since the oldest task with a lease was sent, answered or not. 0 if there is none.
  double oldest_task() const;

  std::vector<int64_t> owed(const ClientId& id) const { return versions_of(known_place(id)); }
  bool owes(const ClientId& id, int64_t version) const;
  store::Vector kept(int64_t version) const { return kept_.of(version); }  // none if nothing is kept
  std::vector<std::pair<int64_t, store::Vector>> all_kept() const { return kept_.all(); }
  int64_t nbytes() const;
  int64_t known() const { return known_; }

  // From this version on, versions belong to the incarnation with this number. Incarnations before it are forgotten
  // when none of their tasks is open.
  void begin_incarnation(int64_t version, uint64_t number);
  uint64_t incarnation_of(int64_t version) const;
  using Incarnations = std::vector<std::pair<int64_t, uint64_t>>;  // (first version, number)
  const Incarnations& incarnations() const { return incarnations_; }

  // The state as columns: a row for each known client, and one for each open task.
  struct State {
    int64_t version = 0, steps = 0;
    std::vector<ClientId> clients;
    std::vector<int64_t> last_sent, next_steps;
    std::vector<int64_t> task_client, task_version, task_steps, task_id;
    Ids::State ids;
    Participation::State participation;
    int64_t offset = -1;
    std::vector<std::pair<int64_t, store::Vector>> versions;
  };
  State state() const;
  // Loads a state into a new ledger. Throws std::invalid_argument.
  void load(const State& state);

 private:
  // A task that was sent. The queue has them in the order in which they were sent.
  struct Due {
    double ends;
    int64_t version;
    int64_t token;  // of the place (clients.h): another one means that the client was forgotten meanwhile
    int32_t place;  // negative: it was forgotten
  };

  ClientId id_at(int64_t place) const { return numbered_ >= 0 ? ClientId::of(place) : clients_.at(place); }
  int64_t token_of(int64_t place) const { return numbered_ >= 0 ? place : clients_.token(place); }
  // Whether the client of that lease still has its place. A place without a client has no token, so it is asked first.
  bool is_there(const Due& one) const {
    return one.place >= 0 && tasks_.is_known(one.place) && token_of(one.place) == one.token;
  }
  int64_t place_of(const ClientId& id) const;  // -1: unknown
  int64_t place_for(const ClientId& id);       // creates the place for a new client
  int64_t known_place(const ClientId& id) const;
  std::vector<int64_t> versions_of(int64_t place) const;  // of its open tasks
  double clock() const;
  bool over(const OpenTask& task, double time) const {
    return task.ends <= time || why_over(task.version) == Ids::kDelay;
  }
  Ids::Why why_over(int64_t version) const { return version < now - limits.max_delay ? Ids::kDelay : Ids::kLease; }
  void drop(int64_t place) noexcept;  // removes its record; it has no open task
  void shrink() noexcept;
  void open(int64_t place, int64_t version, int32_t local_steps, const store::Vector& kept, double ends, int64_t id);
  std::string gone(const ClientId& id) const;
  [[noreturn]] void refuse_ended(const ClientId& id, int64_t task) const;
  void check_limits(const ClientId& id, int64_t place) const;
  void tells_steps() {
    if (next_steps_.empty()) next_steps_.resize(static_cast<size_t>(tasks_.places()), 0);
  }

  int64_t numbered_;
  bool keeps_;
  OpenTasks tasks_;
  std::vector<int32_t> next_steps_;  // by place; empty if no client was told any
  Clients clients_;                  // whose records they are, if ids are not numbered
  std::vector<int32_t> free_records_;
  KeptVersions kept_;
  std::deque<Due> due_;  // empty if nothing expires
  int64_t known_ = 0, expired_ = 0;
  Incarnations incarnations_;
  Ids ids_;
};

}  // namespace fastagg::engine
