// Reads the usual forms of an update without Python: one vector, or the model's arrays by name or in order, with
// BatchNorm's statistics or without.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "../memory/tensors.h"
#include "../plan.h"
#include "reported.h"

namespace fastagg::serving {

namespace py = pybind11;

class Form {
 public:
  using Shape = std::vector<int64_t>;

  // `parts`: name, shape and role of the model's arrays in order. It is empty if only Python can read them.
  // `named`: whether a dict is an accepted form. `limit`: of the magnitudes of statistics.
  Form(const std::vector<std::tuple<py::object, Shape, ArrayRole>>& parts, bool named, double limit);

  enum class Read { kNo, kVector, kArrays };
  // Adds the pieces of an update of `size` elements, and the statistics that came with it. kNo: the update has another
  // form or type, or does not fit the model. The code in Python then reads it and reports what is wrong.
  Read read(py::handle given, int64_t size, memory::Arrays& arrays, Update& update, Reported& reported) const;

 private:
  struct Part {
    py::object name;
    Shape shape;
    int64_t size;
    ArrayRole role;
  };
  std::vector<Part> parts_;
  Py_ssize_t parameters_ = 0;  // how many of the parts
  bool named_;
  double limit_;
};

}  // namespace fastagg::serving
