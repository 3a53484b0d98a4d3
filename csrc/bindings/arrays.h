// Uses torch's tensors without torch's headers, through DLPack's table of C functions (version 1.3). Torch has had this
// table since about 2.10. With an older torch, tensors are made through a capsule, and only Python reads updates.
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
};  // the first three have the same values as Dtype

// Returns a 1-D host tensor of `count` elements in this owner's memory. The tensor keeps the owner alive. As long as
// the tensor lives, every call returns the same object. For memory that Python owns, the result is the owning object.
py::object tensor_of(const store::Owner& owner, void* data, int64_t count, ElementType element);
inline py::object tensor_of(const store::Vector& vector, int64_t count) {
  return tensor_of(vector.owner, vector.data, count, static_cast<ElementType>(static_cast<int>(vector.dtype)));
}
// Returns torch's tensor, fp32 or bf16, as a vector of the engine. For None returns an empty vector.
store::Vector vector_of(const py::object& tensor);

// Whether torch can take a DLPack capsule, or refuses the capsule properly. For a stride or size that is negative or
// above 2^63, torch raises an exception that ends the process.
bool is_fit_for_torch(py::handle capsule);

// Returns the pieces of an update as tensors of `tensor_of`. For an encoded update, returns the Encoded, or its bytes
// if `stored`.
py::list tensors_in(const store::Owner& owner, const Update& update, bool stored = false);

// A torch tensor's memory, as torch describes it.
struct ArrayMemory {
  void* data;
  const int64_t* shape;
  int32_t dims;
  int64_t size;  // elements
  ElementType element;
  bool on_host, in_order;
  int32_t device;  // the CUDA device of the memory; negative: none
};
// Fills `memory`. Returns false if Python must look at the array: the array is not of torch's own classes or has no
// memory of its own, or torch has no table.
bool look(py::handle array, ArrayMemory& memory);
// Whether the elements can be read in place: the storage was not freed or made smaller, and torch does not negate the
// elements lazily.
bool is_plain(py::handle array, const ArrayMemory& memory);
// Whether the array has memory: a freed storage begins at address zero. The check takes a fifth of `is_plain`'s time.
bool has_memory(py::handle array, const ArrayMemory& memory);

// Returns torch's current stream for this thread on a CUDA device.
void* current_stream(int32_t device);

// Holds Python arrays for as long as their elements are read.
class Arrays {
 public:
  // `device`: torch's tensors may also be on this CUDA device, but then all arrays must be there. Negative: on the
  // host.
  explicit Arrays(int32_t device = -1) : device_(device) {}
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;
  ~Arrays();

  // Returns the address of the elements if the array has the usual form: torch's or NumPy's own class, of this type and
  // shape, contiguous, on the host or on `device`. Returns null for everything else.
  const void* add(py::handle array, ElementType element, const int64_t* shape, int32_t dims);

  bool on_device() const { return lies_ == kDevice; }
  // Returns an owner that keeps the device's arrays until kernels have read them. Large arrays should not be kept
  // longer than needed. So for large arrays returns null, and tells torch not to reuse their memory before
  // (record_stream).
  store::Owner owner(int64_t nbytes) const;

 private:
  enum MemoryPlace { kNowhere, kHost, kDevice };
  MemoryPlace lies_ = kNowhere;
  int32_t device_;
  std::vector<py::object> held_;
  std::vector<Py_buffer> views_;
};

}  // namespace fastagg::bindings
