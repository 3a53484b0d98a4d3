// Torch's tensors without torch's headers: DLPack's table of C functions (its version 1.3), which torch has had since
// about 2.10. With an older torch, vectors are made through a capsule, and only Python reads updates.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

namespace fastagg::memory {

namespace py = pybind11;

// A vector [d] of Python's, and where it lies.
struct Vector {
  py::object owner = py::none();
  float* data = nullptr;

  explicit operator bool() const { return data != nullptr; }
};

// What torch is, told once at import: its tensor's class, `__dlpack_c_exchange_api__` of it or None, and
// torch.utils.dlpack.from_dlpack; and NumPy's class.
void use_torch(py::type tensor, py::object exchange, py::function from_dlpack, py::type ndarray);

// A 1-D tensor on the host of elements that nobody has written to. `keep`: its memory is kept for reuse when the last
// view of it is gone. Throws std::bad_alloc.
py::object new_bytes(int64_t count, bool keep);
Vector new_vector(int64_t count);

// Arrays of Python's, held for as long as somebody reads their elements.
class Arrays {
 public:
  Arrays() = default;
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;
  ~Arrays();

  // Where the elements of an array lie, if it is what most updates are made of: of torch's own class or NumPy's, fp32
  // of this shape on the host, one after the other. Null for everything else, whatever it may be.
  const float* add(py::handle given, const int64_t* shape, int32_t dims);
  // What keeps the elements where they are.
  py::object owner() const;

 private:
  std::vector<py::object> held_;
  std::vector<Py_buffer> views_;
};

}  // namespace fastagg::memory
