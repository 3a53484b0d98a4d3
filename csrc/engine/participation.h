// How often, and when last, each client's answers have counted. It outlives the ledger's record of a client, so an id
// that was forgotten and comes back is the same client. 25 bytes for each client with a number that ever answered.
#pragma once

#include <vector>

#include "clients.h"

namespace fastagg::engine {

class Participation {
 public:
  // Throws Refusal, kTooSoon: an answer could count less than `separation` steps after the last one, or be one more
  // than `most`.
  void check(const ClientId& id, int64_t step, int64_t separation, int64_t most) const;
  // Where a client is counted. It may allocate, so it comes before anything changes.
  int64_t place_for(const ClientId& id);
  // An answer counts for this step.
  void count(int64_t place, int64_t step) noexcept {
    ++entries_[static_cast<size_t>(place)].times;
    entries_[static_cast<size_t>(place)].last = step;
  }

  struct State {
    std::vector<ClientId> clients;
    std::vector<int64_t> last, times;
  };
  State state() const;
  bool load(const State& state, int64_t steps);  // into a new one. False: it is no state
  int64_t nbytes() const { return clients_.nbytes() + static_cast<int64_t>(entries_.size() * sizeof(Entry)); }

 private:
  struct Entry {
    int64_t last = 0, times = 0;  // no times: it has never taken part
  };
  Clients clients_;
  std::vector<Entry> entries_;  // by place
};

}  // namespace fastagg::engine
