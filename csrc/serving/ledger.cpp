#include "ledger.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace fastagg::serving {
namespace {

using Numbers = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

std::string shown(py::handle id) {
  PyObject* text = PyObject_ASCII(id.ptr());  // ASCII, so that it can be cut anywhere
  if (text == nullptr) {
    PyErr_Clear();  // an id of a user's class, or a number with thousands of digits
    return std::string("of type ") + Py_TYPE(id.ptr())->tp_name;
  }
  std::string found = py::cast<std::string>(py::reinterpret_steal<py::object>(text));
  if (found.size() > 80) found = found.substr(0, 77) + "...";
  return found;
}

// Reads a whole number of 64 bits. Returns false if the id is not one.
bool whole(py::handle id, int64_t* number, bool* beyond) {
  if (PyFloat_Check(id.ptr())) return false;
  const py::object index = py::reinterpret_steal<py::object>(PyNumber_Index(id.ptr()));
  if (!index) {
    PyErr_Clear();
    return false;
  }
  int overflow = 0;
  *number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow == 0) return true;
  if (overflow > 0) {  // 2^63 and above: some frameworks draw such ids for their nodes
    const unsigned long long large = PyLong_AsUnsignedLongLong(index.ptr());
    if (PyErr_Occurred() == nullptr) {
      *number = static_cast<int64_t>(large);
      *beyond = true;
      return true;
    }
    PyErr_Clear();
  }
  throw UnknownClient("client: expected a whole number of 64 bits, got a larger one");
}

std::string name_of(py::handle id) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(id.ptr(), &size);
  if (text == nullptr) {
    PyErr_Clear();
    throw UnknownClient("client " + shown(id) + ": its id is no valid text");
  }
  return std::string(text, static_cast<size_t>(size));
}

// Numbers of 2^63 and above are stored as names with this first byte. No UTF-8 text contains it, so no name is equal.
constexpr char kLargeNumber = '\xff';

std::string key_of(py::handle id) {
  return PyUnicode_Check(id.ptr()) ? name_of(id) : kLargeNumber + name_of(py::str(id));
}

py::object id_of(const std::string& key) {
  if (key.empty() || key[0] != kLargeNumber) return py::str(key);
  return py::reinterpret_steal<py::object>(PyLong_FromString(key.c_str() + 1, nullptr, 10));
}

Numbers array_of(const std::vector<int64_t>& values) {
  Numbers out(static_cast<py::ssize_t>(values.size()));
  std::copy(values.begin(), values.end(), out.mutable_data());
  return out;
}

std::vector<int64_t> vector_of(const py::object& given) {
  const Numbers array(given);
  return {array.data(), array.data() + array.size()};
}

}  // namespace

py::object Ledger::identify(py::handle id) const {
  if (PyUnicode_Check(id.ptr()) && numbered_ < 0) {
    if (PyUnicode_GET_LENGTH(id.ptr()) > kLongestName)
      throw UnknownClient("client: expected an id of at most " + std::to_string(kLongestName) + " characters, got " +
                          std::to_string(PyUnicode_GET_LENGTH(id.ptr())));
    name_of(id);
    if (PyUnicode_CheckExact(id.ptr())) return py::reinterpret_borrow<py::object>(id);
    return py::reinterpret_steal<py::object>(PyUnicode_FromObject(id.ptr()));  // a plain str, not NumPy's
  }
  int64_t number = 0;
  bool beyond = false;
  if (!whole(id, &number, &beyond))
    throw UnknownClient("client " + shown(id) + ": expected " + (numbered_ < 0 ? "an int or a str" : "a whole number"));
  if (numbered_ >= 0 && (beyond || number < 0 || number >= numbered_))
    throw UnknownClient("client " + shown(id) + ": expected 0.." + std::to_string(numbered_ - 1));
  if (PyLong_CheckExact(id.ptr())) return py::reinterpret_borrow<py::object>(id);
  return beyond ? py::reinterpret_steal<py::object>(PyNumber_Index(id.ptr())) : py::object(py::int_(number));
}

