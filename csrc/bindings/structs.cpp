#include "structs.h"

#include "../math/optimizers.h"

namespace py = pybind11;

namespace fastagg {
namespace {

void require(bool holds, const char* otherwise) {
  if (!holds) throw SettingError(otherwise);
}

Rows rows_of(const std::string& format, int64_t size, int64_t slots, Address data, Address scales) {
  Rows rows{named(format, RowFormats{}, "rows"), size, slots, at<void>(data), at(scales)};
  require(size >= 0 && slots >= 1, "rows: expected at least one slot and no negative size");
  require(data != 0 || size == 0, "rows: data is missing");
  if ((scales != 0) != (rows.row_scales() > 0))
    throw SettingError("rows: " + format + (scales != 0 ? " has no scales" : " needs scales"));
  return rows;
}

template <typename... Each>
py::dict facts_of_optimizers(List<Each...>) {
  py::dict facts;
  const auto add = [&](auto kind) {
    using Kind = decltype(kind);
    py::list owned;
    if (Kind::kM) owned.append("m");
    if (Kind::kV) owned.append("v");
    if (Kind::kVhat) owned.append("vhat");
    facts[Kind::kName] = py::tuple(owned);
  };
  (add(Each{}), ...);
  return facts;
}

template <typename... Each>
py::list plain_optimizers(List<Each...>) {
  py::list names;
  ((Each::kPlain ? names.append(Each::kName) : void()), ...);
  return names;
}

template <typename... Each>
py::dict facts_of_formats(List<Each...>) {
  py::dict facts;
  ((facts[Each::kName] = py::make_tuple(Each::kBits, Each::kLevels > 0)), ...);
  return facts;
}

}  // namespace

void add_piece(Update& update, Address address, int64_t size, int dtype) {
  if (size < 0) throw SettingError("pieces: a negative number of elements");
  if (address == 0 && size != 0) throw SettingError("pieces: an address of zero");
  if (dtype != kEncoded && (dtype < 0 || dtype >= kDtypes))
    throw SettingError("pieces: unknown dtype " + std::to_string(dtype));
  update.add(at<const void>(address), size, static_cast<Dtype>(dtype));
}

Update update_of(const Pieces& pieces) {
  Update update;
  update.pieces.reserve(pieces.size());
  for (const auto& [address, size, dtype] : pieces) add_piece(update, address, size, dtype);
  return update;
}

int optimizer_named(const std::string& name) { return named(name, Optimizers{}, "optimizer"); }

void check_step(const Update& update, const Direction& direction, const Optimizer& optimizer) {
  const bool caches = direction.kind == kMean || direction.kind == kCalibrated;
  if (!optimizer.steps() && !caches) throw SettingError("step: this direction needs an optimizer");
  if (direction.kind == kCalibrated && optimizer.steps() && direction.sum.values == nullptr)
    throw SettingError("calibrated: a step needs the sum");
  if (direction.kind == kCalibrated && !optimizer.steps() && direction.buffer.out == nullptr)
    throw SettingError("calibrated: without a step it needs a buffer with out");
  if (optimizer.steps() && update.size > 0 && (optimizer.x == nullptr || optimizer.x_out == nullptr))
    throw SettingError("optimizer: x and x_out are needed");
}

void check_slot(const Rows& rows, int64_t slot) {
  if (slot < 0 || slot >= rows.slots) throw SettingError("slot: no slot " + std::to_string(slot));
}

void bind_structs(py::module_& m) {
  using py::arg;
  const py::kw_only by_name;

  m.attr("optimizers") = facts_of_optimizers(Optimizers{});     // name -> the names of the optimizer's moments
  m.attr("plain_optimizers") = plain_optimizers(Optimizers{});  // names of optimizers that cannot have 8-bit moments
  m.attr("row_formats") = facts_of_formats(RowFormats{});       // name -> (bits per element, whether rows have scales)
  m.attr("scale_block") = kScaleBlock;
  m.attr("block") = kBlock;

  py::class_<Update>(m, "Update")
      .def(py::init(&update_of), arg("pieces"))
      // Makes an update of one piece, the usual case. The call takes a microsecond less than with a list of pieces.
      .def_static(
          "one",
          [](Address address, int64_t size, int dtype) {
            Update update;
            add_piece(update, address, size, dtype);
            return update;
          },
          arg("address"), arg("size"), arg("dtype"))
      .def_readonly("size", &Update::size);
  py::class_<Rows>(m, "Rows")
      .def(py::init(&rows_of), by_name, arg("format"), arg("size"), arg("slots"), arg("data"), arg("scales"))
      .def_readonly("size", &Rows::size)
      .def_readonly("slots", &Rows::slots);
}

}  // namespace fastagg
