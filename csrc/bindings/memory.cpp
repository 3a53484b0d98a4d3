// Binds the server's own vectors, as torch tensors, for fastagg/model/memory.py.
#include <pybind11/stl.h>

#include "../store/blocks.h"
#include "../store/copies.h"
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

  using store::Copies;
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  py::class_<Copies, std::shared_ptr<Copies>>(m, "Copies", "Of a device (cuda.copies_on). Marks are numbers here.")
      .def("mark", [](Copies& copies) { return reinterpret_cast<Address>(copies.mark()); })
      .def(
          "up",
          [](Copies& copies, std::pair<Address, Address> device, std::pair<Address, Address> host, int64_t bytes) {
            copies.up(at<void>(device.first), at<void>(device.second), at<void>(host.first), at<void>(host.second),
                      static_cast<size_t>(bytes));
          },
          nogil)
      .def(
          "down",
          [](Copies& copies, std::pair<Address, Address> host, std::pair<Address, Address> device, int64_t bytes) {
            copies.down(at<void>(host.first), at<void>(host.second), at<void>(device.first), at<void>(device.second),
                        static_cast<size_t>(bytes));
          },
          nogil)
      .def("before",
           [](Copies& copies, Address stream, Address mark) { copies.before(at<void>(stream), {at<void>(mark)}); })
      .def("after",
           [](Copies& copies, Address stream, Address mark) { copies.after(at<void>(stream), {at<void>(mark)}); })
      .def(
          "wait", [](Copies& copies, Address mark) { copies.wait(at<void>(mark)); }, nogil)
      .def("settle", &Copies::settle, nogil);
}

}  // namespace fastagg::bindings