bool Ledger::is_named(py::handle plain) {
  if (PyUnicode_Check(plain.ptr())) return true;
  int overflow = 0;
  PyLong_AsLongLongAndOverflow(plain.ptr(), &overflow);
  return overflow != 0;
}

int64_t Ledger::place_of(py::handle id) const {
  if (numbered_ >= 0) {
    int64_t number = 0;
    if (PyLong_CheckExact(id.ptr())) {
      int overflow = 0;
      number = PyLong_AsLongLongAndOverflow(id.ptr(), &overflow);
      if (overflow == 0 && number >= 0 && number < numbered_) return number;
    }
    return py::cast<int64_t>(identify(id));
  }
  const py::object plain = identify(id);
  if (is_named(plain)) {
    const auto found = names_.find(key_of(plain));
    return found == names_.end() ? -1 : found->second;
  }
  const auto found = numbers_.find(py::cast<int64_t>(plain));
  return found == numbers_.end() ? -1 : found->second;
}

int64_t Ledger::place_for(py::handle id) {
  const int64_t found = place_of(id);
  if (found >= 0) return found;
  int64_t place = static_cast<int64_t>(records_.size());
  // Reserved now, so that forgetting cannot fail.
  if (free_records_.capacity() <= records_.size()) free_records_.reserve(2 * records_.size() + 16);
  if (!free_records_.empty()) {
    place = free_records_.back();
  } else {
    records_.emplace_back();
  }
  const py::object plain = identify(id);
  if (is_named(plain)) {
    names_.emplace(key_of(plain), place);
  } else {
    numbers_.emplace(py::cast<int64_t>(plain), place);
  }
  if (!free_records_.empty()) free_records_.pop_back();
  return place;
}

int64_t Ledger::known_place(py::handle id) const {
  const int64_t place = place_of(id);
  if (place < 0 || records_[static_cast<size_t>(place)].last < 0)
    throw UnknownClient("client " + shown(id) + " was never sent a model");
  return place;
}

const Ledger::Task* Ledger::task_of(const Record& record, int64_t version) const {
  for (int32_t t = record.task; t >= 0; t = tasks_[static_cast<size_t>(t)].next)
    if (tasks_[static_cast<size_t>(t)].version == version) return &tasks_[static_cast<size_t>(t)];
  return nullptr;
}

Ledger::Found Ledger::find(py::handle id, py::handle version) const {
  const int64_t place = known_place(id);
  const Record& record = records_[static_cast<size_t>(place)];
  int64_t wanted = record.last;
  if (!version.is_none()) {
    const py::object index = py::reinterpret_steal<py::object>(PyNumber_Index(version.ptr()));
    if (!index) {
      PyErr_Clear();
      throw UnknownVersion("client " + shown(id) + ": version: expected a whole number, got " + shown(version));
    }
    int overflow = 0;
    wanted = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow != 0) wanted = -1;
  }
  if (const Task* task = task_of(record, wanted)) {
    if (due_.empty() || !over(*task, clock())) return {place, wanted, task->told};
    throw UnknownVersion("client " + shown(id) + ": its task of version " + std::to_string(wanted) +
                         " has expired: it took longer than the server waits");
  }
  std::vector<int64_t> held = owed(id);
  std::sort(held.begin(), held.end());
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = held.size() > kShown ? held.size() - kShown : 0; i < held.size(); ++i)
    text += (text.empty() ? "" : ", ") + std::to_string(held[i]);
  if (held.size() > kShown) text = "..., " + text;
  const std::string asked = version.is_none() ? std::to_string(wanted) : shown(version);
  throw UnknownVersion("client " + shown(id) + ": an update from version " + asked + " came, but " +
                       (held.empty() ? "it has answered everything it was sent" : "it owes versions [" + text + "]"));
}

