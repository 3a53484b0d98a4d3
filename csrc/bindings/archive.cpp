#include "archive.h"

#include <algorithm>
#include <functional>

#include "../cpu/cpu.h"
#include "arrays.h"
#include "extension.h"
#include "ids.h"

namespace fastagg::bindings {
namespace {

using engine::Archive;
using namespace py::literals;

// The columns of a ledger's state, and those of its ids, by name.
using State = engine::Ledger::State;
using Column = std::vector<int64_t>;
constexpr std::pair<const char*, Column State::*> kColumns[] = {{"last_sent", &State::last_sent},
                                                                {"next_steps", &State::next_steps},
                                                                {"task_client", &State::task_client},
                                                                {"task_version", &State::task_version},
                                                                {"task_steps", &State::task_steps}};
using EndedIds = decltype(State::ids);
constexpr std::pair<const char*, Column EndedIds::*> kIds[] = {{"firsts", &EndedIds::firsts},
                                                               {"nexts", &EndedIds::nexts},
                                                               {"ended", &EndedIds::ended},
                                                               {"outcomes", &EndedIds::outcomes}};

class Saves : public Archive {
 public:
  py::dict state;
  bool loads() const override { return false; }
  bool has(const char*) const override { return true; }
  void field(const char* name, int64_t& value) override { state[name] = value; }
  void field(const char* name, double& value) override { state[name] = value; }
  void field(const char* name, std::vector<int64_t>& values) override { state[name] = array_of(values); }
  void field(const char* name, std::vector<float>& values) override { state[name] = array_of(values); }
  void list(const char* name, std::vector<int64_t>& values) override { state[name] = values; }
  void list(const char* name, std::vector<std::pair<int64_t, int64_t>>& values) override { state[name] = values; }
  void list(const char* name, std::vector<Entry>& values) override {
    py::list all;
    for (const Entry& one : values) all.append(py::make_tuple(one.first, one.second, one.third));
    state[name] = all;
  }
  bool vector(const char* name, const store::Vector& vector, int64_t size, bool there) override {
    state[name] = there ? tensor_of(vector, size) : py::none();
    return there;
  }
  void whole(const char* name, std::vector<int64_t>& values) override {
    state[name] = values.empty() ? py::object(py::none()) : array_of(values);
  }
  void held(const char* name, std::vector<engine::HeldUpdate>& updates, int64_t) override {
    py::list all;
    for (const engine::HeldUpdate& one : updates) {
      py::dict entry;
      entry["by"] = one.by, entry["update"] = tensors_in(one.owner, one.update, true);
      all.append(entry);
    }
    state[name] = all;
  }
  std::vector<double> rows(const char* name, const std::vector<double>& values, int64_t width) override {
    if (values.empty()) {
      state[name] = py::none();
    } else {
      const auto height = static_cast<py::ssize_t>(values.size()) / static_cast<py::ssize_t>(width);
      py::array_t<double> out({height, static_cast<py::ssize_t>(width)});
      std::copy(values.begin(), values.end(), out.mutable_data());
      state[name] = out;
    }
    return values;
  }
};

class Loads : public Archive {
 public:
  explicit Loads(py::dict given) : state(std::move(given)) {}
  py::dict state;
  bool loads() const override { return true; }
  bool has(const char* name) const override { return state.contains(name); }
  void field(const char* name, int64_t& value) override { value = py::cast<int64_t>(state[name]); }
  void field(const char* name, double& value) override { value = py::cast<double>(state[name]); }
  void field(const char* name, std::vector<int64_t>& values) override { column(name, values); }
  void field(const char* name, std::vector<float>& values) override { column(name, values); }
  void list(const char* name, std::vector<int64_t>& values) override {
    values = py::cast<std::vector<int64_t>>(state[name]);
  }
  void list(const char* name, std::vector<std::pair<int64_t, int64_t>>& values) override {
    values = py::cast<std::vector<std::pair<int64_t, int64_t>>>(state[name]);
  }
  void list(const char* name, std::vector<Entry>& values) override {
    values.clear();
    for (const auto& [first, second, third] : py::cast<std::vector<std::tuple<int64_t, int64_t, double>>>(state[name]))
      values.push_back({first, second, third});
  }
  bool vector(const char* name, const store::Vector& to, int64_t size, bool) override {
    const py::object given = state[name];
    if (given.is_none()) return false;
    if (!to) return true;  // a vector that the rest of the state does not ask for
    tensor_of(to, size).attr("copy_")(given);
    return true;
  }
  void whole(const char* name, std::vector<int64_t>& values) override {
    const py::object given = state[name];
    if (!given.is_none()) values = vector_from<int64_t>(given);
  }
  void held(const char* name, std::vector<engine::HeldUpdate>& updates, int64_t) override {
    updates.clear();
    const py::object pieces = py::module_::import("fastagg.storage.pieces").attr("stored_pieces");
    for (const py::handle given : py::list(state[name])) {
      const auto entry = py::reinterpret_borrow<py::dict>(given);
      engine::HeldUpdate& one = updates.emplace_back();
      const py::object read = pieces(entry["update"]);
      const Update theirs = update_of(py::object(read.attr("native")));
      one.by = py::cast<float>(entry["by"]);
      if (store::is_encoded(theirs)) {
        one.update = theirs;
        one.owner = std::const_pointer_cast<store::Encoded>(store::encoded_in(theirs));
        continue;
      }
      one.owner = store::new_memory(theirs.size * 4 + static_cast<int64_t>(theirs.pieces.size()) * 4);
      const auto* at = static_cast<const char*>(one.owner.get());
      for (const Piece& piece : theirs.pieces) {
        one.update.add(at, piece.size, piece.dtype);
        at += (piece.size * (piece.dtype == kFloat32 ? 4 : 2) + 3) / 4 * 4;
      }
      cpu::copy(theirs, one.update);
    }
  }
  std::vector<double> rows(const char* name, const std::vector<double>&, int64_t) override {
    const py::object given = state[name];
    if (given.is_none()) return {};
    return vector_from<double>(given.attr("cpu")().attr("numpy")().attr("reshape")(-1));
  }

