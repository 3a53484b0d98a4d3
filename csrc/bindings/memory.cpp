// Makes torch tensors in the server's own memory, and reads the addresses of tensors, for fastagg/storage/memory.py.
#include <array>

#include "../store/blocks.h"
#include "arrays.h"
#include "host.h"
#include "structs.h"

namespace py = pybind11;

namespace fastagg::bindings {
namespace {

Address address_of(const ArrayMemory& memory) { return reinterpret_cast<Address>(memory.data); }

// look(tensor): returns the address, the number of elements and the type of a tensor of torch's own class that is
// contiguous in host memory. Returns None for any other tensor, which Python must read itself.
PyObject* plain(PyObject*, PyObject* tensor) {
  return guarded([&] {
    ArrayMemory memory;
    const bool fits = look(tensor, memory) && memory.on_host && memory.in_order && is_plain(tensor, memory);
    if (!fits) return Py_NewRef(Py_None);
    return py::make_tuple(address_of(memory), memory.size, static_cast<int>(memory.element)).release().ptr();
  });
}

// look_1d(tensor, elements, type): returns the address of a contiguous 1-D host tensor with this number of elements and
// this type. Returns None for any other object.
PyObject* vector_at(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&] {
    ArrayMemory memory;
    const bool fits = count == 3 && look(arguments[0], memory) && memory.on_host && memory.in_order &&
                      memory.dims == 1 && memory.size == PyLong_AsLongLong(arguments[1]) &&
                      static_cast<long>(memory.element) == PyLong_AsLong(arguments[2]) &&
                      has_memory(arguments[0], memory);
    return fits ? PyLong_FromUnsignedLongLong(address_of(memory)) : Py_NewRef(Py_None);
  });
}

}  // namespace

void bind_memory(py::module_& to) {
  py::module_ m = to.def_submodule("memory", "Tensors in memory that is reused when no tensor needs it any more.");
  m.def("use_torch", &use_torch, py::arg("tensor"), py::arg("exchange"), py::arg("from_dlpack"), py::arg("ndarray"),
        py::arg("tensors"));
  m.def("is_fit_for_torch", &is_fit_for_torch);
  // These functions are bound without pybind11, whose calls would take longer than the functions themselves.
  static std::array<PyMethodDef, 3> methods{
      PyMethodDef{"look", &plain, METH_O, nullptr},
      PyMethodDef{"look_1d", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&vector_at)), METH_FASTCALL,
                  nullptr},
      PyMethodDef{}};
  if (PyModule_AddFunctions(m.ptr(), methods.data()) != 0) throw py::error_already_set();
  m.def("vector", [](int64_t count) { return tensor_of(store::new_vector(count), count); });
  m.def(
      "bytes",
      [](int64_t count, bool keep) {
        const store::Owner owner = store::new_memory(count, keep);
        return tensor_of(owner, owner.get(), count, ElementType::kBytes);
      },
      py::arg("count"), py::arg("keep"));
  m.def("trim", &store::trim);
  m.def("fail_after", &store::fail_after);
  m.def("left_to_fail", &store::left_to_fail);
}

}  // namespace fastagg::bindings