void Ledger::open(Record& record, int64_t version, int32_t told, const py::object& payload, double ends) {
  if (free_task_ < 0) {
    tasks_.push_back({0, 0, -1, 0.0});
    free_task_ = static_cast<int32_t>(tasks_.size()) - 1;
  }
  if (keeps_) {
    Held& held = held_[version];
    if (held.count == 0) held.payload = payload;
    ++held.count;
  }
  const int32_t place = free_task_;
  Task& task = tasks_[static_cast<size_t>(place)];
  free_task_ = task.next;
  task = {version, told, record.task, ends};
  record.task = place;
  ++open_;
}

int32_t Ledger::told(py::handle id, int32_t usual) const {
  const int64_t place = place_of(id);
  const int32_t said = place < 0 ? 0 : records_[static_cast<size_t>(place)].steps;
  return said > 0 ? said : usual;
}

// Checks the limits that must hold before `id` gets another task.
void Ledger::check_limits(py::handle id, int64_t place) const {
  const bool is_new = place < 0 || records_[static_cast<size_t>(place)].last < 0;
  if (is_new && known_ >= limits.clients)
    throw Busy("client " + shown(id) + " is one more than the " + std::to_string(limits.clients) +
               " that the server may know at a time (max_clients)");
  int64_t owes = 0;
  if (!is_new)
    for (int32_t t = records_[static_cast<size_t>(place)].task; t >= 0; t = tasks_[static_cast<size_t>(t)].next) ++owes;
  if (owes >= limits.open_per_client)
    throw Busy("client " + shown(id) + " has " + std::to_string(owes) +
               " tasks that it has not answered, and may have no more (max_open_per_client)");
}

int64_t Ledger::send(py::handle id, int64_t version, int32_t told, const py::object& payload) {
  int64_t place = place_of(id);
  Task* again = nullptr;
  if (place >= 0) again = const_cast<Task*>(task_of(records_[static_cast<size_t>(place)], version));
  if (again == nullptr) check_limits(id, place);
  if (place < 0) place = place_for(id);
  Record& record = records_[static_cast<size_t>(place)];
  double ends = limits.lease;
  if (limits.expires()) {
    ends += clock();
    due_.push_back({ends, version, place, identify(id)});
  }
  if (again == nullptr) {
    try {
      open(record, version, told, payload, ends);
    } catch (...) {
      if (limits.expires()) due_.pop_back();
      throw;
    }
  } else {
    again->ends = ends;
    again->told = told;
  }
  known_ += record.last < 0;
  record.last = version;
  return place;
}

double Ledger::clock() const {
  if (!limits.expires()) return 0.0;  // nothing expires, so no one reads it
  return std::isnan(given_time) ? own_time() : given_time;
}

