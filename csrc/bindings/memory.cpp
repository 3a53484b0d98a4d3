// Binds the server's own vectors, as torch tensors, for fastagg/storage/memory.py.
#include "../memory/blocks.h"
#include "../memory/tensors.h"
#include "structs.h"

namespace py = pybind11;

namespace fastagg {

void bind_memory(py::module_& to) {
  py::module_ m = to.def_submodule("memory", "Vectors in huge pages, used again when the last view of them is gone.");
  m.def("use_torch", &memory::use_torch, py::arg("tensor"), py::arg("exchange"), py::arg("from_dlpack"),
        py::arg("ndarray"));
  m.def("vector", [](int64_t count) { return memory::new_vector(count).owner; });
  m.def("bytes", &memory::new_bytes, py::arg("count"), py::arg("keep"));
  m.def("lies_about", &memory::lies_about);
  m.def("trim", &memory::trim);
  m.def("fail_after", &memory::fail_after);
  m.def("left_to_fail", &memory::left_to_fail);
}

}  // namespace fastagg
