#include "participation.h"

#include "../refusal.h"

namespace fastagg::engine {

void Participation::check(const ClientId& id, int64_t step, int64_t version) const {
  const int64_t place = clients_.find(id);
  if (place < 0) return;
  const ParticipationEntry& entry = entries_[static_cast<size_t>(place)];
  if (entry.times == 0) return;
  const auto refuse = [&](const std::string& text) { throw Refusal(Why::kTooSoon, "client " + shown(id) + text); };
  if (entry.times >= policy.total)
    refuse(" has taken part " + std::to_string(entry.times) + " times, and may not again (max_participations)");
  if (policy.per_step > 0 && entry.version == version && entry.in_step >= policy.per_step)
    refuse(" has taken part in this step; wait for version " + std::to_string(version + 1) + " (answers_per_step)");
  if (step - entry.step < policy.separation)
    refuse(" took part in step " + std::to_string(entry.step) + ", and may again in step " +
           std::to_string(entry.step + policy.separation) + " (min_separation); the next one is step " +
           std::to_string(step));
}

int64_t Participation::place_for(const ClientId& id) {
  const int64_t known = clients_.find(id);
  if (known >= 0) return known;
  if (entries_.capacity() == entries_.size()) entries_.reserve(2 * entries_.size() + 16);
  const int64_t place = clients_.add(id);
  entries_.emplace_back();
  return place;
}

Participation::State Participation::state() const {
  State state;
  for (size_t place = 0; place < entries_.size(); ++place) {
    const ParticipationEntry& entry = entries_[place];
    if (entry.times == 0) continue;
    state.clients.push_back(clients_.at(static_cast<int64_t>(place)));
    state.step.push_back(entry.step), state.version.push_back(entry.version);
    state.in_step.push_back(entry.in_step), state.times.push_back(entry.times);
  }
  return state;
}

bool Participation::load(const State& state, int64_t steps, int64_t now) {
  const size_t count = state.clients.size();
  for (const auto* column : {&state.step, &state.version, &state.in_step, &state.times})
    if (column->size() != count) return false;
  for (size_t i = 0; i < count; ++i) {
    const ParticipationEntry entry{state.step[i], state.version[i], state.in_step[i], state.times[i]};
    const bool fits = entry.step >= 0 && entry.step <= steps && entry.version >= 0 && entry.version <= now &&
                      entry.in_step >= 1 && entry.in_step <= entry.times;
    if (!fits || clients_.find(state.clients[i]) >= 0) return false;
    entries_[static_cast<size_t>(place_for(state.clients[i]))] = entry;
  }
  return true;
}

}  // namespace fastagg::engine
