#include "arrays.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "host.h"
#if defined(FASTAGG_CUDA_EMULATED)
#include "../../tests/emulation/testing.h"
#endif

namespace fastagg::bindings {
namespace {

// -- the structs of DLPack's specification --------------------------------------------------------------------------

struct DlpackDevice {
  int32_t type, id;
};

struct DlpackType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct DlpackTensor {
  void* data;
  DlpackDevice device;
  int32_t dims;
  DlpackType type;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};

struct DlpackVersion {
  uint32_t major, minor;
};

struct ManagedTensor {  // a capsule named "dltensor" points to this struct
  DlpackTensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

struct VersionedTensor {
  DlpackVersion version;
  void* context;
  void (*deleter)(VersionedTensor*);
  uint64_t flags;
  DlpackTensor tensor;
};

struct ExchangeHeader {
  DlpackVersion version;
  ExchangeHeader* previous;
};

struct DlpackExchange {
  ExchangeHeader header;
  int (*allocate)(DlpackTensor*, VersionedTensor**, void*, void (*)(void*, const char*, const char*));
  int (*give)(void* object, VersionedTensor** out);
  int (*take)(VersionedTensor*, void** object);
  int (*look)(void* object, DlpackTensor* out);
  int (*stream)(int32_t type, int32_t id, void** out);
};

constexpr int32_t kHost = 1;
#if defined(FASTAGG_CUDA_EMULATED)
constexpr int32_t kCuda = kHost;  // torch's host tensors count as tensors of the emulated device
#else
constexpr int32_t kCuda = 2;
#endif
constexpr uint8_t kSigned = 0, kUnsigned = 1, kFloat = 2, kBrain = 4;
constexpr uint32_t kMajor = 1;

// -------------------------------------------------------------------------------------------------------------------

struct TorchFunctions {
  PyTypeObject *tensor = nullptr, *parameter = nullptr, *ndarray = nullptr;
  const DlpackExchange* exchange = nullptr;
  PyObject *from_dlpack = nullptr, *tensors = nullptr;
  PyObject *is_neg = nullptr, *storage = nullptr, *nbytes = nullptr, *offset = nullptr, *element_size = nullptr;
};

TorchFunctions torch;  // these objects are never released, because torch is never unloaded

// Keeps a tensor's memory alive. Torch destroys the TensorOwner with the last view of the tensor. This may happen on
// any thread and without the GIL.
template <typename Shell>
struct TensorOwner {
  Shell shell{};
  int64_t shape, stride = 1;
  store::Owner owner;

