#include "ledger.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>

#include "../refusal.h"

namespace fastagg::engine {
namespace {

// Memory is given back when so few of so many places are used. It takes a moment.
constexpr size_t kManyPlaces = 4096, kFewUsed = 8;

const std::string kAgain = "drop this answer and dispatch a new task to the client";

[[noreturn]] void refuse(Why why, const ClientId& id, const std::string& text) {
  throw Refusal(why, "client " + shown(id) + text);
}

// How a task of this version ended that no answer was counted for.
std::string end_of(int64_t version, Ids::Why why) {
  const std::string of = why == Ids::kUnknown ? "" : "of version " + std::to_string(version) + " ";
  if (why == Ids::kLease) return of + "has expired: it took longer than the server waits (lease)";
  if (why == Ids::kDelay) return of + "has expired: the server has made too many versions since (max_delay)";
  return of + "was forgotten, or has expired (forget, expire; or lease, max_delay before a restart)";
}

std::string tail_of(std::vector<int64_t> versions) {
  constexpr size_t kShown = 8;
  std::sort(versions.begin(), versions.end());
  std::string text = versions.size() > kShown ? "..., " : "";
  for (size_t i = versions.size() > kShown ? versions.size() - kShown : 0; i < versions.size(); ++i)
    text += std::to_string(versions[i]) + (i + 1 < versions.size() ? ", " : "");
  return text;
}

}  // namespace

void Ledger::check(const ClientId& id) const {
  if (numbered_ >= 0 && (id.kind != ClientId::kNumber || id.number < 0 || id.number >= numbered_))
    refuse(Why::kUnknownClient, id, ": expected 0.." + std::to_string(numbered_ - 1) + " (num_clients)");
}

void Ledger::check_alone(const ClientId& id, int64_t version) const {
  const int64_t place = place_of(id);
  if (place < 0) return;
  for (const OpenTask& one : tasks_.of(place))
    if (one.version != version)
      refuse(Why::kTooSoon, id,
             " has not answered its task of version " + std::to_string(one.version) +
                 ", and a private server waits for that; or call server.forget(" + shown(id) + ")");
}

int64_t Ledger::place_of(const ClientId& id) const {
  if (numbered_ >= 0) {
    check(id);
    return id.number;
  }
  return clients_.find(id);
}

int64_t Ledger::place_for(const ClientId& id) {
  const int64_t found = place_of(id);
  if (found >= 0) return found;
  // Reserved now, so that forgetting cannot fail.
  const auto places = static_cast<size_t>(tasks_.places());
  if (free_records_.capacity() <= places) free_records_.reserve(2 * places + 16);
  if (!free_records_.empty()) {
    const int64_t place = clients_.add(id, free_records_.back());
    free_records_.pop_back();
    return place;
  }
  tasks_.reserve_place();
  if (!next_steps_.empty() && next_steps_.capacity() == places) next_steps_.reserve(2 * places + 16);
  const int64_t place = clients_.add(id, -1);
  tasks_.add_place();
  if (!next_steps_.empty()) next_steps_.push_back(0);
  return place;
}

int64_t Ledger::known_place(const ClientId& id) const {
  const int64_t place = place_of(id);
  if (place < 0 || !tasks_.is_known(place))
    refuse(Why::kUnknownClient, id, gone(id) + "; call server.dispatch(" + shown(id) + ") first");
  return place;
}

// What has happened to a client that the server does not know.
std::string Ledger::gone(const ClientId& id) const {
  const Ids::Ended* const last = ids_.last(Clients::mark(id), std::nullopt);
  if (last == nullptr) return " was never sent a model, or was forgotten long ago";
  return " is not known any more: its last task " +
         (last->counted() ? "was answered" : end_of(last->sent(), last->why()));
}

// Refuses an answer to a task that its client does not have any more.
void Ledger::refuse_ended(const ClientId& id, int64_t task) const {
  const Ids::Ended* const ended = ids_.ended(task);
  if (ended != nullptr && ended->counted())
    throw Refusal(ended->version(), ended->applied(),
                  "client " + shown(id) + ": its answer to this task was counted already (the server came to version " +
                      std::to_string(ended->version()) + " then); drop this one");
  if (ended != nullptr)
    refuse(Why::kUnknownVersion, id, ": its task " + end_of(ended->sent(), ended->why()) + "; " + kAgain);
  if (ids_.knows(task))
    refuse(Why::kAlreadyCounted, id,
           ": it has no such task any more: an answer was counted, or the task was given up, longer ago than the "
           "server remembers; drop this answer");
  refuse(Why::kStaleIncarnation, id,
         ": this server has sent no task with this id: another one has, or it was lost in a restart; " + kAgain);
}

Ledger::Found Ledger::find(const ClientId& id, int64_t version, int64_t asked) const {
  const int64_t place = asked == kNoTask ? known_place(id) : place_of(id);
  if (asked != kNoTask) {
    if (place < 0) refuse_ended(id, asked);
    const auto own = tasks_.of(place);
    auto task = own.begin();
    while (task != own.end() && (*task).id != asked) ++task;
    if (!(task != own.end())) refuse_ended(id, asked);
    const int64_t its = (*task).version;
    if (version != kLast && version != its)
      refuse(Why::kUnknownVersion, id,
             ": an update from version " + std::to_string(version) + " came, but this task is of version " +
                 std::to_string(its) + "; leave out version, or give the task's");
    version = its;
  }
  const int64_t wanted = version == kLast ? tasks_.last_sent(place) : version;
  if (const OpenTask* task = tasks_.find(place, wanted)) {
    if (due_.empty() || !over(*task, clock())) return {place, wanted, task->local_steps, task->id};
    refuse(Why::kUnknownVersion, id, ": its task " + end_of(wanted, why_over(wanted)) + "; " + kAgain);
  }
  const Ids::Ended* const ended = ids_.last(Clients::mark(id), wanted);
  if (ended != nullptr && !ended->counted())
    refuse(Why::kUnknownVersion, id, ": its task " + end_of(wanted, ended->why()) + "; " + kAgain);
  const std::vector<int64_t> held = versions_of(place);
  refuse(Why::kUnknownVersion, id,
         ": an update from version " + std::to_string(wanted) + " came, but " +
             (held.empty() ? "it has answered everything it was sent; " + kAgain
                           : "it owes versions [" + tail_of(held) + "]"));
}

void Ledger::open(int64_t place, int64_t version, int32_t local_steps, const store::Vector& kept, double ends,
                  int64_t id) {
  ids_.reserve(static_cast<size_t>(tasks_.count()));
  if (local_steps != 0) tells_steps();
  tasks_.reserve();
  if (keeps_) kept_.hold(version, kept);
  tasks_.open(place, version, id, local_steps, ends);
  ids_.use(id);
}

int32_t Ledger::local_steps(const ClientId& id, int32_t usual) const {
  const int64_t place = place_of(id);
  const int32_t own = place < 0 || next_steps_.empty() ? 0 : next_steps_[static_cast<size_t>(place)];
  return own > 0 ? own : usual;
}

void Ledger::tell_next_to(const ClientId& id, int32_t local_steps) {
  const int64_t place = known_place(id);
  tells_steps();
  tell_next(place, local_steps);
}

// Checks the limits that must hold before `id` gets another task.
void Ledger::check_limits(const ClientId& id, int64_t place) const {
  const bool is_new = place < 0 || !tasks_.is_known(place);
  if (is_new && known_ >= limits.clients)
    refuse(Why::kBusy, id,
           " is one more than the " + std::to_string(limits.clients) +
               " that the server may know at a time (max_clients)");
  int64_t owes = 0;
  if (!is_new)
    for ([[maybe_unused]] const OpenTask& one : tasks_.of(place)) ++owes;
  if (owes >= limits.open_per_client)
    refuse(
        Why::kBusy, id,
        " has " + std::to_string(owes) + " tasks that it has not answered, and may have no more (max_open_per_client)");
}

int64_t Ledger::next_id(const ClientId& id, int64_t version) const {
  const int64_t place = place_of(id);
  const OpenTask* const again = place < 0 ? nullptr : tasks_.find(place, version);
  return again == nullptr ? ids_.next() : again->id;
}

int64_t Ledger::send(const ClientId& id, int64_t version, int32_t local_steps, const store::Vector& kept,
                     int64_t task) {
  int64_t place = place_of(id);
  OpenTask* again = nullptr;
  if (place >= 0) again = const_cast<OpenTask*>(tasks_.find(place, version));
  if (again == nullptr) check_limits(id, place);
  if (place < 0) place = place_for(id);
  double ends = limits.lease;
  if (limits.expires()) {
    ends += clock();
    due_.push_back({ends, version, token_of(place), static_cast<int32_t>(place)});
  }
  if (again == nullptr) {
    try {
      open(place, version, local_steps, kept, ends, task == kNoTask ? ids_.next() : task);
    } catch (...) {
      if (limits.expires()) due_.pop_back();
      throw;
    }
  } else {
    again->ends = ends;
    again->local_steps = local_steps;
  }
  known_ += !tasks_.is_known(place);
  tasks_.sent(place, version);
  return place;
}

double Ledger::clock() const {
  if (!limits.expires()) return 0.0;  // nothing expires, so no one reads it
  return std::isnan(given_time) ? own_time() : given_time;
}

double Ledger::own_time() const {
  return skew + std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::optional<Ledger::Overdue> Ledger::overdue() const {
  if (due_.empty()) return std::nullopt;
  const Due& one = due_.front();
  const double time = clock();
  if (one.ends > time && one.version >= now - limits.max_delay) return std::nullopt;
  Overdue found{{}, one.version, false, false};
  if (!is_there(one)) return found;  // it was forgotten
  const auto open = std::as_const(tasks_).of(one.place);
  const OpenTask* task = tasks_.find(one.place, one.version);
  found.ends = task != nullptr && over(*task, time);
  const bool others = found.ends ? &*open.begin() != task || task->next >= 0 : !open.empty();
  found.forgets = numbered_ < 0 && !others && tasks_.last_sent(one.place) == one.version;
  if (found.ends || found.forgets) found.client = id_at(one.place);
  return found;
}

void Ledger::pass(const Overdue& one) noexcept {
  const int64_t place = due_.front().place;
  due_.pop_front();
  if (one.ends) close(place, one.version, why_over(one.version)), ++expired_;
  if (one.forgets) drop(place);
}

int64_t Ledger::expire_before(int64_t version) {
  int64_t ended = 0;
  for (int64_t place = 0; place < tasks_.places(); ++place)
    for (auto walk = tasks_.of(place).begin(); walk != tasks_.of(place).end();) {
      const int64_t one = (*walk).version;
      ++walk;  // before its task is closed
      if (one < version) close(place, one), ++ended;
    }
  expired_ += ended;
  return ended;
}

double Ledger::oldest_task() const {
  return due_.empty() ? 0.0 : std::max(0.0, clock() - (due_.front().ends - limits.lease));
}

void Ledger::close(int64_t client, int64_t version, int64_t outcome) noexcept {
  const int64_t id = tasks_.close(client, version);
  if (id == kNoTask) return;
  Ids::Ended end{id, outcome, numbered_ >= 0 ? Clients::mark(ClientId::of(client)) : clients_.mark(client)};
  if (end.counted()) end.age = static_cast<uint32_t>(std::min<int64_t>(end.version() - version, UINT32_MAX));
  ids_.end(end);
  if (keeps_) kept_.release(version);
}

void Ledger::forget(const ClientId& id) {
  const int64_t place = known_place(id);
  while (!tasks_.of(place).empty()) close(place, (*tasks_.of(place).begin()).version);
  drop(place);
}

void Ledger::drop(int64_t place) noexcept {
  tasks_.drop(place);
  if (!next_steps_.empty()) next_steps_[static_cast<size_t>(place)] = 0;
  --known_;
  if (numbered_ >= 0) return;
  clients_.remove(place);
  free_records_.push_back(static_cast<int32_t>(place));
  shrink();
}

// Gives the memory of many forgotten clients back: the others get new places.
void Ledger::shrink() noexcept {
  const auto places = static_cast<size_t>(tasks_.places());
  if (places < kManyPlaces || static_cast<size_t>(known_) * kFewUsed > places) return;
  try {
    Clients clients;
    std::vector<int64_t> records;
    std::vector<int32_t> next_steps, moved(places, -1), free;
    for (size_t place = 0; place < places; ++place) {
      const auto at = static_cast<int64_t>(place);
      if (tasks_.record(at) == OpenTasks::kUnknown) continue;
      moved[place] = static_cast<int32_t>(clients.add(clients_.at(at), -1));
      records.push_back(tasks_.record(at));
      if (!next_steps_.empty()) next_steps.push_back(next_steps_[place]);
    }
    free.reserve(records.size() + 1);
    for (Due& one : due_) {
      one.place = is_there(one) ? moved[static_cast<size_t>(one.place)] : -1;
      if (one.place >= 0) one.token = clients.token(one.place);
    }
    tasks_.swap_places(records);
    next_steps_.swap(next_steps);
    free_records_.swap(free);
    std::swap(clients_, clients);
  } catch (const std::bad_alloc&) {  // another time
  }
}

std::vector<int64_t> Ledger::versions_of(int64_t place) const {
  std::vector<int64_t> found;
  for (const OpenTask& one : tasks_.of(place)) found.push_back(one.version);
  return found;
}

bool Ledger::owes(const ClientId& id, int64_t version) const {
  const int64_t place = place_of(id);
  return place >= 0 && tasks_.find(place, version) != nullptr;
}

int64_t Ledger::nbytes() const {
  return static_cast<int64_t>(tasks_.nbytes() + next_steps_.size() * sizeof(int32_t) + due_.size() * sizeof(Due) +
                              ids_.nbytes()) +
         clients_.nbytes() + participation.nbytes();
}

void Ledger::renew() {
  due_.clear();
  if (!limits.expires()) return;
  const double ends = clock() + limits.lease;
  std::vector<Due> due;
  for (int64_t place = 0; place < tasks_.places(); ++place) {
    const int64_t last = tasks_.last_sent(place), token = last < 0 ? 0 : token_of(place);
    if (last < 0) continue;
    due.push_back({ends, last, token, static_cast<int32_t>(place)});
    for (OpenTask& task : tasks_.of(place)) {
      task.ends = ends;
      if (task.version != last) due.push_back({ends, task.version, token, static_cast<int32_t>(place)});
    }
  }
  std::stable_sort(due.begin(), due.end(), [](const Due& a, const Due& b) { return a.version < b.version; });
  due_.assign(due.begin(), due.end());
}

void Ledger::begin_incarnation(int64_t version, uint64_t number) {
  incarnations_.reserve(incarnations_.size() + 1);  // may fail, so it comes first
  ids_.begin(number);
  while (!incarnations_.empty() && incarnations_.back().first >= version) incarnations_.pop_back();
  if (!incarnations_.empty() && incarnations_.back().second == number) return;  // the same one goes on
  incarnations_.emplace_back(version, number);
  int64_t oldest = std::min(version, now);  // the present version is still sent, and belongs to the one before
  for (int64_t place = 0; place < tasks_.places(); ++place)
    for (const OpenTask& one : tasks_.of(place)) oldest = std::min(oldest, one.version);
  while (incarnations_.size() > 1 && incarnations_[1].first <= oldest) incarnations_.erase(incarnations_.begin());
}

uint64_t Ledger::incarnation_of(int64_t version) const {
  for (size_t i = incarnations_.size(); i-- > 0;)
    if (incarnations_[i].first <= version) return incarnations_[i].second;
  return 0;
}

Ledger::State Ledger::state() const {
  State state;
  state.version = now;
  state.steps = steps;
  for (int64_t place = 0; place < tasks_.places(); ++place) {
    const int64_t last = tasks_.last_sent(place);
    if (last < 0) continue;
    const auto row = static_cast<int64_t>(state.clients.size());
    state.clients.push_back(id_at(place));
    state.last_sent.push_back(last);
    state.next_steps.push_back(next_steps_.empty() ? 0 : next_steps_[static_cast<size_t>(place)]);
    for (const OpenTask& task : tasks_.of(place)) {
      state.task_client.push_back(row);
      state.task_version.push_back(task.version);
      state.task_steps.push_back(task.local_steps);
      state.task_id.push_back(task.id);
    }
  }
  state.versions = kept_.all();
  state.ids = ids_.state();
  state.participation = participation.state();
  state.offset = offset;
  return state;
}

void Ledger::load(const State& state) {
  const auto require = [](bool holds, const char* otherwise) {
    if (!holds) throw std::invalid_argument(otherwise);
  };
  require(state.version >= 0 && state.steps >= 0, "a negative version");
  now = state.version;
  steps = state.steps;
  const size_t clients = state.clients.size(), tasks = state.task_client.size();
  require(state.last_sent.size() == clients && state.next_steps.size() == clients,
          "columns of clients of different lengths");
  require(state.task_version.size() == tasks && state.task_steps.size() == tasks,
          "columns of tasks of different lengths");
  require(state.task_id.empty() || state.task_id.size() == tasks, "a column of ids of another length");
  require(ids_.load(state.ids), "ids of tasks");
  require(participation.load(state.participation, state.steps), "participations");
  require(state.offset >= -1, "an offset below zero");
  offset = state.offset;
  std::unordered_map<int64_t, store::Vector> versions(state.versions.begin(), state.versions.end());
  std::vector<int64_t> places;
  for (size_t i = 0; i < clients; ++i) {
    const int64_t last = state.last_sent[i], next = state.next_steps[i], place = place_for(state.clients[i]);
    require(!tasks_.is_known(place) && last >= 0 && last <= now, "a client twice, or one that was never sent a model");
    require(next >= 0 && next <= INT32_MAX, "local steps out of range");
    tasks_.sent(place, last);
    if (next != 0) tells_steps();
    tell_next(place, static_cast<int32_t>(next));
    places.push_back(place);
    ++known_;
  }
  for (size_t t = tasks; t-- > 0;) {  // backwards, because `open` puts each task in front of the others
    const int64_t owner = state.task_client[t], version = state.task_version[t], local_steps = state.task_steps[t];
    require(owner >= 0 && owner < static_cast<int64_t>(clients), "a task of nobody");
    const int64_t place = places[static_cast<size_t>(owner)];
    require(version >= 0 && version <= now && tasks_.find(place, version) == nullptr, "a task's version");
    require(local_steps >= 0 && local_steps <= INT32_MAX, "local steps out of range");
    store::Vector kept;
    if (keeps_) {
      const auto found = versions.find(version);
      require(found != versions.end() && found->second, "a version that is not there");
      kept = found->second;
    }
    const int64_t id = state.task_id.empty() ? ids_.next() : state.task_id[t];
    require(id > 0, "an id below one");
    open(place, version, static_cast<int32_t>(local_steps), kept, clock() + limits.lease, id);
  }
  renew();  // leases begin anew, because no client could answer while the server was down
}

}  // namespace fastagg::engine
