// Uses torch's tensors without torch's headers, through DLPack's table of C functions (version 1.3). Torch has this
// table since about 2.10. With an older torch, vectors are made through a capsule, and only Python reads updates.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

namespace fastagg::memory {

namespace py = pybind11;

// A Python tensor [d] and the address of its elements.
struct Vector {
  py::object owner = py::none();
  float* data = nullptr;

  explicit operator bool() const { return data != nullptr; }
};

// Sets torch's objects, once at import: the tensor's class, its `__dlpack_c_exchange_api__` or None, and
// torch.utils.dlpack.from_dlpack. Also sets NumPy's array class.
void use_torch(py::type tensor, py::object exchange, py::function from_dlpack, py::type ndarray);

// Returns a 1-D host tensor of elements that nobody has written to. `keep`: when its last view is gone, its memory is
// kept for reuse. Throws std::bad_alloc.
py::object new_bytes(int64_t count, bool keep);
Vector new_vector(int64_t count);
py::object new_counts(int64_t count, int64_t** data);  // int64

enum class Element { kFloat32, kInt64 };

// Holds Python arrays for as long as their elements are read.
class Arrays {
 public:
  Arrays() = default;
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;
  ~Arrays();

  // Returns the address of the elements if the array has the usual form: torch's or NumPy's own class, of this type and
  // shape, contiguous, on the host. Returns null for everything else.
  const void* add(py::handle given, Element element, const int64_t* shape, int32_t dims);
  // Returns an object that keeps the elements' memory alive.
  py::object owner() const;

 private:
  std::vector<py::object> held_;
  std::vector<Py_buffer> views_;
};

}  // namespace fastagg::memory
