// The ledger stores the open tasks of every client (roster.h), the ends of tasks' leases (leases.h), and how the last
// tasks ended (ids.h). The ledger also stores the versions that open tasks need, and in which incarnation of the server
// each version was made. An incarnation lasts from one start or load of the server to the next. Sending, finding and
// closing a task take O(1) time in the number of clients. Besides the roster, memory is 24 bytes for each of the last
// 16,384 ended tasks. Each task takes 32 bytes more for each limit (lease, max_delay) until it is overdue, even if it
// was answered before. With a lease, each client takes 8 bytes more.
//
// Callers use the ledger's members directly. The methods of Ledger are operations on several members. If a method other
// than `load` fails, nothing has changed except memory. `close` and `pass` cannot fail.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "../client_id.h"
#include "../store/vector.h"
#include "ids.h"
#include "leases.h"
#include "participation.h"
#include "roster.h"

namespace fastagg::engine {

class Archive;

constexpr int64_t kLastSent = INT64_MIN;  // as a version: the version that the client was sent last
constexpr int64_t kNoTask = 0;            // as an id: no task

struct Incarnations {
  std::vector<std::pair<int64_t, uint64_t>> all;  // the first version and the number of each incarnation

  uint64_t of(int64_t version) const;
  // From this version on, versions belong to the incarnation with this number. Forgets incarnations that have only
  // versions below `oldest`. The caller must have made room in `all`.
  void begin(int64_t version, uint64_t number, int64_t oldest) noexcept;
};

class Ledger {
 public:
  // `clients` >= 0: the ids are the integers 0..clients-1. Negative: every id is accepted. `keeps`: whether a version's
  // data is kept as long as a client may answer that version.
  Ledger(int64_t clients, bool keeps) : roster(clients), kept(keeps) {}

  int64_t now = 0;      // the current version: how many steps were made, including empty steps
  int64_t steps = 0;    // how many steps the optimizer has made
  int64_t offset = -1;  // the offset, in the queue of answers, of the last counted answer; -1: none
  Roster roster;
  KeptVersions kept;
  Leases leases;
  Ids ids;
  Incarnations incarnations;
  Participation participation;

  // Returns the place of a known client. Throws Refusal, kUnknownClient.
  int64_t place_of(const ClientId& id) const;
  // A task that an answer refers to.
  struct TaskReference {
    int64_t client;  // the client's place (clients.h), which is the client's number if clients are numbered
    int64_t version;
    int32_t local_steps;  // the number of steps that the client was told to take; 0: not told
    int64_t id;
  };
  // Finds the client's open task of this version, or of the version sent last (kLastSent). If `task` is given, the open
  // task must also have this id. Refuses an overdue task. Throws Refusal: kUnknownClient, kUnknownVersion,
  // kStaleIncarnation, kAlreadyCounted, kOtherClient.
  TaskReference find(const ClientId& id, int64_t version, int64_t task = kNoTask) const;

  // Opens a task: records that the client was sent this version, with this number of local steps. If the client has an
  // open task of this version already, that task gets the new values. `data`: the version's model. `task`: the
  // task's id, if a log has the id. Returns the client's place. Throws Refusal, kBusy, beyond a limit.
  int64_t send(const ClientId& id, int64_t version, int32_t local_steps, const store::Vector& data,
               int64_t task = kNoTask);
  // Returns the id of the task that `send` would open, or would give new values.
  int64_t next_id(const ClientId& id, int64_t version) const;

  // Ends a task. `outcome`: the outcome of the counted answer (Ids::pack), or the reason without one (Ids::unanswered).
  void close(int64_t place, int64_t version, int64_t outcome) noexcept;
  void forget(const ClientId& id);  // ends the client's tasks and removes the client

  // Ends an overdue task.
  void end_late(int64_t place, int64_t version) noexcept;
  // Returns a task whose lease is over or whose version is too old. The task may have ended already. If clients are not
  // numbered, the client is to be forgotten if it has no other open task and the task that it was sent last is overdue.
  // `pass` ends the task and forgets the client, as the flags say, and removes the task from its list, or moves it back
  // if its lease ends later.
  struct OverdueTask {
    std::vector<Leases::SentTask>* list;  // the list of `leases` whose first task this is
    ClientId client;
    int64_t version;
    bool ends, forgets;  // `ends`: the task is to be ended; `forgets`: the client is to be forgotten
    double later;        // the new end of the lease, if the client was sent the version again; otherwise 0
  };
  std::optional<OverdueTask> overdue();
  void pass(const OverdueTask& overdue) noexcept;
  // Ends all tasks of versions below this one. Returns how many tasks ended.
  int64_t expire_before(int64_t version);
  // Restarts the leases of all open tasks, with the current limits.
  void renew();

  // From this version on, versions belong to the incarnation with this number. Forgets incarnations
  // that made neither the current version nor the version of an open task.
  void begin_incarnation(int64_t version, uint64_t number);

  // The state as columns, with a row for each known client and one for each open task.
  struct State {
    int64_t version = 0, steps = 0;
    std::vector<ClientId> clients;
    std::vector<int64_t> last_sent, next_steps;
    std::vector<int64_t> task_client, task_version, task_steps, task_id;
    Ids::State ids;
    Participation::State participation;
    int64_t offset = -1;
    std::vector<std::pair<int64_t, store::Vector>> versions;

    // `numbered`: whether the ids are 0..clients-1. `size`: the number of elements of a version.
    void fields(Archive& archive, bool numbered, int64_t size);
  };
  State state() const;
  // Loads a state into a new ledger. Throws std::invalid_argument.
  void load(const State& state);
  int64_t nbytes() const;

 private:
  void open(int64_t place, int64_t version, int32_t local_steps, const store::Vector& data, double ends, int64_t id);
};

}  // namespace fastagg::engine
