// Reads the usual forms of an update without Python: one vector, or the model's arrays by name or in order.
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

  // `parts`: name and shape of the model's arrays in order. It is empty if an update contains more than these arrays.
  // `named`: whether a dict is an accepted form.
  Form(const std::vector<std::pair<py::object, Shape>>& parts, bool named);

  enum class Read { kNo, kVector, kArrays };
  // Adds the pieces of an update of `size` elements. kNo: the update has another form or type, or does not fit the
  // model. The code in Python then reads it and reports what is wrong.
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