  TensorOwner(store::Owner held, void* data, int64_t count, DlpackType type) : shape(count), owner(std::move(held)) {
    shell.context = this;
    shell.deleter = [](Shell* owned) { delete static_cast<TensorOwner*>(owned->context); };
    shell.tensor = {data, {kHost, 0}, 1, type, &shape, &stride, 0};
  }
  TensorOwner(const TensorOwner&) = delete;
  TensorOwner& operator=(const TensorOwner&) = delete;
};

DlpackType type_of(ElementType element) {
  switch (element) {
    case ElementType::kFloat32: return {kFloat, 32, 1};
    case ElementType::kFloat16: return {kFloat, 16, 1};
    case ElementType::kBFloat16: return {kBrain, 16, 1};
    case ElementType::kFloat64: return {kFloat, 64, 1};
    case ElementType::kInt64: return {kSigned, 64, 1};
    default: return {kUnsigned, 8, 1};
  }
}

py::object made(store::Owner owner, void* data, int64_t count, ElementType element) {
  const DlpackType type = type_of(element);
  void* object = nullptr;
  if (torch.exchange != nullptr) {
    auto held = std::make_unique<TensorOwner<VersionedTensor>>(std::move(owner), data, count, type);
    held->shell.version = torch.exchange->header.version;
    if (torch.exchange->take(&held.release()->shell, &object) != 0) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
  }
  auto held = std::make_unique<TensorOwner<ManagedTensor>>(std::move(owner), data, count, type);
  const auto capsule = py::reinterpret_steal<py::object>(PyCapsule_New(&held->shell, "dltensor", nullptr));
  if (!capsule) throw py::error_already_set();
  object = PyObject_CallOneArg(torch.from_dlpack, capsule.ptr());
  // If torch has taken ownership of the tensor, torch has renamed the capsule.
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor") == 0) held.release();
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
}

// Calls a method that returns a number. Returns that number, or -1 if the call fails.
int64_t ask(PyObject* object, PyObject* method) {
  const auto capsule = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(object, method));
  const int64_t number = capsule ? PyLong_AsLongLong(capsule.ptr()) : -1;
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  return number;
}

// Whether a tensor with this shape and these strides is contiguous. The strides are in elements.
bool in_order(const int64_t* shape, const int64_t* strides, int32_t dims) {
  int64_t expected = 1;
  for (int32_t i = dims; i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

int64_t width_of(ElementType element) { return type_of(element).bits / 8; }

ElementType element_of(const DlpackType& type) {
  for (const ElementType element : {ElementType::kFloat32, ElementType::kFloat16, ElementType::kBFloat16,
                                    ElementType::kInt64, ElementType::kFloat64, ElementType::kBytes}) {
    const DlpackType known = type_of(element);
    if (type.code == known.code && type.bits == known.bits && type.lanes == 1) return element;
  }
  return ElementType::kOther;
}

py::object storage_of(py::handle array) {
  auto storage = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(array.ptr(), torch.storage));
  if (!storage) PyErr_Clear();
  return storage;
}

// Returns the elements' address if the tensor is contiguous, has this type and shape, and `takes` accepts its memory.
// Otherwise returns null.
template <typename Takes>
const void* tensor_data(py::handle tensor, ElementType wanted, const int64_t* shape, int32_t dims, Takes takes) {
  ArrayMemory memory;
  const bool fits = look(tensor, memory) && memory.element == wanted && memory.dims == dims &&
                    std::equal(shape, shape + dims, memory.shape) && memory.in_order && memory.data != nullptr;
  return fits && memory.size > 0 && takes(memory) && is_plain(tensor, memory) ? memory.data : nullptr;
}

const void* array_data(py::handle array, ElementType element, const int64_t* shape, int32_t dims,
                       std::vector<Py_buffer>& views) {
  const DlpackType wanted = type_of(element);
  Py_buffer view;
  if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return nullptr;
  }
  const char* formats = wanted.code == kFloat ? "f" : "lq";  // each character is a format code of Python's buffers
  const bool fits = view.itemsize == wanted.bits / 8 && view.format != nullptr && view.format[0] != 0 &&
                    view.format[1] == 0 && std::strchr(formats, view.format[0]) != nullptr && view.ndim == dims &&
                    std::equal(shape, shape + dims, view.shape) && view.len > 0;
  if (!fits || reinterpret_cast<uintptr_t>(view.buf) % (wanted.bits / 8) != 0) {
    PyBuffer_Release(&view);
    return nullptr;
  }
  views.push_back(view);
  return view.buf;
}

}  // namespace

void use_torch(py::type tensor, py::object exchange, py::function from_dlpack, py::type ndarray, py::object tensors) {
  const auto interned = [](const char* name) { return PyUnicode_InternFromString(name); };
  torch.is_neg = interned("is_neg");
  torch.storage = interned("untyped_storage");
  torch.nbytes = interned("nbytes");
  torch.offset = interned("storage_offset");
  torch.element_size = interned("element_size");
  torch.parameter = reinterpret_cast<PyTypeObject*>(
      py::object(py::module_::import("torch.nn.parameter").attr("Parameter")).release().ptr());
  torch.tensor = reinterpret_cast<PyTypeObject*>(tensor.release().ptr());
  torch.ndarray = reinterpret_cast<PyTypeObject*>(ndarray.release().ptr());
  torch.from_dlpack = from_dlpack.release().ptr();
  torch.tensors = tensors.release().ptr();
  torch.exchange = nullptr;
  if (exchange.is_none()) return;
  auto* header = static_cast<ExchangeHeader*>(PyCapsule_GetPointer(exchange.ptr(), "dlpack_exchange_api"));
  if (header == nullptr) PyErr_Clear();
  while (header != nullptr && header->version.major > kMajor) header = header->previous;
  if (header == nullptr || header->version.major != kMajor) return;
  torch.exchange = reinterpret_cast<const DlpackExchange*>(header);
}

py::object tensor_of(const store::Owner& owner, void* data, int64_t count, ElementType element) {
  PyObject* const object = object_of(owner);
  const bool bytes = object != nullptr && ask(object, torch.element_size) == 1;
  // If a Python object owns the memory, the result is that object. An exception is a tensor of bytes, which torch
  // allocates for a device. If fp32 elements are wanted, the result is a view of that tensor.
  if (object != nullptr && !(bytes && element == ElementType::kFloat32))
    return py::reinterpret_borrow<py::object>(object);
  if (data == nullptr || count == 0) return made(owner, data, count, element);
  const py::tuple key = py::make_tuple(reinterpret_cast<uintptr_t>(data), count, static_cast<int>(element));
  const py::handle known(torch.tensors);
  py::object dtype = known.attr("get")(key);
  if (dtype.is_none()) {
    dtype = bytes ? py::handle(object).attr("view")(py::module_::import("torch").attr("float32"))
                  : made(owner, data, count, element);
    known.attr("__setitem__")(key, dtype);
  }
  return dtype;
}

py::list tensors_in(const store::Owner& owner, const Update& update, bool stored) {
  if (store::is_encoded(update)) {
    const auto encoded = std::const_pointer_cast<store::Encoded>(store::encoded_in(update));
    py::list piece;
    piece.append(stored ? tensor_of(encoded, encoded->data(), encoded->nbytes, ElementType::kBytes)
                        : py::cast(encoded));
    return piece;
  }
  // The owner is wrapped in another owner, because `tensor_of` returns the owner itself if it is a Python object.
  const store::Owner all = std::make_shared<store::Owner>(owner);
  py::list list;
  for (Piece piece : update.pieces) {
    if (piece.dtype == kDeviceEncoded)
      piece = {static_cast<const DeviceWire*>(piece.data)->numbers, piece.begin, piece.size, kFloat32};
    list.append(tensor_of(all, const_cast<void*>(piece.data), piece.size,
                          static_cast<ElementType>(static_cast<int>(piece.dtype))));
  }
  return list;
}

store::Vector vector_of(const py::object& tensor) {
  if (tensor.is_none()) return {};
  auto* const data = reinterpret_cast<float*>(py::cast<uintptr_t>(tensor.attr("data_ptr")()));
  return {owner_of(tensor), data, ask(tensor.ptr(), torch.element_size) == 2 ? kBFloat16 : kFloat32};
}

bool is_fit_for_torch(py::handle capsule) {
  const auto named = [&](const char* name) { return PyCapsule_IsValid(capsule.ptr(), name) != 0; };
  const DlpackTensor* tensor = nullptr;
  if (named("dltensor")) tensor = &static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor;
  if (named("dltensor_versioned")) {
    auto* const versioned = static_cast<VersionedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (versioned->version.major == kMajor) tensor = &versioned->tensor;
  }
  if (tensor == nullptr) return true;
  double reach = tensor->type.bits / 8.0 * tensor->type.lanes, size = reach;  // upper bounds, in bytes
  for (int32_t i = 0; i < tensor->dims; ++i) {
    const int64_t along = tensor->shape[i], stride = tensor->strides == nullptr ? 0 : tensor->strides[i];
    if (along < 0 || (along > 1 && stride < 0)) return false;
    reach += std::max(0.0, static_cast<double>(along) - 1.0) * static_cast<double>(stride) * tensor->type.bits;
    size *= static_cast<double>(along);
  }
  return reach < 0x1p62 && size < 0x1p62;
}

bool look(py::handle array, ArrayMemory& memory) {
  const PyTypeObject* const kind = Py_TYPE(array.ptr());
  if (kind != torch.tensor && kind != torch.parameter) return false;
  if (torch.exchange == nullptr || torch.exchange->look == nullptr) return false;
  DlpackTensor tensor{};
  if (torch.exchange->look(array.ptr(), &tensor) != 0) {
    PyErr_Clear();  // the tensor has no memory of its own, because it is sparse or belongs to a torch.func transform
    return false;
  }
  memory = {tensor.data,
            tensor.shape,
            tensor.dims,
            1,
            element_of(tensor.type),
            tensor.device.type == kHost,
            false,
            tensor.device.type == kCuda ? tensor.device.id : -1};
  for (int32_t i = 0; i < tensor.dims; ++i) memory.size *= tensor.shape[i];
  memory.in_order =
      memory.size == 0 || tensor.strides == nullptr || in_order(tensor.shape, tensor.strides, tensor.dims);
  return tensor.byte_offset == 0;
}

bool is_plain(py::handle array, const ArrayMemory& memory) {
  if (ask(array.ptr(), torch.is_neg) != 0) return false;  // torch has not negated the elements in memory yet
  if (memory.size == 0) return true;
  const py::object storage = storage_of(array);
  if (!storage) return false;
  const int64_t held = ask(storage.ptr(), torch.nbytes), begin = ask(array.ptr(), torch.offset);
  // The storage's method `resize_` may have made the storage too small for the tensor.
  return begin >= 0 && held >= width_of(memory.element) * (begin + memory.size);
}

bool has_memory(py::handle array, const ArrayMemory& memory) {
  if (memory.size == 0) return true;
  const int64_t begin = ask(array.ptr(), torch.offset);
  return begin >= 0 &&
         reinterpret_cast<uintptr_t>(memory.data) != static_cast<uintptr_t>(begin * width_of(memory.element));
}

Arrays::~Arrays() {
  for (Py_buffer& view : views_) PyBuffer_Release(&view);
}

const void* Arrays::add(py::handle array, ElementType element, const int64_t* shape, int32_t dims) {
  MemoryPlace lies = MemoryPlace::kHost;
  const auto takes = [&](const ArrayMemory& memory) {
    if (device_ >= 0 && memory.device == device_) lies = kDevice;
    return lies == kDevice || memory.on_host;
  };
  const void* const data = Py_TYPE(array.ptr()) == torch.ndarray ? array_data(array, element, shape, dims, views_)
                                                                 : tensor_data(array, element, shape, dims, takes);
  if (data == nullptr || (lies_ != kNowhere && lies_ != lies)) return nullptr;
  lies_ = lies;
  held_.push_back(py::reinterpret_borrow<py::object>(array));
  return data;
}

store::Owner Arrays::owner([[maybe_unused]] int64_t nbytes) const {
#if !defined(FASTAGG_CUDA_EMULATED)
  constexpr int64_t kKept = int64_t{1} << 20;  // in bytes; csrc/engine/inspect_on_cuda.cpp must have the same limit
  if (nbytes > kKept) {
    const py::object stream = py::module_::import("torch.cuda").attr("current_stream")(device_);
    for (const py::object& tensor : held_) tensor.attr("record_stream")(stream);
    return nullptr;
  }
#endif
  if (held_.size() == 1) return owner_of(held_.front());
  return owner_of(py::cast(held_));
}

void* current_stream(int32_t device) {
#if defined(FASTAGG_CUDA_EMULATED)
  static_cast<void>(device);
  return emulation::current_stream();
#else
  void* current = nullptr;
  if (torch.exchange != nullptr && torch.exchange->stream != nullptr &&
      torch.exchange->stream(kCuda, device, &current) == 0)
    return current;
  const GilHolder held;  // older versions of torch lack the table's function
  const py::object stream = py::module_::import("torch.cuda").attr("current_stream")(device);
  return reinterpret_cast<void*>(py::cast<uintptr_t>(stream.attr("cuda_stream")));
#endif
}

}  // namespace fastagg::bindings
