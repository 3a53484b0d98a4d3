// Binds encoded updates (csrc/store/encoded.h), for fastagg/encoding and fastagg/storage.
#include "../cpu/cpu.h"
#include "../store/encoded.h"
#include "host.h"
#include "structs.h"

namespace fastagg::bindings {
namespace {

using py::arg;
using store::Encoded;

// Encodes an update. `values`: the encoding of a top-k's values. `count`: how many values a top-k keeps. `ends`: where
// the model's arrays end, for a format with a scale for each array. `key`: the key of random rounding.
std::shared_ptr<Encoded> encode(const Update& update, const std::string& format, const std::string& values,
                                int64_t count, const std::vector<int64_t>& ends, std::pair<uint64_t, uint64_t> key) {
  const GilRelease released;
  const int place = named(format, WireFormats{}, "format");
  if (wire_facts(place).tensors) count = static_cast<int64_t>(ends.size());
  const auto made = Encoded::make(place, named(values, ValueCodecs{}, "values"), update.size, count);
  if (made->ends != nullptr) std::copy(ends.begin(), ends.end(), const_cast<int64_t*>(made->ends));
  if (!cpu::encode(update, *made, {key.first, key.second, 0}))
    throw Refusal(Why::kNotFinite, "encode: NaN or infinity in the update");
  made->check();
  return made;
}

// Returns all bytes of an Encoded as a read-only NumPy array in the same memory.
py::array bytes_of(const py::object& self) {
  const auto& encoded = py::cast<const Encoded&>(self);
  py::array_t<uint8_t> bytes({encoded.nbytes}, {int64_t{1}}, encoded.bytes, self);
  bytes.attr("flags").attr("writeable") = false;
  return std::move(bytes);
}

py::list described(const std::vector<Encoded::Array>& arrays) {
  py::list rows;
  for (const Encoded::Array& array : arrays)
    rows.append(py::make_tuple(kWireParts[array.part], array.type, array.count, array.begin));
  return rows;
}

}  // namespace

void bind_encoding(py::module_& to) {
  py::module_ m = to.def_submodule("encoding", "Encoded updates.");
  py::dict formats;  // name -> whether the format is unbiased, in the order of the formats' numbers in a header
  for (int place = 0; place < WireFormats::kCount; ++place)
    formats[wire_facts(place).name] = wire_facts(place).unbiased;
  m.attr("formats") = formats;
  m.attr("values") = names_of(ValueCodecs{});
  py::class_<Encoded, std::shared_ptr<Encoded>>(m, "Encoded")
      .def(py::init([](const py::buffer& buffer, bool own) {
             const py::buffer_info info = buffer.request();
             if (info.ndim > 0 && (info.ndim != 1 || info.strides[0] != info.itemsize))
               throw Refusal(Why::kEncoding, "encoded update: bytes that do not lie one behind the other");
             // Bytes that never change are read in place. `own`: whether the caller promises not to change the bytes.
             store::Owner owner = own || PyBytes_CheckExact(buffer.ptr()) ? owner_of(buffer) : nullptr;
             const GilRelease released;
             return Encoded::read(info.ptr, static_cast<int64_t>(info.size * info.itemsize), std::move(owner));
           }),
           arg("bytes"), arg("own") = false)
      .def_property_readonly(
          "address",
          [](const Encoded& update) { return reinterpret_cast<uintptr_t>(static_cast<const Wire*>(&update)); })
      .def_readonly("size", &Encoded::size)
      .def_readonly("count", &Encoded::count)
      .def_readonly("nbytes", &Encoded::nbytes)
      .def_property_readonly("format", [](const Encoded& update) { return wire_facts(update.format).name; })
      .def_property_readonly("bytes", &bytes_of)
      .def("arrays", [](const Encoded& update) { return described(update.arrays()); })
      .def("decode", [](const Encoded& update, Address out) {
        const GilRelease released;
        cpu::accumulate(update.update(), nullptr, 1.0f, at(out));
      });
  m.def(
      "layout",
      [](const py::array_t<uint8_t, py::array::c_style>& head) {
        if (head.size() != kWireAligned) throw Refusal(Why::kEncoding, "encoded update: a header of another length");
        int64_t nbytes = 0;
        const auto arrays = Encoded::layout(head.data(), &nbytes);
        return py::make_tuple(nbytes, described(arrays));
      },
      arg("head"));
  m.def("encode", &encode, arg("update"), py::kw_only(), arg("format"), arg("values"), arg("count"), arg("ends"),
        arg("key"));
}

}  // namespace fastagg::bindings
