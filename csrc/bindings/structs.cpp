#include "structs.h"

#include "../math/optimizers.h"

namespace py = pybind11;

namespace fastagg {
namespace {

void require(bool holds, const char* otherwise) {
  if (!holds) throw Refused(otherwise);
}

void add_piece(Update& update, Address address, int64_t size, int dtype) {
  if (size < 0) throw Refused("pieces: a negative number of elements");
  if (address == 0 && size != 0) throw Refused("pieces: an address of zero");
  if (dtype < 0 || dtype >= kDtypes) throw Refused("pieces: unknown dtype " + std::to_string(dtype));
  update.add(at<const void>(address), size, static_cast<Dtype>(dtype));
}

Update make_update(int64_t origin) {
  if (origin < 0 || origin % kGroup != 0)
    throw Refused("origin: expected a multiple of " + std::to_string(kGroup) + ", got " + std::to_string(origin));
  Update update;
  update.origin = origin;
  return update;
}

Update make_one(Address address, int64_t size, int dtype, int64_t origin) {
  Update update = make_update(origin);
  add_piece(update, address, size, dtype);
  return update;
}

Rows rows_of(const std::string& format, int64_t size, int64_t slots, Address data, Address scales) {
  Rows rows{named(format, RowFormats{}, "rows"), size, slots, at<void>(data), at(scales)};
  require(size >= 0 && slots >= 1, "rows: expected at least one slot and no negative size");
  require(data != 0 || size == 0, "rows: data is missing");
  if ((scales != 0) != (rows.row_scales() > 0))
    throw Refused("rows: " + format + (scales != 0 ? " has no scales" : " needs scales"));
  return rows;
}

// Without rows, the update itself is added to the sum.
Exchange exchange_of(const RandomKey& key, const Rows* given, int64_t read, int64_t write, const Rows* write_to) {
  require(given != nullptr || (read == -1 && write == -1), "exchange: rows are needed to read or write one");
  if (given == nullptr) return {kPlainRows, {}, {}, key};
  const Rows& rows = *given;
  const Rows& into = write_to == nullptr ? rows : *write_to;
  require(into.format == rows.format && into.size == rows.size, "write_to: rows of another format or size");
  if (read < -1 || read >= rows.slots) throw Refused("read: no slot " + std::to_string(read));
  if (write < -1 || write >= into.slots) throw Refused("write: no slot " + std::to_string(write));
  return {rows.format, rows.row(read), into.row(write), key};
}

Sum sum_of(Address values, float entering, float leaving, float scale, const Rows* rows,
           const std::vector<std::pair<int64_t, float>>& terms) {
  require(values != 0, "sum: values are missing");
  Sum sum{at(values), entering, leaving, scale, {}};
  require(terms.empty() || rows != nullptr, "sum: terms need rows");
  for (const auto& [slot, weight] : terms) {
    if (slot < 0 || slot >= rows->slots) throw Refused("terms: no slot " + std::to_string(slot));
    sum.terms.push_back({rows->row(slot), weight});
  }
  return sum;
}

Moments moments_of(Address m, Address v, Address vhat) {
  Moments moments;
  moments.m = at(m);
  moments.v = at(v);
  moments.vhat = at(vhat);
  return moments;
}

// `units`: two rows of `blocks` floats, one for m, one for v and vhat.
Moments coded_moments_of(Address m, Address v, Address vhat, Address units, int64_t blocks, const RandomKey& key) {
  require(units != 0 && m != 0, "moments in 8 bits: m and its units are needed");
  Moments moments;
  moments.coded_m = at<uint8_t>(m);
  moments.coded_v = at<uint8_t>(v);
  moments.coded_vhat = at<uint8_t>(vhat);
  moments.units_m = at(units);
  moments.units_v = v == 0 ? nullptr : at(units) + blocks;
  moments.key = key;
  return moments;
}

Optimizer optimizer_of(const std::string& kind, const Hyper& hyper, const Moments& moments, Address x, Address x_out) {
  Optimizer optimizer{optimizer_named(kind), hyper, moments, at(x), at(x_out)};
  const bool coded = moments.coded();
  const auto check = [&](const char* name, const void* given, bool owned) {
    if ((given != nullptr) != owned) throw Refused(kind + (owned ? " needs " : " has no ") + name);
  };
  visit_at(optimizer.kind, Optimizers{}, [&](auto one) {
    using Kind = decltype(one);
    check("m", coded ? static_cast<const void*>(moments.coded_m) : moments.m, Kind::kM);
    check("v", coded ? static_cast<const void*>(moments.coded_v) : moments.v, Kind::kV);
    check("vhat", coded ? static_cast<const void*>(moments.coded_vhat) : moments.vhat, Kind::kVhat);
  });
  return optimizer;
}

Direction make_single(double gain, double weight) {
  Direction direction;
  direction.gain = gain;
  direction.weight = weight;
  return direction;
}

Direction make_flush(const Buffer& buffer, double gain, double weight) {
  require(buffer.acc != nullptr, "flush: a buffer with acc is needed");
  Direction direction = make_single(gain, weight);
  direction.kind = kFlush;
  direction.buffer = buffer;
  return direction;
}

Direction make_blend(Address base, double gain, double weight) {
  require(base != 0, "blend: base is needed");
  Direction direction = make_single(gain, weight);
  direction.kind = kBlend;
  direction.base = at(base);
  return direction;
}

Direction make_mean(const Exchange& row, const Sum& sum, double gain) {
  Direction direction = make_single(gain, 1.0);
  direction.kind = kMean;
  direction.row = row;
  direction.sum = sum;
  return direction;
}

Direction make_calibrated(const Exchange& row, const Buffer& buffer, const Sum* sum, double gain, double weight) {
  Direction direction = make_single(gain, weight);
  direction.kind = kCalibrated;
  direction.row = row;
  direction.buffer = buffer;
  if (sum != nullptr) direction.sum = *sum;
  return direction;
}

template <typename... Each>
py::dict facts_of_optimizers(List<Each...>) {
  py::dict found;
  const auto add = [&](auto one) {
    using Kind = decltype(one);
    py::list owned;
    if (Kind::kM) owned.append("m");
    if (Kind::kV) owned.append("v");
    if (Kind::kVhat) owned.append("vhat");
    found[Kind::kName] = py::tuple(owned);
  };
  (add(Each{}), ...);
  return found;
}

template <typename... Each>
py::dict facts_of_formats(List<Each...>) {
  py::dict found;
  ((found[Each::kName] = py::make_tuple(Each::kBits, Each::kLevels > 0)), ...);
  return found;
}

}  // namespace

Update update_of(const Pieces& pieces, int64_t origin) {
  Update update = make_update(origin);
  update.pieces.reserve(pieces.size());
  for (const auto& [address, size, dtype] : pieces) add_piece(update, address, size, dtype);
  return update;
}

Hyper hyper_of(double lr, double beta1, double beta2, double eps, double root_scale) {
  return {static_cast<float>(lr),        static_cast<float>(beta1),       static_cast<float>(1.0 - beta1),
          static_cast<float>(beta2),     static_cast<float>(1.0 - beta2), static_cast<float>(eps),
          static_cast<float>(root_scale)};
}

int optimizer_named(const std::string& name) { return named(name, Optimizers{}, "optimizer"); }

void check_step(const Update& update, const Direction& direction, const Optimizer& optimizer) {
  const bool caches = direction.kind == kMean || direction.kind == kCalibrated;
  if (!optimizer.steps() && !caches) throw Refused("step: this direction needs an optimizer");
  if (direction.kind == kCalibrated && optimizer.steps() && direction.sum.values == nullptr)
    throw Refused("calibrated: a step needs the sum");
  if (direction.kind == kCalibrated && !optimizer.steps() && direction.buffer.out == nullptr)
    throw Refused("calibrated: without a step it needs a buffer with out");
  if (optimizer.steps() && update.size > 0 && (optimizer.x == nullptr || optimizer.x_out == nullptr))
    throw Refused("optimizer: x and x_out are needed");
}

void check_blocks(const Rows& rows, int64_t first, int64_t last, int64_t stride) {
  const int64_t blocks = (rows.size + kBlock - 1) / kBlock;
  if (first < 0 || last < 0 || last > blocks || stride < 1)
    throw Refused("blocks: expected 0 <= first, 0 <= last <= " + std::to_string(blocks) + " and stride >= 1, got " +
                  std::to_string(first) + ", " + std::to_string(last) + ", " + std::to_string(stride));
}

void check_slot(const Rows& rows, int64_t slot) {
  if (slot < 0 || slot >= rows.slots) throw Refused("slot: no slot " + std::to_string(slot));
}

void check_job(const Rows& rows, const RowJob& job) {
  if (job.block < 0 || job.block >= (rows.size + kBlock - 1) / kBlock)
    throw Refused("block: no block " + std::to_string(job.block));
  if (job.first_slot < 0 || job.first_slot > job.last_slot || job.last_slot > rows.slots)
    throw Refused("slots: expected 0 <= first <= last <= " + std::to_string(rows.slots) + ", got " +
                  std::to_string(job.first_slot) + ", " + std::to_string(job.last_slot));
}

void bind_structs(py::module_& m) {
  using py::arg;
  const py::kw_only by_name;

  m.attr("optimizers") = facts_of_optimizers(Optimizers{});  // name -> the moments it owns
  m.attr("row_formats") = facts_of_formats(RowFormats{});    // name -> bits per element, whether it has scales
  m.attr("scale_block") = kScaleBlock;
  m.attr("block") = kBlock;
  m.attr("group") = kGroup;

  py::class_<RandomKey>(m, "RandomKey")
      .def(py::init([](uint64_t seed, uint64_t step, uint32_t client) { return RandomKey{seed, step, client}; }),
           by_name, arg("seed"), arg("step"), arg("client"));
  py::class_<Update>(m, "Update")
      .def(py::init(&update_of), arg("pieces"), by_name, arg("origin") = 0)
      // Makes an update of one piece without a list. It is the usual case, and saves a microsecond.
      .def_static("one", &make_one, arg("address"), arg("size"), arg("dtype"), arg("origin"))
      .def_readonly("size", &Update::size)
      .def_readonly("origin", &Update::origin);
  py::class_<Rows>(m, "Rows")
      .def(py::init(&rows_of), by_name, arg("format"), arg("size"), arg("slots"), arg("data"), arg("scales"))
      .def_readonly("size", &Rows::size)
      .def_readonly("slots", &Rows::slots);
  py::class_<Exchange>(m, "Exchange")
      .def(py::init(&exchange_of), by_name, arg("key"), arg("rows") = nullptr, arg("read") = -1, arg("write") = -1,
           arg("write_to") = nullptr);
  py::class_<Buffer>(m, "Buffer")
      .def(py::init([](Address acc, Address out, float scale) { return Buffer{at(acc), at(out), scale, {}}; }), by_name,
           arg("acc") = 0, arg("out") = 0, arg("scale") = 1.0f);
  py::class_<Sum>(m, "Sum").def(py::init(&sum_of), by_name, arg("values"), arg("entering") = 1.0f,
                                arg("leaving") = 1.0f, arg("scale") = 1.0f, arg("rows") = nullptr,
                                arg("terms") = std::vector<std::pair<int64_t, float>>{});
  py::class_<Direction>(m, "Direction")
      .def_static("single", &make_single, by_name, arg("gain") = 1.0, arg("weight") = 1.0)
      .def_static("flush", &make_flush, by_name, arg("buffer"), arg("gain") = 1.0, arg("weight") = 1.0)
      .def_static("blend", &make_blend, by_name, arg("base"), arg("gain") = 1.0, arg("weight") = 1.0)
      .def_static("mean", &make_mean, by_name, arg("row"), arg("sum"), arg("gain") = 1.0)
      .def_static("calibrated", &make_calibrated, by_name, arg("row"), arg("buffer"), arg("sum") = nullptr,
                  arg("gain") = 1.0, arg("weight") = 1.0);
  py::class_<Hyper>(m, "Hyper")
      .def(py::init(&hyper_of), by_name, arg("lr"), arg("beta1") = 0.0, arg("beta2") = 0.0, arg("eps") = 1.0,
           arg("root_scale") = 1.0);
  py::class_<Moments>(m, "Moments")
      .def(py::init(&moments_of), by_name, arg("m") = 0, arg("v") = 0, arg("vhat") = 0)
      .def_static("coded", &coded_moments_of, by_name, arg("m"), arg("v"), arg("vhat"), arg("units"), arg("blocks"),
                  arg("key"));
  py::class_<Optimizer>(m, "Optimizer")
      .def(py::init<>(), "No step: only sums and rows move.")
      .def(py::init(&optimizer_of), by_name, arg("kind"), arg("hyper"), arg("moments"), arg("x"), arg("x_out"));
}

}  // namespace fastagg
