// The forms in which most updates come, taken apart without Python: one vector, or the model's arrays by name or in
// order.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "../memory/tensors.h"
#include "../plan.h"

namespace fastagg::serving {

namespace py = pybind11;

class Form {
 public:
  using Shape = std::vector<int64_t>;

  // `parts`: name and shape of the model's arrays in their order; none, if an update has more to it than these.
  // `named`: whether a dict is one of the forms.
  Form(const std::vector<std::pair<py::object, Shape>>& parts, bool named);

  enum class Read { kNo, kVector, kArrays };
  // Adds the pieces of an update of `size` elements. kNo: it is of another form or type, or not what the model is; who
  // reads it in Python will say.
  Read read(py::handle given, int64_t size, memory::Arrays& arrays, Update& update) const;

 private:
  struct Part {
    py::object name;
    Shape shape;
    int64_t size;
  };
  std::vector<Part> parts_;
  bool named_;
};

}  // namespace fastagg::serving
