// The ledger knows the open tasks of every client (roster.h), until when they last (leases.h), and how the last tasks
// ended (ids.h). It also knows which versions are kept for open tasks, and in which incarnation of the server every
// version was made. Every operation takes O(1) time in the number of clients. Besides the roster, memory is 24 bytes
// for each of the last 16,384 ended tasks and, with a lease, 32 for each task that was sent within the lease's time.
//
// Callers use its parts directly. The methods here concern several parts. All that may fail happens before anything
// changes. `close` and `pass` cannot fail.
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

constexpr int64_t kLastSent = INT64_MIN;  // as a version: the one that the client was sent last
constexpr int64_t kNoTask = 0;            // as an id: no task

struct Incarnations {
  std::vector<std::pair<int64_t, uint64_t>> all;  // (first version, number)

  uint64_t of(int64_t version) const;
  // From this version on, versions belong to the incarnation with this number. Forgets earlier ones that have no
  // version from `oldest` on. The caller has made room.
  void begin(int64_t version, uint64_t number, int64_t oldest) noexcept;
};

class Ledger {
 public:
  // `clients` >= 0: the ids are the integers 0..clients-1. Negative: every id is accepted. `keeps`: whether the data of
  // a version is kept for as long as a client may answer it.
  Ledger(int64_t clients, bool keeps) : roster(clients), kept(keeps) {}

  int64_t now = 0;      // the version t: counts all steps of the model, including those that left it unchanged
  int64_t steps = 0;    // the optimizer's steps
  int64_t offset = -1;  // of the last answer that stated one, in the queue that answers are read from; -1: none has
  Roster roster;
  KeptVersions kept;
  Leases leases;
  Ids ids;
  Incarnations incarnations;
  Participation participation;

  // The place of a known client. Throws Refusal, kUnknownClient.
  int64_t place_of(const ClientId& id) const;
  // The task that an answer refers to.
  struct TaskReference {
    int64_t client;  // the place of the client's record; its number if clients are numbered
    int64_t version;
    int32_t local_steps;  // that the client was told to take; 0: not told
    int64_t id;
  };
  // With a task's id, only that task is found. Throws Refusal: kUnknownClient, kUnknownVersion, kStaleIncarnation,
  // kAlreadyCounted, kOtherClient.
  TaskReference find(const ClientId& id, int64_t version, int64_t task = kNoTask) const;

  // Records that `id` was sent that version with so many local steps. Sending a version twice makes one task, with the
  // values of the last time. `task`: its id, if a log states it. Returns the place of the client's record. Throws
  // Refusal, kBusy, beyond a limit.
  int64_t send(const ClientId& id, int64_t version, int32_t local_steps, const store::Vector& data,
               int64_t task = kNoTask);
  // The id of the task that sending this version makes.
  int64_t next_id(const ClientId& id, int64_t version) const;

  // Ends a task. `outcome`: the outcome of its answer (Ids::pack), or why it ended without one (Ids::unanswered).
  void close(int64_t place, int64_t version, int64_t outcome) noexcept;
  void forget(const ClientId& id);  // ends its tasks and removes it

  // The next overdue entry, in order of time: a task whose lease is over or whose version is too old, or a client
  // without an open task that was sent nothing for the lease's time. `pass` ends it and goes on to the next one.
  struct OverdueTask {
    ClientId client;
    int64_t version;
    bool ends, forgets;  // whether the task ends, and the client is forgotten. Neither: both are gone already
  };
  std::optional<OverdueTask> overdue() const;
  void pass(const OverdueTask& overdue) noexcept;
  // Ends all tasks of versions below this one. Returns how many.
  int64_t expire_before(int64_t version);
  // Begins all leases anew, under the current limits.
  void renew();

  // From this version on, versions belong to the incarnation with this number. Incarnations before it are forgotten
  // when none of their tasks is open.
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

    // `numbered`: whether clients are. `size`: elements of a version.
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
