// Uses torch's tensors without torch's headers, through DLPack's table of C functions (version 1.3). Torch has this
// table since about 2.10. With an older torch, vectors are made through a capsule, and only Python reads updates.
#pragma once

#include <cstdint>
#include <vector>

#include "../plan.h"
#include "../store/encoded.h"
#include "../store/vector.h"
#include "python.h"

namespace fastagg::bindings {

namespace py = pybind11;

// Sets torch's objects, once at import: the tensor's class, its `__dlpack_c_exchange_api__` or None, and
// torch.utils.dlpack.from_dlpack. Also sets NumPy's array class, and a dict of weak references to tensors.
void use_torch(py::type tensor, py::object exchange, py::function from_dlpack, py::type ndarray, py::object tensors);

enum class ElementType {
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt64,
  kFloat64,
  kBytes,
  kOther
};  // the first ones as in Dtype

// The 1-D host tensor of `count` elements in memory of this owner, which the tensor holds. As long as somebody holds
// the tensor, this is the same object. For memory that Python owns it is the owner.
py::object tensor_of(const store::Owner& owner, void* data, int64_t count, ElementType element);
inline py::object tensor_of(const store::Vector& vector, int64_t count) {
  return tensor_of(vector.owner, vector.data, count, static_cast<ElementType>(static_cast<int>(vector.dtype)));
}
// A tensor of torch's, fp32 or bf16, as a vector of the engine's. None: no vector.
store::Vector vector_of(const py::object& tensor);

// Whether torch can take a capsule of DLPack, or refuses it. Of a negative stride or size, or of one beyond 2^63, torch
// makes an exception that ends the process.
bool is_fit_for_torch(py::handle capsule);

// The pieces of an update as such tensors; of an encoded one, the Encoded. `stored`: or its bytes.
py::list tensors_in(const store::Owner& owner, const Update& update, bool stored = false);

// A torch tensor's memory, as torch describes it.
struct ArrayMemory {
  void* data;
  const int64_t* shape;
  int32_t dims;
  int64_t size;  // elements
  ElementType element;
  bool on_host, in_order;
  int32_t device;  // the CUDA device that it is on; negative: none
};
// False: Python has to look. It is not of torch's own classes, has no memory of its own, or torch has no table.
bool look(py::handle array, ArrayMemory& memory);
// Whether the elements can be read as they lie: the storage was not freed or made smaller, and no bit negates them.
bool is_plain(py::handle array, const ArrayMemory& memory);
// Whether there is memory at all: a freed storage begins at zero, and a view behind it. It takes a fifth of `is_plain`.
bool has_memory(py::handle array, const ArrayMemory& memory);

// Torch's current stream of a CUDA device, for this thread.
void* current_stream(int32_t device);

// Holds Python arrays for as long as their elements are read.
class Arrays {
 public:
  // `device`: torch's tensors may also lie on this CUDA device, but then all of them do.
  explicit Arrays(int32_t device = -1) : device_(device) {}
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;
  ~Arrays();

  // Returns the address of the elements if the array has the usual form: torch's or NumPy's own class, of this type and
  // shape, contiguous, on the host. Returns null for everything else.
  const void* add(py::handle array, ElementType element, const int64_t* shape, int32_t dims);

  bool on_device() const { return lies_ == kDevice; }
  // The arrays on the device, for whoever keeps them until kernels have read them. Torch is told of large ones, too,
  // which nobody should keep longer: their memory is not given to others before (record_stream).
  store::Owner owner(int64_t nbytes) const;

 private:
  enum MemoryPlace { kNowhere, kHost, kDevice };
  MemoryPlace lies_ = kNowhere;
  int32_t device_;
  std::vector<py::object> held_;
  std::vector<Py_buffer> views_;
};

}  // namespace fastagg::bindings
