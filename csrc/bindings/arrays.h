// Reads and makes torch's tensors without torch's headers. This file uses DLPack's table of C functions (version 1.3),
// which torch has had since about 2.10. With an older torch, tensors are made through DLPack's capsules, and only
// Python reads updates that are torch tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "../plan.h"
#include "../store/encoded.h"
#include "../store/vector.h"
#include "python.h"

namespace fastagg::bindings {

namespace py = pybind11;

// Sets the Python objects that this file uses. fastagg/storage/memory.py calls this function at import. `tensor`: the
// class torch.Tensor. `exchange`: the class's `__dlpack_c_exchange_api__`, or None. `from_dlpack`: the function of
// torch.utils.dlpack. `ndarray`: NumPy's array class. `tensors`: a dict with weak references to tensors.
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

// Returns a 1-D tensor of the `count` elements at `data`. The tensor keeps the owner alive. While the tensor lives,
// each call with this address, count and type returns the same tensor. If a Python object owns the memory, returns that
// object. If that object is a tensor of bytes and `element` is kFloat32, returns a view of the object.
py::object tensor_of(const store::Owner& owner, void* data, int64_t count, ElementType element);
inline py::object tensor_of(const store::Vector& vector, int64_t count) {
  return tensor_of(vector.owner, vector.data, count, static_cast<ElementType>(static_cast<int>(vector.dtype)));
}
// Returns a Vector with the memory of a torch tensor of type fp32 or bf16. Returns an empty vector for None.
store::Vector vector_of(const py::object& tensor);

// Whether a DLPack capsule can be passed to torch without danger. If a stride or the size of the capsule's tensor is
// negative or overflows 64 bits, torch throws a C++ exception that ends the process.
bool is_fit_for_torch(py::handle capsule);

// Returns a list of an update's pieces, as tensors that `tensor_of` makes. The list of an encoded update has one item:
// the Encoded object, or a tensor of the encoded bytes if `stored` is true.
py::list tensors_in(const store::Owner& owner, const Update& update, bool stored = false);

// A torch tensor's memory, as torch describes it.
struct ArrayMemory {
  void* data;
  const int64_t* shape;
  int32_t dims;
  int64_t size;  // number of elements
  ElementType element;
  bool on_host, in_order;  // in_order: whether the elements are contiguous
  int32_t device;          // the memory's CUDA device; negative: the memory is on no CUDA device
};
// Fills `memory`. Returns false if the array is not of torch's own classes or has no memory of its own, or if torch has
// no table of C functions. Python must then read the array.
bool look(py::handle array, ArrayMemory& memory);
// Whether the elements can be read in place. This is false if the storage was freed or made smaller, or if torch has
// not negated the elements in memory yet.
bool is_plain(py::handle array, const ArrayMemory& memory);
// Whether the storage was not freed. A freed storage begins at address zero. The check is faster than `is_plain`.
bool has_memory(py::handle array, const ArrayMemory& memory);

// Returns torch's current stream for this thread on a CUDA device.
void* current_stream(int32_t device);

// Keeps Python arrays alive while their elements are read.
class Arrays {
 public:
  // `device`: the CUDA device on which torch's tensors may be. Either all arrays are on that device, or all are on the
  // host. If `device` is negative, all arrays must be on the host.
  explicit Arrays(int32_t device = -1) : device_(device) {}
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;
  ~Arrays();

  // Returns the address of the array's elements. The array must be of torch's or NumPy's own class, have this type and
  // shape, be contiguous, and be on the host or on `device`. Returns null for any other object.
  const void* add(py::handle array, ElementType element, const int64_t* shape, int32_t dims);

  bool on_device() const { return lies_ == kDevice; }
  // Returns an owner that keeps the device's arrays alive until kernels have read them. If `nbytes`, the size of the
  // arrays, is above 1 MiB, returns null, so that large arrays are freed early. The function then tells torch not to
  // reuse the arrays' memory before the kernels have read them (record_stream).
  store::Owner owner(int64_t nbytes) const;

 private:
  enum MemoryPlace { kNowhere, kHost, kDevice };
  MemoryPlace lies_ = kNowhere;
  int32_t device_;
  std::vector<py::object> held_;
  std::vector<Py_buffer> views_;
};

}  // namespace fastagg::bindings
