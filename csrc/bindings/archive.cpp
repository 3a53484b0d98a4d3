#include "archive.h"

#include <algorithm>

#include "../cpu/cpu.h"
#include "arrays.h"
#include "extension.h"
#include "ids.h"

namespace fastagg::bindings {
namespace {

using engine::Archive;

// Saves a state's fields to a dict, or loads the fields from a dict if `loading` is true.
class DictArchive : public Archive {
 public:
  DictArchive(py::dict saved, bool loading) : Archive(loading), state(std::move(saved)) {}
  py::dict state;

  bool has(const char* name) const override { return !loads || !state.attr("get")(name).is_none(); }
  void field(const char* name, int64_t& value) override { plain(name, value); }
  void field(const char* name, double& value) override { plain(name, value); }
  void field(const char* name, std::vector<int64_t>& values) override { column_of(name, values); }
  void field(const char* name, std::vector<float>& values) override { column_of(name, values); }
  void column(const char* name, std::vector<int64_t>& values) override {
    if (loads) {
      values = vector_from<int64_t>(state[name]);
    } else {
      state[name] = array_of(values);
    }
  }
  void list(const char* name, std::vector<int64_t>& values) override { plain(name, values); }
  void list(const char* name, std::vector<std::pair<int64_t, int64_t>>& values) override { plain(name, values); }
  void list(const char* name, std::vector<Entry>& values) override { plain(name, values); }
  void clients(const char* name, std::vector<ClientId>& ids, bool numbered) override {
    if (loads) {
      for (const py::handle id : py::list(state[name])) ids.push_back(id_of(id));
      return;
    }
    py::list all;
    std::vector<int64_t> numbers;
    for (const ClientId& id : ids) numbered ? numbers.push_back(id.number) : all.append(to_python(id));
    state[name] = numbered ? py::object(array_of(numbers)) : all;
  }
  void group(const char* name, const std::function<void(Archive&)>& fields) override {
    DictArchive inner(loads ? py::dict(state[name]) : py::dict(), loads);
    fields(inner);
    if (!loads) state[name] = inner.state;
  }

  bool vector(const char* name, const store::Vector& vector, int64_t size, bool there) override {
    if (!loads) {
      state[name] = there ? tensor_of(vector, size) : py::none();
      return there;
    }
    const py::object value = state[name];
    if (value.is_none()) return false;
    if (vector) tensor_of(vector, size).attr("copy_")(value);  // nothing is loaded into an empty vector
    return true;
  }
  void vectors(const char* name, std::vector<std::pair<int64_t, store::Vector>>& all, int64_t size) override {
    if (loads) {
      for (const auto& [number, tensor] : py::dict(state[name]))
        all.emplace_back(py::cast<int64_t>(number), vector_of(py::reinterpret_borrow<py::object>(tensor)));
      return;
    }
    py::dict tensors;
    for (const auto& [number, data] : all) tensors[py::int_(number)] = tensor_of(data, size);
    state[name] = tensors;
  }
  void held(const char* name, std::vector<engine::HeldUpdate>& updates) override {
    if (loads) return load_held(name, updates);
    py::list all;
    for (const engine::HeldUpdate& held : updates) {
      py::dict entry;
      entry["by"] = held.by, entry["update"] = tensors_in(held.owner, held.update, true);
      all.append(entry);
    }
    state[name] = all;
  }
  void rows(const char* name, std::vector<double>& values, int64_t width) override {
    if (loads) {
      if (has(name)) values = vector_from<double>(state[name].attr("cpu")().attr("numpy")().attr("reshape")(-1));
    } else if (values.empty()) {
      state[name] = py::none();
    } else {
      state[name] = array_of(values).attr("reshape")(-1, width);
    }
  }

 private:
  template <typename T>
  void plain(const char* name, T& value) {
    if (loads) {
      value = py::cast<T>(state[name]);
    } else {
      state[name] = value;
    }
  }
  template <typename T>
  void column_of(const char* name, std::vector<T>& values) {
    if (!loads) {
      state[name] = array_of(values);
      return;
    }
    std::vector<T> numbers = vector_from<T>(state[name]);
    if (numbers.size() != values.size()) throw std::invalid_argument("a column's length");
    values = std::move(numbers);
  }
  void load_held(const char* name, std::vector<engine::HeldUpdate>& updates) {
    const py::object pieces = py::module_::import("fastagg.storage.pieces").attr("stored_pieces");
    for (const py::handle saved_entry : py::list(state[name])) {
      const auto entry = py::reinterpret_borrow<py::dict>(saved_entry);
      engine::HeldUpdate& held = updates.emplace_back();
      const py::object read = pieces(entry["update"]);
      const Update theirs = update_of(py::object(read.attr("native")));
      held.by = py::cast<float>(entry["by"]);
      if (store::is_encoded(theirs)) {
        held.update = theirs;
        held.owner = std::const_pointer_cast<store::Encoded>(store::encoded_in(theirs));
        continue;
      }
      held.owner = store::new_memory(theirs.size * 4 + static_cast<int64_t>(theirs.pieces.size()) * 4);
      const auto* at = static_cast<const char*>(held.owner.get());
      for (const Piece& piece : theirs.pieces) {
        held.update.add(at, piece.size, piece.dtype);
        at += (piece.size * (piece.dtype == kFloat32 ? 4 : 2) + 3) / 4 * 4;
      }
      cpu::copy(theirs, held.update);
    }
  }
};

}  // namespace

py::dict saved(const std::function<void(Archive&)>& fields) {
  DictArchive archive({}, false);
  fields(archive);
  return archive.state;
}

void load(const py::dict& state, const std::function<void(Archive&)>& fields) {
  DictArchive archive(state, true);
  fields(archive);
}

}  // namespace fastagg::bindings
