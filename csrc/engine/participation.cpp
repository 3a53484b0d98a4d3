#include "participation.h"

#include "../refusal.h"

namespace fastagg::engine {

void Participation::check(const ClientId& id, int64_t step, int64_t separation, int64_t most) const {
  const int64_t place = clients_.find(id);
  if (place < 0) return;
  const Entry& one = entries_[static_cast<size_t>(place)];
  if (one.times == 0) return;
  const auto refuse = [&](const std::string& text) { throw Refusal(Why::kTooSoon, "client " + shown(id) + text); };
  if (one.times >= most)
    refuse(" has taken part " + std::to_string(one.times) + " times, and may not again (max_participations)");
  if (step - one.last < separation)
    refuse(" took part in step " + std::to_string(one.last) + ", and may again in step " +
           std::to_string(one.last + separation) + " (min_separation); the next one is step " + std::to_string(step));
}

int64_t Participation::place_for(const ClientId& id) {
  const int64_t found = clients_.find(id);
  if (found >= 0) return found;
  if (entries_.capacity() == entries_.size()) entries_.reserve(2 * entries_.size() + 16);
  const int64_t place = clients_.add(id);
  entries_.emplace_back();
  return place;
}

Participation::State Participation::state() const {
  State state;
  for (size_t place = 0; place < entries_.size(); ++place) {
    if (entries_[place].times == 0) continue;
    state.clients.push_back(clients_.at(static_cast<int64_t>(place)));
    state.last.push_back(entries_[place].last), state.times.push_back(entries_[place].times);
  }
  return state;
}

bool Participation::load(const State& state, int64_t steps) {
  if (state.last.size() != state.clients.size() || state.times.size() != state.clients.size()) return false;
  for (size_t i = 0; i < state.clients.size(); ++i) {
    if (state.times[i] < 1 || state.last[i] < 0 || state.last[i] > steps || clients_.find(state.clients[i]) >= 0)
      return false;
    entries_[static_cast<size_t>(place_for(state.clients[i]))] = {state.last[i], state.times[i]};
  }
  return true;
}

}  // namespace fastagg::engine
