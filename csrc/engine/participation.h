// Limits how often a client's answers count: in one step, over several steps, and in total. The limits hold for answers
// in every form (an update, a model, a leaf server's sum, a record of the log). `dispatch` checks the limits first, so
// that no client trains in vain. Every answer is checked again.
//
// The counts stay when a server forgets a client. If the id comes again, the id's counts continue. The counts take 45
// to 50 bytes for each answering client whose id is a number, and nothing in a server without limits.
#pragma once

#include <vector>

#include "clients.h"

namespace fastagg::engine {

class Participation {
 public:
  struct Policy {
    int64_t per_step = 0;       // the most counted answers of a client in a step; 0: no limit
    int64_t separation = 0;     // the least difference between the steps of a client's counted answers; 0: no limit
    int64_t total = INT64_MAX;  // the most counted answers of a client in all; INT64_MAX: no limit
    bool limits() const { return per_step > 0 || separation > 0 || total < INT64_MAX; }
  };
  Policy policy;

  // Throws Refusal, kTooSoon, if an answer of this client could not count now. `step`: the number of steps so far.
  // `version`: the model's version, which also grows at the end of a round without a step.
  void check(const ClientId& id, int64_t step, int64_t version) const;
  // Returns the client's place in the counts, and adds a client that is new. May allocate, so the caller calls this
  // before anything changes.
  int64_t place_for(const ClientId& id);
  // Counts an answer. `step` and `version` are as for `check`.
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
  // Loads a state of a server with `steps` steps and version `now`. Returns false if the state is invalid.
  bool load(const State& state, int64_t steps, int64_t now);
  int64_t nbytes() const {
    return clients_.nbytes() + static_cast<int64_t>(entries_.size() * sizeof(ParticipationEntry));
  }

 private:
  struct ParticipationEntry {
    int64_t step = 0, version = -1;  // the number of steps so far, and the version, at the last counted answer
    int64_t in_step = 0, times = 0;  // how many answers counted in `version`, and in all
  };
  Clients clients_;
  std::vector<ParticipationEntry> entries_;  // by the client's place in `clients_`
};

}  // namespace fastagg::engine
