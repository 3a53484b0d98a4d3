// States as plain Python data: numbers, lists, NumPy's columns, and torch's vectors.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>

#include "../engine/archive.h"
#include "../engine/ledger.h"

namespace fastagg::bindings {

namespace py = pybind11;

// The fields of a state as a dict, and back. Loading throws std::invalid_argument, or what Python raises for data of
// another kind.
py::dict saved(const std::function<void(engine::Archive&)>& fields);
void load(const py::dict& state, const std::function<void(engine::Archive&)>& fields);

// A ledger. Kept vectors have `size` elements, unless Python owns them; loaded ones are tensors of the server's own.
py::dict saved(const engine::Ledger::State& state, bool numbered, int64_t size);
engine::Ledger::State ledger_state_of(const py::dict& state);

}  // namespace fastagg::bindings
