// Converts ids of clients and tasks, versions, offsets and incarnations from Python to C++, and clients' ids back.
#pragma once

#include <optional>

#include "../client_id.h"
#include "python.h"

namespace fastagg::bindings {

namespace py = pybind11;

// Returns the engine's id for Python's `client`. Throws Refusal, kUnknownClient, if `client` is not an id.
ClientId id_of(py::handle client);
// Returns a client's id as a Python int or str.
py::object to_python(const ClientId& id);
// Returns `client` itself if its class is exactly int or str. Otherwise returns its id as an int or str.
py::object plain(py::handle client, const ClientId& id);

// Returns the version that an answer from `client` states, or kLastSent for None. Throws Refusal, kUnknownVersion, if
// `version` is not an integer.
int64_t version_of(py::handle version, const ClientId& client);

// `task_id_of` returns a task's id: 0 for None, and -1 for an integer that no task can have as its id. `offset_of`
// returns an answer's offset, -1 for None. Both throw Refusal, kSetting, for any other object.
int64_t task_id_of(pybind11::handle task);
int64_t offset_of(pybind11::handle offset);
// Returns the number of an incarnation, or nullopt for None. Throws Refusal, kSetting, for any other object.
std::optional<uint64_t> incarnation_of(py::handle incarnation);

}  // namespace fastagg::bindings
