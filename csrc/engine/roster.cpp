#include "roster.h"

#include "../refusal.h"

namespace fastagg::engine {
namespace {

// With at least kManyPlaces places, memory is freed when at most one place in kFewUsed is used. Freeing is slow.
constexpr size_t kManyPlaces = 4096, kFewUsed = 8;

}  // namespace

int64_t Roster::place_for(const ClientId& id) {
  const int64_t existing = clients.find(id);
  if (existing >= 0) return existing;
  const auto places = static_cast<size_t>(tasks.places());
  tasks.reserve_place();
  if (!steps_.empty() && steps_.capacity() == places) steps_.reserve(2 * places + 16);
  if (!ends_.empty() && ends_.capacity() == places) ends_.reserve(2 * places + 16);
  const int64_t place = clients.add(id);
  if (place < tasks.places()) return place;
  tasks.add_place();
  if (!steps_.empty()) steps_.push_back(0);
  if (!ends_.empty()) ends_.push_back(0.0);
  return place;
}

std::vector<int64_t> Roster::owed(int64_t place) const {
  std::vector<int64_t> versions;
  tasks.each(place, [&](const OpenTask& task) { versions.push_back(task.version); });
  return versions;
}

void Roster::check_alone(const ClientId& id, int64_t version) const {
  const int64_t place = clients.find(id);
  if (place < 0) return;
  for (const int64_t owed_version : owed(place))
    if (owed_version != version)
      throw Refusal(Why::kTooSoon, "client " + shown(id) + " has not answered its task of version " +
                                       std::to_string(owed_version) +
                                       ", and a private server waits for that; or call "
                                       "server.forget(" +
                                       shown(id) + ")");
}

int32_t Roster::local_steps(const ClientId& id, int32_t usual) const {
  const int64_t place = clients.find(id);
  const int32_t own = place < 0 ? 0 : next_steps(place);
  return own > 0 ? own : usual;
}

void Roster::remove(int64_t place, Leases& leases) noexcept {
  tasks.drop(place);
  tell_next(place, 0);
  --known;
  if (clients.numbered() >= 0) return;
  clients.remove(place);
  shrink(leases);
}

// If few places are used, frees the places of forgotten clients. The other clients then get new places.
void Roster::shrink(Leases& leases) noexcept {
  const auto places = static_cast<size_t>(tasks.places());
  if (places < kManyPlaces || static_cast<size_t>(known) * kFewUsed > places) return;
  try {
    Clients all;
    std::vector<int64_t> records;
    std::vector<int32_t> steps, moved(places, -1);
    std::vector<double> ends;
    for (size_t place = 0; place < places; ++place) {
      const auto at = static_cast<int64_t>(place);
      if (tasks.record(at) == OpenTasks::kUnknown) continue;
      moved[place] = static_cast<int32_t>(all.add(clients.at(at)));
      records.push_back(tasks.record(at));
      if (!steps_.empty()) steps.push_back(steps_[place]);
      if (!ends_.empty()) ends.push_back(ends_[place]);
    }
    for (auto* const due : {&leases.by_end, &leases.by_version})
      for (Leases::SentTask& due_task : *due) {
        due_task.place = is_there(due_task) ? moved[static_cast<size_t>(due_task.place)] : -1;
        if (due_task.place >= 0) due_task.token = all.token(due_task.place);
      }
    tasks.swap_places(records);
    steps_.swap(steps);
    ends_.swap(ends);
    std::swap(clients, all);
  } catch (const std::bad_alloc&) {  // a later call frees the memory
  }
}

}  // namespace fastagg::engine
