// What tests ask of the emulation (testing.h), as `_native.emulation`.
#include "../../csrc/bindings/structs.h"
#include "testing.h"

namespace py = pybind11;

namespace fastagg {

void bind_emulation(py::module_& to) {
  py::module_ m = to.def_submodule("emulation", "For tests (tests/emulation/testing.h). Streams are numbers.");
  m.def("current_stream", [] { return reinterpret_cast<Address>(emulation::current_stream()); });
  m.def("use_stream", [](Address stream) { emulation::use_stream(at<void>(stream)); });
  m.def("new_stream", [] { return reinterpret_cast<Address>(emulation::new_stream()); });
  m.def("settle", [](Address stream) { emulation::settle_stream(at<void>(stream)); });
  m.def("take_counts", &emulation::take_counts);
  m.def("unload", &emulation::unload);
  m.def("empty_launches", &emulation::empty_launches);
  m.def("fail_launch", &emulation::fail_launch);
}

}  // namespace fastagg
