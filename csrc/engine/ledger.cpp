#include "ledger.h"

#include <algorithm>
#include <stdexcept>
#include <unordered_map>

#include "../refusal.h"
#include "archive.h"

namespace fastagg::engine {
namespace {

const std::string kAgain = "drop this answer and dispatch a new task to the client";

[[noreturn]] void refuse(Why why, const ClientId& id, const std::string& text) {
  throw Refusal(why, "client " + shown(id) + text);
}

// Describes how a task of this version ended without a counted answer.
std::string end_of(int64_t version, Ids::EndReason why) {
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

// Explains why the server does not know a client.
std::string gone(const Ids& ids, const ClientId& id) {
  const Ids::EndedTask* const last = ids.last(Clients::mark(id), std::nullopt);
  if (last == nullptr) return " was never sent a model, or was forgotten long ago";
  return " is not known any more: its last task " +
         (last->counted() ? "was answered" : end_of(last->sent(), last->why()));
}

bool is_open(const OpenTasks& tasks, int64_t task) {
  bool is_open = false;
  for (int64_t place = 0; place < tasks.places(); ++place)
    tasks.each(place, [&](const OpenTask& open) { is_open = is_open || open.id == task; });
  return is_open;
}

// Refuses an answer to a task that the answer's client does not have, or no longer has.
[[noreturn]] void refuse_ended(const Ids& ids, const OpenTasks& tasks, const ClientId& id, int64_t task) {
  const Ids::EndedTask* const ended = ids.ended(task);
  const bool is_others =
      ended != nullptr ? ended->client != 0 && ended->client != Clients::mark(id) : is_open(tasks, task);
  if (is_others) refuse(Why::kOtherClient, id, ": this task is another client's; " + kAgain);
  if (ended != nullptr && ended->counted())
    throw Refusal(ended->version(), ended->applied(),
                  "client " + shown(id) + ": its answer to this task was counted already (the server came to version " +
                      std::to_string(ended->version()) + " then); drop this one");
  if (ended != nullptr)
    refuse(Why::kUnknownVersion, id, ": its task " + end_of(ended->sent(), ended->why()) + "; " + kAgain);
  if (ids.knows(task))
    refuse(Why::kAlreadyCounted, id,
           ": it has no such task any more: an answer was counted, or the task was given up, longer ago than the "
           "server remembers; drop this answer");
  refuse(Why::kStaleIncarnation, id,
         ": this server has sent no task with this id: another one has, or it was lost in a restart; " + kAgain);
}

// Checks the limits that must hold before a client gets another task.
void check_limits(const Roster& roster, const Limits& limits, const ClientId& id, int64_t place) {
  const bool is_new = place < 0 || !roster.tasks.is_known(place);
  if (is_new && roster.known >= limits.clients)
    refuse(Why::kBusy, id,
           " is one more than the " + std::to_string(limits.clients) +
               " that the server may know at a time (max_clients)");
  int64_t owes = 0;
  if (!is_new) roster.tasks.each(place, [&](const OpenTask&) { ++owes; });
  if (owes >= limits.open_per_client)
    refuse(
        Why::kBusy, id,
        " has " + std::to_string(owes) + " tasks that it has not answered, and may have no more (max_open_per_client)");
}

}  // namespace

int64_t Ledger::place_of(const ClientId& id) const {
  const int64_t place = roster.clients.find(id);
  if (place < 0 || !roster.tasks.is_known(place))
    refuse(Why::kUnknownClient, id, gone(ids, id) + "; call server.dispatch(" + shown(id) + ") first");
  return place;
}

Ledger::TaskReference Ledger::find(const ClientId& id, int64_t version, int64_t asked) const {
  const OpenTasks& tasks = roster.tasks;
  const int64_t place = asked == kNoTask ? place_of(id) : roster.clients.find(id);
  if (asked != kNoTask) {
    if (place < 0) refuse_ended(ids, tasks, id, asked);
    int64_t its = -1;
    tasks.each(place, [&](const OpenTask& open_task) {
      if (open_task.id == asked) its = open_task.version;
    });
    if (its < 0) refuse_ended(ids, tasks, id, asked);
    if (version != kLastSent && version != its)
      refuse(Why::kUnknownVersion, id,
             ": an update from version " + std::to_string(version) + " came, but this task is of version " +
                 std::to_string(its) + "; leave out version, or give the task's");
    version = its;
  }
  const int64_t wanted = version == kLastSent ? tasks.last_sent(place) : version;
  if (const OpenTask* task = tasks.find(place, wanted)) {
    if (!leases.limits.expires() || !leases.is_over(*task, leases.time(), now))
      return {place, wanted, task->local_steps, task->id};
    refuse(Why::kUnknownVersion, id, ": its task " + end_of(wanted, leases.why_over(wanted, now)) + "; " + kAgain);
  }
  const Ids::EndedTask* const ended = ids.last(Clients::mark(id), wanted);
  if (ended != nullptr && !ended->counted())
    refuse(Why::kUnknownVersion, id, ": its task " + end_of(wanted, ended->why()) + "; " + kAgain);
  const std::vector<int64_t> held = roster.owed(place);
  refuse(Why::kUnknownVersion, id,
         ": an update from version " + std::to_string(wanted) + " came, but " +
             (held.empty() ? "it has answered everything it was sent; " + kAgain
                           : "it owes versions [" + tail_of(held) + "]"));
}

void Ledger::open(int64_t place, int64_t version, int32_t local_steps, const store::Vector& data, double ends,
                  int64_t id) {
  ids.reserve(static_cast<size_t>(roster.tasks.count()));
  if (local_steps != 0) roster.tells_steps();
  roster.tasks.reserve();
  kept.hold(version, data);
  roster.tasks.open(place, version, id, local_steps, ends);
  ids.use(id);
}

int64_t Ledger::next_id(const ClientId& id, int64_t version) const {
  const int64_t place = roster.clients.find(id);
  const OpenTask* const again = place < 0 ? nullptr : roster.tasks.find(place, version);
  return again == nullptr ? ids.next() : again->id;
}

int64_t Ledger::send(const ClientId& id, int64_t version, int32_t local_steps, const store::Vector& data,
                     int64_t task) {
  int64_t place = roster.clients.find(id);
  OpenTask* const again = place < 0 ? nullptr : const_cast<OpenTask*>(roster.tasks.find(place, version));
  if (again == nullptr) check_limits(roster, leases.limits, id, place);
  if (place < 0) place = roster.place_for(id);
  const double ends = leases.time() + leases.limits.lease;
  if (ends < std::numeric_limits<double>::infinity()) roster.tells_ends();
  if (again == nullptr) {
    leases.add({ends, version, roster.clients.token(place), static_cast<int32_t>(place)});
    open(place, version, local_steps, data, ends, task == kNoTask ? ids.next() : task);
  } else {
    again->ends = ends;
    again->local_steps = local_steps;
  }
  roster.known += !roster.tasks.is_known(place);
  roster.tasks.sent(place, version);
  roster.sent_until(place, ends);
  return place;
}

std::optional<Ledger::OverdueTask> Ledger::overdue() {
  const double time = leases.time();
  std::vector<Leases::SentTask>* const list = leases.overdue(time, now);
  if (list == nullptr) return std::nullopt;
  const Leases::SentTask& due_task = list->front();
  OverdueTask overdue{list, {}, due_task.version, false, false, 0.0};
  if (!roster.is_there(due_task)) return overdue;  // the client was forgotten
  const OpenTasks& tasks = roster.tasks;
  const OpenTask* task = tasks.find(due_task.place, due_task.version);
  overdue.ends = task != nullptr && leases.is_over(*task, time, now);
  if (!overdue.ends && list == &leases.by_end)
    overdue.later = std::max(task != nullptr ? task->ends : 0.0, roster.lease_of(due_task.place, due_task.version));
  if (overdue.later <= time) overdue.later = 0.0;
  int64_t others = -static_cast<int64_t>(overdue.ends);
  tasks.each(due_task.place, [&](const OpenTask&) { ++others; });
  overdue.forgets =
      roster.clients.numbered() < 0 && others == 0 && roster.is_last_over(due_task.place, leases, time, now);
  if (overdue.ends || overdue.forgets) overdue.client = roster.clients.at(due_task.place);
  return overdue;
}

void Ledger::pass(const OverdueTask& overdue) noexcept {
  const int64_t place = overdue.list->front().place;
  if (overdue.later > 0.0) return leases.put_off(overdue.later);
  leases.remove_first(*overdue.list);
  if (overdue.ends) end_late(place, overdue.version);
  if (overdue.forgets) roster.remove(place, leases);
}

void Ledger::end_late(int64_t place, int64_t version) noexcept {
  ++leases.expired;
  close(place, version, Ids::unanswered(version, leases.why_over(version, now)));
}

int64_t Ledger::expire_before(int64_t version) {
  int64_t ended = 0;
  for (int64_t place = 0; place < roster.tasks.places(); ++place)
    roster.tasks.each(place, [&](const OpenTask& task) {
      if (task.version >= version) return;
      close(place, task.version, Ids::unanswered(task.version, Ids::kGivenUp));
      ++ended;
    });
  leases.expired += ended;
  return ended;
}

void Ledger::close(int64_t place, int64_t version, int64_t outcome) noexcept {
  const int64_t id = roster.tasks.close(place, version);
  if (id == kNoTask) return;
  Ids::EndedTask end{id, outcome, roster.clients.mark(place)};
  if (end.counted()) end.age = static_cast<uint32_t>(std::min<int64_t>(end.version() - version, UINT32_MAX));
  ids.end(end);
  kept.release(version);
}

void Ledger::forget(const ClientId& id) {
  const int64_t place = place_of(id);
  for (const int64_t version : roster.owed(place)) close(place, version, Ids::unanswered(version, Ids::kGivenUp));
  roster.remove(place, leases);
}

void Ledger::renew() {
  leases.by_end.clear();
  leases.by_version.clear();
  const double ends = leases.time() + leases.limits.lease;
  roster.renew(ends);
  if (!leases.limits.expires()) return;
  std::vector<Leases::SentTask> due;
  for (int64_t place = 0; place < roster.tasks.places(); ++place) {
    const int64_t last = roster.tasks.last_sent(place);
    if (last < 0) continue;
    const int64_t token = roster.clients.token(place);
    due.push_back({ends, last, token, static_cast<int32_t>(place)});
    roster.tasks.each(place, [&](const OpenTask& task) {
      if (task.version != last) due.push_back({ends, task.version, token, static_cast<int32_t>(place)});
    });
  }
  std::stable_sort(due.begin(), due.end(),
                   [](const Leases::SentTask& a, const Leases::SentTask& b) { return a.version < b.version; });
  for (const Leases::SentTask& task : due) leases.add(task);
}

void Incarnations::begin(int64_t version, uint64_t number, int64_t oldest) noexcept {
  while (!all.empty() && all.back().first >= version) all.pop_back();
  if (!all.empty() && all.back().second == number) return;  // the same incarnation continues
  all.emplace_back(version, number);
  while (all.size() > 1 && all[1].first <= oldest) all.erase(all.begin());
}

uint64_t Incarnations::of(int64_t version) const {
  for (size_t i = all.size(); i-- > 0;)
    if (all[i].first <= version) return all[i].second;
  return 0;
}

void Ledger::begin_incarnation(int64_t version, uint64_t number) {
  incarnations.all.reserve(incarnations.all.size() + 1);  // comes before all changes, because it may fail
  ids.begin(number);
  int64_t oldest = std::min(version, now);  // clients may still be sent the current version
  for (int64_t place = 0; place < roster.tasks.places(); ++place)
    roster.tasks.each(place, [&](const OpenTask& task) { oldest = std::min(oldest, task.version); });
  incarnations.begin(version, number, oldest);
}

void Ledger::State::fields(Archive& archive, bool numbered, int64_t size) {
  archive.field("version", version);
  archive.field("steps", steps);
  archive.clients("clients", clients, numbered);
  archive.column("last_sent", last_sent);
  archive.column("next_steps", next_steps);
  archive.column("task_client", task_client);
  archive.column("task_version", task_version);
  archive.column("task_steps", task_steps);
  archive.vectors("versions", versions, size);
  archive.group("ids", [this](Archive& of) {
    of.column("open", task_id);
    of.column("firsts", ids.firsts);
    of.column("nexts", ids.nexts);
    of.column("ended", ids.ended);
    of.column("outcomes", ids.outcomes);
  });
  archive.field("offset", offset);
  if (archive.loads ? archive.has("participation") : !participation.clients.empty())
    archive.group("participation", [this](Archive& of) {
      of.clients("clients", participation.clients, false);
      of.column("step", participation.step);
      of.column("version", participation.version);
      of.column("in_step", participation.in_step);
      of.column("times", participation.times);
    });
}

Ledger::State Ledger::state() const {
  State state;
  state.version = now;
  state.steps = steps;
  for (int64_t place = 0; place < roster.tasks.places(); ++place) {
    const int64_t last = roster.tasks.last_sent(place);
    if (last < 0) continue;
    const auto row = static_cast<int64_t>(state.clients.size());
    state.clients.push_back(roster.clients.at(place));
    state.last_sent.push_back(last);
    state.next_steps.push_back(roster.next_steps(place));
    roster.tasks.each(place, [&](const OpenTask& task) {
      state.task_client.push_back(row);
      state.task_version.push_back(task.version);
      state.task_steps.push_back(task.local_steps);
      state.task_id.push_back(task.id);
    });
  }
  state.versions = kept.all();
  state.ids = ids.state();
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
  require(ids.load(state.ids), "ids of tasks");
  require(participation.load(state.participation, state.steps, state.version), "participations");
  require(state.offset >= -1, "an offset below zero");
  offset = state.offset;
  std::unordered_map<int64_t, store::Vector> versions(state.versions.begin(), state.versions.end());
  std::vector<int64_t> places;
  for (size_t i = 0; i < clients; ++i) {
    const int64_t last = state.last_sent[i], next = state.next_steps[i], place = roster.place_for(state.clients[i]);
    require(!roster.tasks.is_known(place) && last >= 0 && last <= now,
            "a client twice, or one that was never sent a model");
    require(next >= 0 && next <= INT32_MAX, "local steps out of range");
    roster.tasks.sent(place, last);
    if (next != 0) roster.tells_steps();
    roster.tell_next(place, static_cast<int32_t>(next));
    places.push_back(place);
    ++roster.known;
  }
  for (size_t t = tasks; t-- > 0;) {  // in reverse order, because `open` puts a task before the client's other tasks
    const int64_t owner = state.task_client[t], version = state.task_version[t], local_steps = state.task_steps[t];
    require(owner >= 0 && owner < static_cast<int64_t>(clients), "a task of nobody");
    const int64_t place = places[static_cast<size_t>(owner)];
    require(version >= 0 && version <= now && roster.tasks.find(place, version) == nullptr, "a task's version");
    require(local_steps >= 0 && local_steps <= INT32_MAX, "local steps out of range");
    store::Vector data;
    if (kept.keeps) {
      const auto entry = versions.find(version);
      require(entry != versions.end() && entry->second, "a version that is not there");
      data = entry->second;
    }
    const int64_t id = state.task_id.empty() ? ids.next() : state.task_id[t];
    require(id > 0, "an id below one");
    open(place, version, static_cast<int32_t>(local_steps), data, leases.time() + leases.limits.lease, id);
  }
  renew();  // all leases restart, because no client could answer while the server was down
}

int64_t Ledger::nbytes() const {
  return static_cast<int64_t>(roster.nbytes() +
                              (leases.by_end.size() + leases.by_version.size()) * sizeof(Leases::SentTask) +
                              ids.nbytes()) +
         participation.nbytes();
}

}  // namespace fastagg::engine
