// Who may take part in a step, and how often. It holds for clients, not for answers: whatever road an answer takes (an
// update, a model, a leaf's sum, a record of the log), its client counts at most as often as the policy says, in a
// step, over steps, and in all. `dispatch` asks it first, so that nobody trains in vain; every answer asks it again.
//
// It outlives the ledger's record of a client, so an id that was forgotten and comes back is the same client. 41 bytes
// for each client with a number that ever answered; a server without limits has none.
#pragma once

#include <vector>

#include "clients.h"

namespace fastagg::engine {

class Participation {
 public:
  struct Policy {
    int64_t per_step = 0;       // how many answers of a client may count in a step; 0: any number
    int64_t separation = 0;     // steps from one that counts to the next one, at least
    int64_t total = INT64_MAX;  // how many may count in all
    bool limits() const { return per_step > 0 || separation > 0 || total < INT64_MAX; }
  };
  Policy policy;

  // Throws Refusal, kTooSoon: another answer of this client could not count. `step` is the number of steps so far,
  // `version` the model's, which also moves on at the end of a round without a step.
  void check(const ClientId& id, int64_t step, int64_t version) const;
  // The client's place in the counts, added if it is new. It may allocate, so call it before anything changes.
  int64_t place_for(const ClientId& id);
  // An answer counts.
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
  // Loads a state into a new one, of a server that has come to this step and version. False: it is no state.
  bool load(const State& state, int64_t steps, int64_t now);
  int64_t nbytes() const {
    return clients_.nbytes() + static_cast<int64_t>(entries_.size() * sizeof(ParticipationEntry));
  }

 private:
  struct ParticipationEntry {
    int64_t step = 0, version = -1;  // in which its last answer counted
    int64_t in_step = 0, times = 0;  // how many counted there, and in all
  };
  Clients clients_;
  std::vector<ParticipationEntry> entries_;  // by place
};

}  // namespace fastagg::engine
