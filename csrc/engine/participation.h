// Who may take part in a step, and how often. Clients are counted, not answers: in whatever form answers come (an
// update, a model, a leaf's sum, a record of the log), the policy limits how often a client counts in a step, over
// steps, and in all. `dispatch` checks the policy first, so that nobody trains in vain. Every answer is checked again.
//
// The counts outlive the ledger's record of a client, so an id that was forgotten and comes back is the same client.
// They take 41 bytes for each numbered client that ever answered, and nothing in a server without limits.
#pragma once

#include <vector>

#include "clients.h"

namespace fastagg::engine {

class Participation {
 public:
  struct Policy {
    int64_t per_step = 0;       // the most answers of a client in a step; 0: no limit
    int64_t separation = 0;     // the least number of steps between two counted answers
    int64_t total = INT64_MAX;  // the most counted answers of a client in all
    bool limits() const { return per_step > 0 || separation > 0 || total < INT64_MAX; }
  };
  Policy policy;

  // Throws Refusal, kTooSoon, if another answer of this client could not count. `step` is the number of steps so far.
  // `version` is the model's version, which also grows at the end of a round without a step.
  void check(const ClientId& id, int64_t step, int64_t version) const;
  // Returns the client's place in the counts, and adds a new client. May allocate, so call it before anything changes.
  int64_t place_for(const ClientId& id);
  // Counts an answer.
  void count(int64_t place, int64_t step, int64_t version) noexcept {
    ParticipationEntry& entry = entries_[static_cast<size_t>(place)];
    entry.in_step = entry.version == version ? entry.in_step + 1 : 1;
    entry.step = step, entry.version = version;
    ++entry.times;
  }

  struct State {
    std::vector<ClientId> clients;
    std::vector<int64_t> step, version, in_step, times;
  };
  State state() const;
  // Loads a state of a server with these numbers of steps and versions. Returns false if the state is not valid.
  bool load(const State& state, int64_t steps, int64_t now);
  int64_t nbytes() const {
    return clients_.nbytes() + static_cast<int64_t>(entries_.size() * sizeof(ParticipationEntry));
  }

 private:
  struct ParticipationEntry {
    int64_t step = 0, version = -1;  // at the client's last counted answer
    int64_t in_step = 0, times = 0;  // the number of counted answers in `version`, and in all
  };
  Clients clients_;
  std::vector<ParticipationEntry> entries_;  // by place
};

}  // namespace fastagg::engine
