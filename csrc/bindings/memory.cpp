// Binds the server's own vectors, as torch tensors, for fastagg/model/memory.py.
#include "../store/blocks.h"
#include "arrays.h"
#include "structs.h"

namespace py = pybind11;

namespace fastagg::bindings {

void bind_memory(py::module_& to) {
  py::module_ m = to.def_submodule("memory", "Vectors in huge pages, used again when the last view of them is gone.");
  m.def("use_torch", &use_torch, py::arg("tensor"), py::arg("exchange"), py::arg("from_dlpack"), py::arg("ndarray"),
        py::arg("tensors"));
  m.def("vector", [](int64_t count) { return tensor_of(store::new_vector(count), count); });
  m.def(
      "bytes",
      [](int64_t count, bool keep) {
        const store::Owner owner = store::new_memory(count, keep);
        return tensor_of(owner, owner.get(), count, Element::kBytes);
      },
      py::arg("count"), py::arg("keep"));
  m.def("trim", &store::trim);
  m.def("fail_after", &store::fail_after);
  m.def("left_to_fail", &store::left_to_fail);
}

}  // namespace fastagg::bindings