 private:
  template <typename T>
  void column(const char* name, std::vector<T>& values) {
    const std::vector<T> given = vector_from<T>(state[name]);
    if (given.size() != values.size()) throw std::invalid_argument("a column's length");
    values = given;
  }
};

}  // namespace

py::dict saved(const std::function<void(Archive&)>& fields) {
  Saves archive;
  fields(archive);
  return archive.state;
}

void load(const py::dict& state, const std::function<void(Archive&)>& fields) {
  Loads archive(state);
  fields(archive);
}

py::dict saved(const engine::Ledger::State& of, bool numbered, int64_t size) {
  py::dict state, versions;
  py::list ids;
  std::vector<int64_t> numbers;
  for (const ClientId& client : of.clients) {
    if (numbered) {
      numbers.push_back(client.number);
    } else {
      ids.append(to_python(client));
    }
  }
  for (const auto& [version, vector] : of.versions) versions[py::int_(version)] = tensor_of(vector, size);
  state["version"] = of.version;
  state["steps"] = of.steps;
  state["clients"] = numbered ? py::object(array_of(numbers)) : py::object(ids);
  for (const auto& [name, column] : kColumns) state[name] = array_of(of.*column);
  state["versions"] = versions;
  py::dict named;
  named["open"] = array_of(of.task_id);
  for (const auto& [name, column] : kIds) named[name] = array_of(of.ids.*column);
  state["ids"] = named;
  state["offset"] = of.offset;
  if (const auto& part = of.participation; !part.clients.empty()) {
    py::list clients;
    for (const ClientId& client : part.clients) clients.append(to_python(client));
    state["participation"] =
        py::dict("clients"_a = clients, "last"_a = array_of(part.last), "times"_a = array_of(part.times));
  }
  return state;
}

engine::Ledger::State ledger_state_of(const py::dict& state) {
  engine::Ledger::State found;
  found.version = py::cast<int64_t>(state["version"]);
  found.steps = py::cast<int64_t>(state["steps"]);
  for (const py::handle id : py::list(state["clients"])) found.clients.push_back(id_of(id));
  for (const auto& [name, column] : kColumns) found.*column = vector_from<int64_t>(state[name]);
  for (const auto& [version, kept] : py::dict(state["versions"]))
    found.versions.emplace_back(py::cast<int64_t>(version), vector_of(py::reinterpret_borrow<py::object>(kept)));
  if (const py::object given = state["ids"]; !given.is_none()) {
    const py::dict ids(given);
    found.task_id = vector_from<int64_t>(ids["open"]);
    for (const auto& [name, column] : kIds) found.ids.*column = vector_from<int64_t>(ids[name]);
  }
  found.offset = py::cast<int64_t>(state["offset"]);
  if (state.contains("participation")) {
    const py::dict part(state["participation"]);
    for (const py::handle id : py::list(part["clients"])) found.participation.clients.push_back(id_of(id));
    found.participation.last = vector_from<int64_t>(part["last"]);
    found.participation.times = vector_from<int64_t>(part["times"]);
  }
  return found;
}

}  // namespace fastagg::bindings
