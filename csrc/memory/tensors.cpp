#include "tensors.h"

#include <memory>

#include "blocks.h"

namespace fastagg::memory {
namespace {

// -- DLPack's structs, as its specification has them ----------------------------------------------------------------

struct Device {
  int32_t type, id;
};

struct Type {
  uint8_t code, bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t dims;
  Type type;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};

struct Version {
  uint32_t major, minor;
};

struct Managed {  // of a capsule "dltensor"
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

struct Versioned {
  Version version;
  void* context;
  void (*deleter)(Versioned*);
  uint64_t flags;
  Tensor tensor;
};

struct Header {
  Version version;
  Header* previous;
};

struct Exchange {
  Header header;
  int (*allocate)(Tensor*, Versioned**, void*, void (*)(void*, const char*, const char*));
  int (*give)(void* object, Versioned** out);
  int (*take)(Versioned*, void** object);
  int (*look)(void* object, Tensor* out);
  int (*stream)(int32_t type, int32_t id, void** out);
};

constexpr int32_t kHost = 1;
constexpr uint8_t kUnsigned = 1, kFloat = 2;
constexpr uint32_t kMajor = 1;

// -------------------------------------------------------------------------------------------------------------------

struct Torch {
  PyTypeObject* tensor = nullptr;
  const Exchange* exchange = nullptr;
  PyObject* from_dlpack = nullptr;
  PyObject *is_neg = nullptr, *storage = nullptr, *nbytes = nullptr, *offset = nullptr;
};

Torch torch;  // until the process ends, as torch itself

// What torch gives back when the last view of a vector is gone: on any thread, without the GIL.
template <typename Shell>
struct Held {
  Shell shell{};
  int64_t shape, stride = 1;
  size_t nbytes;
  bool keep;

  Held(int64_t count, Type type, bool keep_it)
      : shape(count), nbytes(static_cast<size_t>(count) * type.bits / 8), keep(keep_it) {
    shell.context = this;
    shell.deleter = [](Shell* one) { delete static_cast<Held*>(one->context); };
    shell.tensor = {take(nbytes), {kHost, 0}, 1, type, &shape, &stride, 0};
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() { give_back(shell.tensor.data, nbytes, keep); }
};

py::object made(int64_t count, Type type, bool keep, float** data) {
  void* object = nullptr;
  if (torch.exchange != nullptr) {
    auto held = std::make_unique<Held<Versioned>>(count, type, keep);
    held->shell.version = torch.exchange->header.version;
    if (data != nullptr) *data = static_cast<float*>(held->shell.tensor.data);
    if (torch.exchange->take(&held.release()->shell, &object) != 0) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
  }
  auto held = std::make_unique<Held<Managed>>(count, type, keep);
  if (data != nullptr) *data = static_cast<float*>(held->shell.tensor.data);
  const auto capsule = py::reinterpret_steal<py::object>(PyCapsule_New(&held->shell, "dltensor", nullptr));
  if (!capsule) throw py::error_already_set();
  object = PyObject_CallOneArg(torch.from_dlpack, capsule.ptr());
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor") == 0) held.release();  // torch has it, and renamed the capsule
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
}

// The answer to a question that a tensor can be asked, as a number; -1 if it has none.
int64_t ask(PyObject* object, PyObject* method) {
  const auto found = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(object, method));
  const int64_t number = found ? PyLong_AsLongLong(found.ptr()) : -1;
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  return number;
}

}  // namespace

void use_torch(py::type tensor, py::object exchange, py::function from_dlpack) {
  const auto interned = [](const char* name) { return PyUnicode_InternFromString(name); };
  torch.is_neg = interned("is_neg");
  torch.storage = interned("untyped_storage");
  torch.nbytes = interned("nbytes");
  torch.offset = interned("storage_offset");
  torch.tensor = reinterpret_cast<PyTypeObject*>(tensor.release().ptr());
  torch.from_dlpack = from_dlpack.release().ptr();
  torch.exchange = nullptr;
  if (exchange.is_none()) return;
  auto* found = static_cast<Header*>(PyCapsule_GetPointer(exchange.ptr(), "dlpack_exchange_api"));
  if (found == nullptr) PyErr_Clear();
  while (found != nullptr && found->version.major > kMajor) found = found->previous;
  if (found == nullptr || found->version.major != kMajor) return;
  torch.exchange = reinterpret_cast<const Exchange*>(found);
}

py::object new_bytes(int64_t count, bool keep) { return made(count, {kUnsigned, 8, 1}, keep, nullptr); }

Vector new_vector(int64_t count) {
  Vector out;
  out.owner = made(count, {kFloat, 32, 1}, true, &out.data);
  return out;
}

bool plain_vector(py::handle given, int64_t size, const float** data) {
  if (Py_TYPE(given.ptr()) != torch.tensor || torch.exchange == nullptr || torch.exchange->look == nullptr)
    return false;
  Tensor found{};
  if (torch.exchange->look(given.ptr(), &found) != 0) {
    PyErr_Clear();  // it has no memory of its own: sparse, within a transform of functions
    return false;
  }
  const Type& type = found.type;
  const bool fits = found.device.type == kHost && found.dims == 1 && type.code == kFloat && type.bits == 32 &&
                    type.lanes == 1 && found.shape[0] == size && found.byte_offset == 0;
  if (!fits || size == 0 || found.data == nullptr || (size > 1 && found.strides != nullptr && found.strides[0] != 1))
    return false;
  // The numbers with the other sign (the imaginary part of a conjugate); freed, or cut short (resize_ of its storage).
  if (ask(given.ptr(), torch.is_neg) != 0) return false;
  const auto storage = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(given.ptr(), torch.storage));
  if (!storage) {
    PyErr_Clear();
    return false;
  }
  const int64_t held = ask(storage.ptr(), torch.nbytes), begin = ask(given.ptr(), torch.offset);
  if (begin < 0 || held < 4 * (begin + size)) return false;
  *data = static_cast<const float*>(found.data);
  return true;
}

}  // namespace fastagg::memory
