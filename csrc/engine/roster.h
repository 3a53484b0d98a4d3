// The clients that a server knows: each client's place (clients.h), its open tasks, and the local steps for its next
// task. A client takes 8 bytes besides its id. After the first task with a number of local steps, every client takes
// 4 more bytes. An open task takes 40 bytes.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "clients.h"
#include "leases.h"
#include "open_tasks.h"

namespace fastagg::engine {

class Roster {
 public:
  // `numbered` >= 0: the ids are the integers 0..numbered-1. Negative: every id is accepted.
  explicit Roster(int64_t numbered) : clients(numbered), tasks(std::max<int64_t>(numbered, 0)) {}

  Clients clients;
  OpenTasks tasks;
  int64_t known = 0;  // the number of clients that were sent a model and not forgotten

  int64_t place_for(const ClientId& id);           // returns a client's place, a new one if needed
  std::vector<int64_t> owed(int64_t place) const;  // returns the versions of the client's open tasks
  // Throws Refusal, kTooSoon, if the client has an open task of another version than `version`.
  void check_alone(const ClientId& id, int64_t version) const;
  // Whether the client of `due_task` still has the same place. A place without a client has no token, so `is_known` is
  // checked first.
  bool is_there(const Leases::SentTask& due_task) const {
    return due_task.place >= 0 && tasks.is_known(due_task.place) && clients.token(due_task.place) == due_task.token;
  }

  // Returns the local steps for the next task of `id`: the client's own number if there is one, otherwise `usual`.
  int32_t local_steps(const ClientId& id, int32_t usual) const;
  int32_t next_steps(int64_t place) const { return steps_.empty() ? 0 : steps_[static_cast<size_t>(place)]; }
  // Makes room for clients' own numbers of local steps. Without this room `tell_next` does nothing.
  void tells_steps() {
    if (steps_.empty()) steps_.resize(static_cast<size_t>(tasks.places()), 0);
  }
  void tell_next(int64_t place, int32_t local_steps) noexcept {
    if (!steps_.empty()) steps_[static_cast<size_t>(place)] = local_steps;
  }

  // Whether the task that the client was sent last is overdue, answered or not.
  bool is_last_over(int64_t place, const Leases& leases, double time, int64_t now) const {
    const bool has_lease = !ends_.empty() && ends_[static_cast<size_t>(place)] <= time;
    return has_lease || leases.why_over(tasks.last_sent(place), now) == Ids::kDelay;
  }
  // Returns the end of the client's lease if this version was sent to it last, otherwise 0.
  double lease_of(int64_t place, int64_t version) const {
    return ends_.empty() || tasks.last_sent(place) != version ? 0.0 : ends_[static_cast<size_t>(place)];
  }
  // Makes room for the ends of leases, unless clients are numbered, which are never forgotten. Without this room
  // `sent_until` does nothing.
  void tells_ends() {
    if (ends_.empty() && clients.numbered() < 0) ends_.resize(static_cast<size_t>(tasks.places()), 0.0);
  }
  void sent_until(int64_t place, double ends) noexcept {
    if (!ends_.empty()) ends_[static_cast<size_t>(place)] = ends;
  }
  // Ends the leases of all tasks at the same time. Infinite: tasks have no lease.
  void renew(double ends) {
    ends_.clear();
    if (ends < std::numeric_limits<double>::infinity()) tells_ends();
    std::fill(ends_.begin(), ends_.end(), ends);
    tasks.renew(ends);
  }

  // Removes a client that has no open task. If other clients get new places, `leases` gets these places, too.
  void remove(int64_t place, Leases& leases) noexcept;
  size_t nbytes() const {
    return tasks.nbytes() + steps_.size() * sizeof(int32_t) + ends_.size() * sizeof(double) +
           static_cast<size_t>(clients.nbytes());
  }

 private:
  void shrink(Leases& leases) noexcept;

  std::vector<int32_t> steps_;  // by place: the local steps for the next task; 0, or empty: no own number
  std::vector<double> ends_;    // by place: the end of the lease of the task that the client was sent last
};

}  // namespace fastagg::engine
