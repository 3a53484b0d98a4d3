// Converts ids of clients between Python's numbers and texts and the engine's values.
#pragma once

#include <optional>

#include "../client_id.h"
#include "python.h"

namespace fastagg::bindings {

namespace py = pybind11;

// Returns the engine's id for Python's `client`. Throws Refusal, kUnknownClient, if `client` is not an id.
ClientId id_of(py::handle client);
// Returns Python's own number or text.
py::object to_python(const ClientId& id);
// Returns the id in its stored form: `client` itself, if `client` is a plain number or text.
py::object plain(py::handle client, const ClientId& id);

// Returns the version that an answer states, or kLastSent for None. Throws Refusal, kUnknownVersion, if `version` is
// not a number.
int64_t version_of(py::handle version, const ClientId& client);

// Return a task's id (0 for None, -1 for a number that no task can have), and an answer's offset (-1 for None). Both
// throw Refusal, kSetting.
int64_t task_id_of(pybind11::handle task);
int64_t offset_of(pybind11::handle offset);
// Returns the number of an incarnation, or nothing for None. Throws Refusal, kSetting.
std::optional<uint64_t> incarnation_of(py::handle incarnation);

}  // namespace fastagg::bindings
