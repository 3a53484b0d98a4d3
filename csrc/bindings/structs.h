// Converts arguments from Python to C++ structs (plan.h). Wrong arguments throw SettingError or a Python error.
#pragma once

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../math/reduce.h"
#include "../plan.h"
#include "python.h"

namespace fastagg {

using Address = uintptr_t;

// Reports a wrong setting or argument. Python raises the exception as fastagg.errors.ConfigError.
class SettingError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename T = float>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

// Returns the index of a name in a list of types. For an unknown name, throws SettingError with `what` in its text.
template <typename... Each>
int named(const std::string& name, List<Each...>, const char* what) {
  int result = -1, place = 0;
  ((result = name == Each::kName ? place : result, ++place), ...);
  if (result >= 0) return result;
  std::string known;
  ((known += (known.empty() ? "" : ", ") + std::string(Each::kName)), ...);
  throw SettingError(std::string(what) + ": unknown '" + name + "'; known: " + known);
}

// Returns the index of a name in an array of names. Throws SettingError for an unknown name.
template <size_t Count>
int named(const std::string& name, const char* const (&names)[Count], const char* what) {
  const auto* const place = std::find(std::begin(names), std::end(names), name);
  if (place == std::end(names)) throw SettingError(std::string(what) + ": unknown '" + name + "'");
  return static_cast<int>(place - std::begin(names));
}

template <typename... Each>
pybind11::tuple names_of(List<Each...>) {
  return pybind11::make_tuple(Each::kName...);
}

// Sets fields of a struct from a dict. The last arguments are pairs: a name in the dict, and the field that gets the
// name's value. Returns how many of the names are in the dict.
template <typename T>
size_t set_fields(T&, const pybind11::dict&) {
  return 0;
}
template <typename T, typename Of, typename Field, typename... More>
size_t set_fields(T& to, const pybind11::dict& fields, const char* name, Field Of::* field, More... more) {
  const bool there = fields.contains(name);
  if (there) to.*field = fields[name].template cast<Field>();
  return static_cast<size_t>(there) + set_fields(to, fields, more...);
}
template <typename T, typename... Fields>
T made_of(const pybind11::dict& settings, Fields... fields) {
  T made{};
  if (set_fields(made, settings, fields...) != settings.size()) throw pybind11::type_error("a field that is not there");
  return made;
}
// Binds a struct as a Python class. Python calls the class with the fields as keyword arguments.
template <typename T, typename... Fields>
void bind_fields(pybind11::module_& m, const char* name, Fields... fields) {
  pybind11::class_<T>(m, name).def(
      pybind11::init([=](const pybind11::kwargs& settings) { return made_of<T>(settings, fields...); }));
}

int optimizer_named(const std::string& name);                   // returns an index in Optimizers
using Pieces = std::vector<std::tuple<Address, int64_t, int>>;  // address, number of elements, dtype code
void add_piece(Update& update, Address address, int64_t size, int dtype);
Update update_of(const Pieces& pieces);

using Batch = std::pair<int64_t, int64_t>;                       // the numbers of rows and of classes of logits
using Targets = std::tuple<Address, Address, Address, int64_t>;  // the addresses of the teachers' probs, labels and
                                                                 // entropy, and their number of rows

// These functions check arguments for the CPU and for CUDA. They throw SettingError if an argument is wrong.
void check_step(const Update& update, const Direction& direction, const Optimizer& optimizer);
void check_launch(const Update& update);  // checks the update of a CUDA kernel
void check_slot(const Rows& rows, int64_t slot);

void bind_structs(pybind11::module_& m);
void bind_cuda(pybind11::module_& m);
void bind_emulation(pybind11::module_& to);  // tests/emulation, in builds that emulate CUDA

namespace bindings {

void bind_memory(pybind11::module_& m);
void bind_records(pybind11::module_& m);
void bind_extension(pybind11::module_& m);
void bind_directions(pybind11::module_& m);
void bind_log(pybind11::module_& m);
void bind_train(pybind11::module_& m);
void bind_engine(pybind11::module_& m);
void bind_ops(pybind11::module_& m);
void bind_encoding(pybind11::module_& m);

}  // namespace bindings

}  // namespace fastagg
