// Lets the engine call rules that are written in Python, and change state that Python keeps.
//
// The rules are methods of fastagg.server.extension.Extension. Their results (engine/extension.h has the arguments):
//
//     prepare(question)             Findings, or None
//     weight(delay)                 the weight of an update, or None to drop the update
//     rate(lr, delays)              the learning rate of a step that uses updates with these delays
//     step(direction, model, lr, round)  (the new model, moves)
//     statistics(sent, shares, outcome)  the new value of the object's attribute `held` (statistics); None: unchanged
//     bounds(model, moments)        bounds on the magnitudes of the model, of first moments and of second moments
//
// Moves are a list of changes: (object, name of a SwapCell attribute, next value) or (NumPy array of int64, index, next
// number). All values are made in advance, so the commit only exchanges pointers and numbers, without Python. If a
// method raises, nothing has changed.
#pragma once

#include "../engine/extension.h"
#include "python.h"

namespace fastagg::bindings {

namespace py = pybind11;

// Returns the moments of an optimizer by name, as tensors.
py::dict moments_of(const engine::OptimizerState& optimizer);

// Makes an extension that calls the methods of `object`. `size`: the number of elements of the model's vector.
std::shared_ptr<engine::Extension> extension_of(py::object object, const engine::Extension::Callbacks& asks,
                                                int64_t size);
// Returns the Python object that `extension_of` was called with.
py::handle python_of(const engine::Extension& extension);
// Returns an update of these pieces, which are Python tuples (address, number of elements, dtype code). The caller must
// keep the pieces' memory alive.
Update update_of(const py::handle& pieces);

void bind_extension(py::module_& m);

}  // namespace fastagg::bindings
