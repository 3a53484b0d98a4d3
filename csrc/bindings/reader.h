// Reads updates of a usual form without calling Python code. The usual forms are one fp32 vector, the model's arrays by
// name or in order (with or without BatchNorm's statistics), and a fastagg.model.ModelState.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "../engine/answer.h"
#include "arrays.h"
#include "python.h"

namespace fastagg::bindings {

namespace py = pybind11;

// The role of an array in a model. Variances and counts must not be negative.
enum class ArrayRole { kParameter, kStatistic, kVariance, kCounter, kCount };

class UpdateReader {
 public:
  using ShapeVector = std::vector<int64_t>;

  // `parts`: the name, shape and role of each array of the model, in order. `parts` is empty if only Python can read
  // the arrays. `named`: whether a dict is accepted. `whole`: the class ModelState. `limit`: the largest allowed
  // magnitude of a statistic. `size`: the number of elements of an update.
  UpdateReader(const std::vector<std::tuple<py::object, ShapeVector, ArrayRole>>& parts, bool named, py::object whole,
               double limit, int64_t size);

  enum class UpdateForm { kNo, kVector, kArrays };
  // Sets the answer's update, whose memory `arrays` keeps alive. Copies the update's statistics. Returns kNo if the
  // update has no usual form or does not fit the model. Python then reads the update, and reports any mistake.
  UpdateForm read(py::handle update, Arrays& arrays, engine::Answer& answer) const;

 private:
  struct ModelPart {
    py::object name;
    ShapeVector shape;
    int64_t size;
    ArrayRole role;
  };
  typedef std::vector<std::pair<const void*, const ModelPart*>> Places;
  bool read_arrays(py::handle update, bool by_name, Arrays& arrays, engine::Answer& answer, Places& statistics) const;
  bool read_whole(py::handle model, Arrays& arrays, engine::Answer& answer, Places& statistics) const;

  std::vector<ModelPart> parts_;
  Py_ssize_t parameters_ = 0;      // how many of `parts_` are parameters
  ModelPart all_statistics_{};     // describes all statistics as one vector
  int64_t size_, statistics_ = 0;  // the numbers of elements of an update, and of all its statistics
  bool named_;
  py::object whole_;
  engine::StatisticsRules rules_;
};

}  // namespace fastagg::bindings
