// The engine's only way into Python: rules that are written in Python, and state that Python keeps.
//
// The object has these methods (fastagg/server/extension.py). Each may raise, and then nothing has changed:
//
//     prepare(question)             Findings, or None
//     weight(delay)                 the weight of an update, or None to drop the update
//     rate(lr, delays)              the learning rate of a step that uses updates with these delays
//     step(direction, model, lr, round)  (the new model, moves)
//     statistics(sent, shares, outcome)  the model's new statistics, for its attribute `held`; None: unchanged
//     bounds(model, moments)        bounds of elements: (of the model, of first moments, of second moments)
//
// Moves are [(object, name of a SwapCell, value)] or [(vector of int64, index, number)]. All values are made in
// advance, so the commit only exchanges pointers and numbers, without Python.
#pragma once

#include "../engine/extension.h"
#include "python.h"

namespace fastagg::bindings {

namespace py = pybind11;

// Returns the moments of an optimizer by name, as tensors.
py::dict moments_of(const engine::OptimizerState& optimizer);

// `size`: the number of elements of the model's vector.
std::shared_ptr<engine::Extension> extension_of(py::object object, const engine::Extension::Callbacks& asks,
                                                int64_t size);
// Returns the Python object that the extension was made with.
py::handle python_of(const engine::Extension& extension);
// Returns the update of Python's pieces (address, elements, type). The caller must keep the pieces' memory alive.
Update update_of(const py::handle& pieces);

void bind_extension(py::module_& m);

}  // namespace fastagg::bindings
