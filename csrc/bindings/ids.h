// Ids of clients: Python's numbers and texts as values of the engine, and back.
#pragma once

#include <optional>

#include "../client_id.h"
#include "python.h"

namespace fastagg::bindings {

namespace py = pybind11;

// Throws Refusal, kUnknownClient, for what is no id.
ClientId id_of(py::handle client);
// As Python's own number or text.
py::object to_python(const ClientId& id);
// The id in its stored form: `given` itself, if it is a plain number or text.
py::object plain(py::handle client, const ClientId& id);

// A version that an answer states; None is the last one. Throws Refusal, kUnknownVersion, for what is no number.
int64_t version_of(py::handle version, const ClientId& client);

// A task's id; none: 0. A number that no task can have: -1. An offset in a log; none: -1. Throw Refusal, kSetting.
int64_t task_id_of(pybind11::handle task);
int64_t offset_of(pybind11::handle offset);
// The number of an incarnation, if one is given. Throws Refusal, kSetting.
std::optional<uint64_t> incarnation_of(py::handle incarnation);

}  // namespace fastagg::bindings
