// Converts ids of clients between Python's numbers and texts and the engine's values.
#pragma once

#include <optional>

#include "../client_id.h"
#include "python.h"

namespace fastagg::bindings {

namespace py = pybind11;

// Throws Refusal, kUnknownClient, if it is not an id.
ClientId id_of(py::handle client);
// Returns Python's own number or text.
py::object to_python(const ClientId& id);
// The id in its stored form: `client` itself, if it is a plain number or text.
py::object plain(py::handle client, const ClientId& id);

// The version that an answer states; None: the last one. Throws Refusal, kUnknownVersion, if it is not a number.
int64_t version_of(py::handle version, const ClientId& client);

// A task's id, 0 for None, or -1 for a number that no task can have. An offset in a log, -1 for None. Both throw
// Refusal, kSetting.
int64_t task_id_of(pybind11::handle task);
int64_t offset_of(pybind11::handle offset);
// The number of an incarnation, if it is stated. Throws Refusal, kSetting.
std::optional<uint64_t> incarnation_of(py::handle incarnation);

}  // namespace fastagg::bindings
