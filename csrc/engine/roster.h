// The clients that a server knows: the place of each client, its open tasks, and the local steps for its next task. A
// client takes 8 bytes and its id (clients.h), and 4 bytes more if clients are told how many steps to take. An open
// task takes 40 bytes.
#pragma once

#include <vector>

#include "clients.h"
#include "leases.h"
#include "open_tasks.h"

namespace fastagg::engine {

class Roster {
 public:
  // `numbered` >= 0: the ids are the integers below it. Negative: every id is accepted.
  explicit Roster(int64_t numbered) : clients(numbered), tasks(std::max<int64_t>(numbered, 0)) {}

  Clients clients;
  OpenTasks tasks;
  int64_t known = 0;  // number of clients that were sent a model and not forgotten

  int64_t place_for(const ClientId& id);           // creates the place for a new client
  std::vector<int64_t> owed(int64_t place) const;  // the versions of the client's open tasks
  // Throws Refusal, kTooSoon, if the client has an open task of another version, whose answer may come at any time.
  void check_alone(const ClientId& id, int64_t version) const;
  // Whether the client of `due_task` still has its place. `is_known` is asked first, because a place without a client
  // has no token.
  bool is_there(const Leases::SentTask& due_task) const {
    return due_task.place >= 0 && tasks.is_known(due_task.place) && clients.token(due_task.place) == due_task.token;
  }

  // The local steps for the next task of `id`: the client's own number if one was set, otherwise `usual`.
  int32_t local_steps(const ClientId& id, int32_t usual) const;
  int32_t next_steps(int64_t place) const { return steps_.empty() ? 0 : steps_[static_cast<size_t>(place)]; }
  // Makes room for clients' local steps. Without that room `tell_next` does nothing.
  void tells_steps() {
    if (steps_.empty()) steps_.resize(static_cast<size_t>(tasks.places()), 0);
  }
  void tell_next(int64_t place, int32_t local_steps) noexcept {
    if (!steps_.empty()) steps_[static_cast<size_t>(place)] = local_steps;
  }

  // Removes a client without open tasks. Other clients may get new places, which are updated in `due`.
  void remove(int64_t place, std::deque<Leases::SentTask>& due) noexcept;
  size_t nbytes() const {
    return tasks.nbytes() + steps_.size() * sizeof(int32_t) + static_cast<size_t>(clients.nbytes());
  }

 private:
  void shrink(std::deque<Leases::SentTask>& due) noexcept;

  std::vector<int32_t> steps_;  // by place; empty if no client was told a number
};

}  // namespace fastagg::engine
