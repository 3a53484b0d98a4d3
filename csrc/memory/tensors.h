// Torch's tensors without torch's headers: DLPack's table of C functions (its version 1.3), which torch has had since
// about 2.10. With an older torch, vectors are made through a capsule, and only Python reads updates.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace fastagg::memory {

namespace py = pybind11;

// A vector [d] of Python's, and where it lies.
struct Vector {
  py::object owner = py::none();
  float* data = nullptr;

  explicit operator bool() const { return data != nullptr; }
};

// What torch is, told once at import: its tensor's class, `__dlpack_c_exchange_api__` of it or None, and
// torch.utils.dlpack.from_dlpack.
void use_torch(py::type tensor, py::object exchange, py::function from_dlpack);

// A 1-D tensor on the host of elements that nobody has written to. `keep`: its memory is kept for reuse when the last
// view of it is gone. Throws std::bad_alloc.
py::object new_bytes(int64_t count, bool keep);
Vector new_vector(int64_t count);

// Where the elements of a tensor lie, if it is what most updates are: of torch's own class, fp32 [size] on the host,
// one after the other. False for everything else, whatever it may be.
bool plain_vector(py::handle given, int64_t size, const float** data);

}  // namespace fastagg::memory