double Ledger::own_time() const {
  return skew + std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t Ledger::expire(int64_t most) {
  const int64_t before = expired_;
  if (due_.empty()) return 0;
  const double time = clock();
  for (int64_t looked = 0; looked != most && !due_.empty(); ++looked) {
    const Due one = due_.front();
    if (one.ends > time && one.version >= now - limits.max_delay) break;
    due_.pop_front();
    Record& record = records_[static_cast<size_t>(one.place)];
    if (record.last < 0 || place_of(one.id) != one.place) continue;  // the client was forgotten meanwhile
    if (const Task* task = task_of(record, one.version); task != nullptr && over(*task, time)) {
      if (notes_ended) ended_.emplace_back(one.id, one.version);
      close(one.place, one.version);
      ++expired_;
    }
    if (numbered_ < 0 && record.task < 0 && record.last == one.version) {
      if (notes_ended) ended_.emplace_back(one.id, -1);
      drop(one.id, one.place);
    }
  }
  return expired_ - before;
}

int64_t Ledger::expire_before(int64_t version) {
  int64_t ended = 0;
  for (size_t place = 0; place < records_.size(); ++place) {
    std::vector<int64_t> old;
    for (int32_t t = records_[place].task; t >= 0; t = tasks_[static_cast<size_t>(t)].next)
      if (tasks_[static_cast<size_t>(t)].version < version) old.push_back(tasks_[static_cast<size_t>(t)].version);
    for (const int64_t one : old) close(static_cast<int64_t>(place), one), ++ended;
  }
  expired_ += ended;
  return ended;
}

double Ledger::oldest_task() const {
  return due_.empty() ? 0.0 : std::max(0.0, clock() - (due_.front().ends - limits.lease));
}

void Ledger::close(int64_t client, int64_t version) noexcept {
  int32_t* link = &records_[static_cast<size_t>(client)].task;
  while (*link >= 0 && tasks_[static_cast<size_t>(*link)].version != version)
    link = &tasks_[static_cast<size_t>(*link)].next;
  if (*link < 0) return;
  const int32_t place = *link;
  Task& task = tasks_[static_cast<size_t>(place)];
  *link = task.next;
  task.next = free_task_;
  free_task_ = place;
  --open_;
  if (!keeps_) return;
  const auto held = held_.find(version);
  if (held != held_.end() && --held->second.count == 0) held_.erase(held);
}

void Ledger::forget(py::handle id) {
  const int64_t place = known_place(id);
  Record& record = records_[static_cast<size_t>(place)];
  while (record.task >= 0) close(place, tasks_[static_cast<size_t>(record.task)].version);
  drop(id, place);
}

void Ledger::drop(py::handle id, int64_t place) {
  records_[static_cast<size_t>(place)] = Record{};
  --known_;
  if (numbered_ >= 0) return;
  const py::object plain = identify(id);
  if (is_named(plain)) {
    names_.erase(key_of(plain));
  } else {
    numbers_.erase(py::cast<int64_t>(plain));
  }
  free_records_.push_back(place);
}

std::vector<int64_t> Ledger::owed(py::handle id) const {
  std::vector<int64_t> found;
  const Record& record = records_[static_cast<size_t>(known_place(id))];
  for (int32_t t = record.task; t >= 0; t = tasks_[static_cast<size_t>(t)].next)
    found.push_back(tasks_[static_cast<size_t>(t)].version);
  return found;
}

bool Ledger::owes(py::handle id, int64_t version) const {
  const int64_t place = place_of(id);
  return place >= 0 && task_of(records_[static_cast<size_t>(place)], version) != nullptr;
}

py::object Ledger::payload(int64_t version) const {
  const auto held = held_.find(version);
  return held == held_.end() ? py::none() : held->second.payload;
}

py::list Ledger::payloads() const {
  py::list found;
  for (const auto& [version, held] : held_) found.append(held.payload);
  return found;
}

int64_t Ledger::nbytes() const {
  return static_cast<int64_t>(records_.size() * sizeof(Record) + tasks_.size() * sizeof(Task) +
                              due_.size() * sizeof(Due));
}

std::vector<std::pair<int64_t, py::object>> Ledger::known_clients() const {
  std::vector<std::pair<int64_t, py::object>> known;
  if (numbered_ >= 0) {
    for (size_t i = 0; i < records_.size(); ++i)
      if (records_[i].last >= 0) known.emplace_back(static_cast<int64_t>(i), py::int_(i));
    return known;
  }
  for (const auto& [number, place] : numbers_) known.emplace_back(place, py::int_(number));
  for (const auto& [name, place] : names_) known.emplace_back(place, id_of(name));
  std::sort(known.begin(), known.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return known;
}

void Ledger::renew() {
  due_.clear();
  if (!limits.expires()) return;
  const double ends = clock() + limits.lease;
  std::vector<Due> due;
  for (const auto& [place, id] : known_clients()) {
    const Record& record = records_[static_cast<size_t>(place)];
    due.push_back({ends, record.last, place, id});
    for (int32_t t = record.task; t >= 0; t = tasks_[static_cast<size_t>(t)].next) {
      Task& task = tasks_[static_cast<size_t>(t)];
      task.ends = ends;
      if (task.version != record.last) due.push_back({ends, task.version, place, id});
    }
  }
  std::stable_sort(due.begin(), due.end(), [](const Due& a, const Due& b) { return a.version < b.version; });
  due_.assign(due.begin(), due.end());
}

// The state as columns: one row for each known client, and one for each open task.
py::dict Ledger::state() const {
  std::vector<int64_t> places;
  py::list ids;
  for (const auto& [place, id] : known_clients()) places.push_back(place), ids.append(id);
  std::vector<int64_t> last, next, owner, started, told;
  for (size_t i = 0; i < places.size(); ++i) {
    const Record& record = records_[static_cast<size_t>(places[i])];
    last.push_back(record.last);
    next.push_back(record.steps);
    for (int32_t t = record.task; t >= 0; t = tasks_[static_cast<size_t>(t)].next) {
      const Task& task = tasks_[static_cast<size_t>(t)];
      owner.push_back(static_cast<int64_t>(i)), started.push_back(task.version), told.push_back(task.told);
    }
  }
  py::dict state, versions;
  for (const auto& [number, held] : held_) versions[py::int_(number)] = held.payload;
  state["version"] = now;
  state["steps"] = steps;
  state["clients"] = numbered_ >= 0 ? py::object(array_of(places)) : py::object(ids);
  state["last_sent"] = array_of(last);
  state["next_steps"] = array_of(next);
  state["task_client"] = array_of(owner);
  state["task_version"] = array_of(started);
  state["task_steps"] = array_of(told);
  state["versions"] = versions;
  return state;
}

// Loads a state into a new ledger.
void Ledger::load(const py::dict& state) {
  const auto require = [](bool holds, const char* otherwise) {
    if (!holds) throw std::invalid_argument(otherwise);
  };
  now = py::cast<int64_t>(state["version"]);
  steps = py::cast<int64_t>(state["steps"]);
  require(now >= 0 && steps >= 0, "a negative version");
  const std::vector<int64_t> last = vector_of(state["last_sent"]), next = vector_of(state["next_steps"]);
  const std::vector<int64_t> owner = vector_of(state["task_client"]), started = vector_of(state["task_version"]),
                             told = vector_of(state["task_steps"]);
  const py::list ids = py::list(state["clients"]);
  const py::dict versions = state["versions"];
  require(ids.size() == last.size() && last.size() == next.size(), "columns of clients of different lengths");
  require(owner.size() == started.size() && owner.size() == told.size(), "columns of tasks of different lengths");
  std::vector<int64_t> places;
  for (size_t i = 0; i < last.size(); ++i) {
    const int64_t place = place_for(ids[i]);
    Record& record = records_[static_cast<size_t>(place)];
    require(record.last < 0 && last[i] >= 0 && last[i] <= now, "a client twice, or one that was never sent a model");
    require(next[i] >= 0 && next[i] <= INT32_MAX, "local steps out of range");
    record.last = last[i];
    record.steps = static_cast<int32_t>(next[i]);
    places.push_back(place);
    ++known_;
  }
  for (size_t t = owner.size(); t-- > 0;) {  // backwards, because `open` puts each task in front of the others
    require(owner[t] >= 0 && owner[t] < static_cast<int64_t>(places.size()), "a task of nobody");
    Record& record = records_[static_cast<size_t>(places[static_cast<size_t>(owner[t])])];
    require(started[t] >= 0 && started[t] <= now && task_of(record, started[t]) == nullptr, "a task's version");
    require(told[t] >= 0 && told[t] <= INT32_MAX, "local steps out of range");
    py::object payload = py::none();
    if (keeps_) payload = versions[py::int_(started[t])];
    open(record, started[t], static_cast<int32_t>(told[t]), payload, clock() + limits.lease);
  }
  renew();  // leases begin anew, because no client could answer while the server was down
}

}  // namespace fastagg::serving
