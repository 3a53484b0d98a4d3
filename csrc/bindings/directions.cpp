// Binds the states of directions, the rows of clients, and where they are. fastagg/rules makes them.
#include "../engine/aligned.h"
#include "../engine/all_clients.h"
#include "../engine/buffers.h"
#include "../engine/calibrated.h"
#include "../engine/on_cpu.h"
#include "../engine/ordered.h"
#include "../engine/robust.h"
#include "../engine/single.h"
#include "../store/row_cut.h"
#include "../store/row_file.h"
#include "archive.h"
#include "arrays.h"
#include "host.h"
#if defined(FASTAGG_CUDA)
#include "../engine/on_cuda.h"
#endif
#include "structs.h"

namespace fastagg::bindings {
namespace {

using namespace engine;
using py::arg;
using store::RowFile;

// -- memory and kernels

#if defined(FASTAGG_CUDA)
// Memory of a device. Torch allocates it, on the caller's current stream.
class DeviceMemory : public store::Memory {
 public:
  // `allocate(nbytes)` gives a tensor.
  DeviceMemory(int device, py::function allocate)
      : queue(cuda::queue_on(device)), device_(device), allocate_(owner_of(std::move(allocate))) {}

  store::Vector bytes(int64_t nbytes) override {
    const Holds held;
    return vector_of(py::handle(object_of(allocate_))(nbytes));
  }
  void zero(void* at, int64_t nbytes) override {
    in_order([&](const cuda::Where& where) { cuda::zero(at, nbytes, where); });
  }
  void copy(void* to, const void* from, int64_t nbytes) override {
    in_order([&](const cuda::Where& where) { cuda::copy(to, from, nbytes, where); });
  }
  void put(void* to, const void* host, int64_t nbytes) override {
    in_order([&](const cuda::Where& where) { cuda::copy_now(to, host, nbytes, where); });
  }
  void get(void* host, const void* from, int64_t nbytes) override { put(host, from, nbytes); }
  bool is_host() const override { return false; }

  const std::shared_ptr<cuda::Queue> queue;

 private:
  template <typename Act>
  void in_order(Act act) {
    const cuda::Where where{device_, current_stream(device_)};
    queue->begin(where.stream);
    struct Ends {
      ~Ends() { queue.end(); }
      cuda::Queue& queue;
    } const ends{*queue};
    act(where);
  }

  int device_;
  store::Owner allocate_;
};

Place on_device(int device, py::function allocate) {
  const auto memory = std::make_shared<DeviceMemory>(device, std::move(allocate));
  return on_cuda({device, [device] { return current_stream(device); }, memory->queue, memory});
}
#endif

// -- directions

std::shared_ptr<AllClients> all_clients(double sign, AllClients::Setting setting, std::shared_ptr<store::RowStore> rows,
                                        uint64_t seed, Address sum) {
  if (setting.clients < 1) throw Refused("all clients: expected at least one");
  if (rows == nullptr || rows->shape().slots != setting.clients) throw Refused("all clients: expected a row for each");
  setting.resums = dynamic_cast<Resummation*>(rows.get()) != nullptr, setting.seed = seed, setting.sum = at(sum);
  return std::make_shared<AllClients>(sign, setting, std::move(rows));
}

std::shared_ptr<Calibrated> calibrated(double sign, const Calibrated::Setting& setting, const Rows& rows,
                                       const std::tuple<uint64_t, Address, Address>& where,
                                       std::shared_ptr<Resummation> resummation) {
  if (setting.clients < 1 || setting.capacity < 1) throw Refused("calibrated: expected at least one client and update");
  const auto& [seed, sum, acc] = where;
  return std::make_shared<Calibrated>(sign, setting, rows, seed, at(sum), at(acc), std::move(resummation));
}

Robust robust(const std::string& rule, double trim, int64_t f, int64_t keep, double radius, int64_t iterations,
              double smoothing) {
  const auto place = static_cast<RobustRule>(named(rule, kRobustNames, "rule"));
  return Robust({place, trim, f, keep, iterations, smoothing, radius});
}

// -- rows on a disk

std::shared_ptr<RowFile> row_file(const std::string& format, std::pair<int64_t, int64_t> shape,
                                  const std::string& path) {
  const auto [size, clients] = shape;
  if (size < 1 || clients < 1) throw Refused("rows: expected at least one parameter and client");
  return std::make_shared<RowFile>(store::RowShape{named(format, RowFormats{}, "rows"), size}, clients, path);
}

py::dict cut_of(RowFile& rows) {
  RowFile::Cut cut;
  {
    const Released released;
    cut = rows.cut();
  }
  py::dict state;
  state["slots"] = array_of(cut.slots.places);
  state["sums"] = py::array_t<int64_t>(array_of(cut.slots.sums));
  state["arrivals"] = cut.arrivals;
  state["shadow"] = array_of(cut.begun);
  return state;
}

// The slots of several checkpoints.
std::vector<store::Slots::Places> places_in(const std::vector<py::object>& given) {
  std::vector<store::Slots::Places> found;
  for (const py::object& slots : given) found.push_back(vector_from<int64_t>(slots));
  return found;
}

void load_cut(RowFile& rows, int file, const py::dict& state, const std::vector<py::object>& kept) {
  RowFile::Cut cut;
  cut.slots = {vector_from<int64_t>(state["slots"]), vector_from<uint32_t>(state["sums"])};
  cut.arrivals = py::cast<int64_t>(state["arrivals"]);
  cut.begun = vector_from<double>(state["shadow"]);
  rows.take(file, &cut, places_in(kept));
}

// The checksums of a row; none if it is not whole.
std::vector<uint32_t> sums_of(const RowFile& rows, std::string_view row) {
  const store::RowShape& shape = rows.slots.shape;
  if (static_cast<int64_t>(row.size()) != shape.stride()) return {};
  std::vector<uint32_t> found(static_cast<size_t>(shape.windows()));
  shape.sums(shape.row_at(const_cast<char*>(row.data())), found.data());  // it is only read
  return found;
}

py::dict counts_of(const RowFile& rows) {
  py::dict found;
  found["lost"] = rows.lost;
  found["read"] = rows.slots.bytes_read;
  found["written"] = rows.slots.bytes_written;
  found["on_disk"] = rows.slots.nbytes_on_disk();
  return found;
}

void bind_rows(py::module_& m) {
  const py::kw_only by_name;
  py::class_<store::RowCut, std::shared_ptr<store::RowCut>>(m, "RowCut")
      .def(py::init([](const Rows& rows, const std::vector<int64_t>& slots, std::shared_ptr<store::Memory> memory,
                       py::object owner) {
             return std::make_shared<store::RowCut>(rows, slots, std::move(memory), owner_of(std::move(owner)));
           }),
           arg("rows"), by_name, arg("slots"), arg("memory"), arg("owner"))
      .def("next",
           [](store::RowCut& cut) -> py::object {
             const auto row = cut.next();
             if (!row) return py::none();
             return py::make_tuple(row->place, py::bytes(row->data.data(), row->data.size()),
                                   py::bytes(row->scales.data(), row->scales.size()));
           })
      .def_readonly("count", &store::RowCut::count);
  py::class_<RowFile, store::RowStore, std::shared_ptr<RowFile>>(m, "RowFile")
      .def(py::init(&row_file), by_name, arg("format"), arg("shape"), arg("path"))
      .def("on_first_use",
           [](RowFile& rows, py::function claim) {
             const store::Owner held = owner_of(std::move(claim));
             rows.claim = [held] {
               const Holds holds;
               py::handle(object_of(held))();
             };
           })
      .def("on_loss",
           [](RowFile& rows, py::function tell) {
             const store::Owner held = owner_of(std::move(tell));
             rows.on_loss = [held](const std::vector<int64_t>& clients) {
               const Holds holds;
               try {
                 py::handle(object_of(held))(clients);
               } catch (py::error_already_set& error) {  // they are given up already
                 error.discard_as_unraisable("the report of lost rows");
               }
             };
           })
      .def("open", [](RowFile& rows, int file) { rows.take(file, nullptr, {}); })
      .def("load", &load_cut, arg("file"), arg("state"), arg("kept"))
      .def("close", &RowFile::close, py::call_guard<Released>())
      .def(
          "sync",
          [](RowFile& rows) {
            if (rows.slots.is_open()) rows.slots.sync();
          },
          py::call_guard<Released>())
      .def("cut", &cut_of)
      .def("keep", [](RowFile& rows, const std::vector<py::object>& kept) { rows.slots.keep(places_in(kept)); })
      .def("sums", &sums_of)
      .def("counts", &counts_of)
      .def_property_readonly("places", [](const RowFile& rows) { return array_of(rows.slots.places()); })
      .def_property_readonly("is_open", [](const RowFile& rows) { return rows.slots.is_open(); })
      .def_property_readonly("windows", [](const RowFile& rows) { return rows.slots.shape.windows(); })
      .def_static("stride", [](const std::string& format, int64_t size) {
        return store::RowShape{named(format, RowFormats{}, "rows"), size}.stride();
      });
}

}  // namespace

void bind_directions(py::module_& m) {
  const py::kw_only by_name;
  py::class_<store::Memory, std::shared_ptr<store::Memory>>(m, "Memory");
  py::class_<Place>(m, "Place").def_readonly("memory", &Place::memory);
  m.def("on_cpu", &on_cpu);
#if defined(FASTAGG_CUDA)
  m.def("on_device", &on_device, arg("device"), arg("allocate"));
#endif
  py::class_<store::RowStore, std::shared_ptr<store::RowStore>>(m, "RowStore");
  bind_rows(m);
  py::class_<RowMemory, store::RowStore, std::shared_ptr<RowMemory>>(m, "RowMemory")
      .def(py::init<const Rows&>(), arg("rows"));
  py::class_<Resummation, RowMemory, std::shared_ptr<Resummation>>(m, "Resummation")
      .def(py::init([](const Rows& rows, std::shared_ptr<store::Memory> memory, py::object owner) {
             return std::make_shared<Resummation>(rows, std::move(memory), owner_of(std::move(owner)));
           }),
           arg("rows"), by_name, arg("memory"), arg("owner"))
      .def("nbytes", &Resummation::nbytes)
      .def("state", [](Resummation& one) { return saved([&](Archive& archive) { one.fields(archive); }); })
      .def("load", [](Resummation& one, const py::dict& state) {
        load(state, [&](Archive& archive) { one.fields(archive); });
      });

  py::class_<DirectionState, std::shared_ptr<DirectionState>>(m, "Direction")
      .def("state", [](DirectionState& one) { return saved([&](Archive& archive) { one.fields(archive); }); })
      .def("load", [](DirectionState& one,
                      const py::dict& state) { load(state, [&](Archive& archive) { one.fields(archive); }); })
      .def("nbytes", &DirectionState::nbytes);
  py::class_<Single, DirectionState, std::shared_ptr<Single>>(m, "Single")
      .def(py::init<double, bool, double>(), by_name, arg("sign"), arg("blend") = false, arg("divisor") = 0.0);
  py::class_<Aligned, Single, std::shared_ptr<Aligned>>(m, "Aligned")
      .def(py::init([](double sign, std::array<double, 7> setting, std::vector<int64_t> ends) {
             const auto [rho, c_ok, k_s, k_d, kappa, beta_max, eps] = setting;
             return std::make_shared<Aligned>(sign, Aligned::Setting{rho, c_ok, k_s, k_d, kappa, beta_max, eps},
                                              std::move(ends));
           }),
           by_name, arg("sign"), arg("setting"), arg("ends"));
  py::class_<Combine, std::shared_ptr<Combine>>(m, "Combine");
  py::class_<Robust, Combine, std::shared_ptr<Robust>>(m, "Robust")
      .def(py::init(&robust), by_name, arg("rule"), arg("trim"), arg("f"), arg("keep"), arg("radius"),
           arg("iterations"), arg("smoothing"));
  using Round = Buffered::Setting;
  bind_fields<Round>(m, "BufferedSetting", "capacity", &Round::capacity, "synchronous", &Round::synchronous,
                     "closes_first", &Round::closes_first, "at_least", &Round::at_least, "grace", &Round::grace,
                     "divisor", &Round::divisor, "size", &Round::size, "combine", &Round::combine);
  using Private = Privacy::Setting;
  bind_fields<Private>(m, "PrivacySetting", "noise", &Private::noise, "clip", &Private::clip, "quantile",
                       &Private::quantile, "rate", &Private::rate, "count_noise", &Private::count_noise, "omega",
                       &Private::omega, "theta", &Private::theta, "separation", &Private::separation, "most",
                       &Private::most);
  py::class_<Buffered, DirectionState, std::shared_ptr<Buffered>>(m, "Buffered")
      .def(py::init(&engine::buffer_of), by_name, arg("sign"), arg("setting"), arg("memory"),
           arg("privacy") = py::none())
      .def("set_key",
           [](Buffered& one, const std::string& bytes) {
             ChaChaKey key;
             if (one.is.privacy == nullptr || bytes.size() != sizeof key.words) throw Refused("a key has 32 bytes");
             std::memcpy(key.words, bytes.data(), sizeof key.words);
             one.is.privacy->set_key(key);
           })
      .def_property_readonly("key_id", [](Buffered& one) { return one.is.privacy->key_id(); })
      .def_property_readonly("clip", [](Buffered& one) { return one.is.privacy->clip(); })
      .def_property_readonly("room", &Buffered::room)
      .def_property_readonly("total", &Buffered::total)
      .def_property_readonly("holds_sum", [](const Buffered& one) { return static_cast<bool>(one.sum.acc); })
      .def("bound_sum", [](Buffered& one, double bound) {
        check_bound(bound);
        one.round.bound += bound;
      });
  py::class_<Ordered, DirectionState, std::shared_ptr<Ordered>>(m, "Ordered")
      .def(py::init<std::shared_ptr<DirectionState>>(), arg("round"));
  py::class_<AllClients, DirectionState, std::shared_ptr<AllClients>> all(m, "AllClients");
  using Setting = AllClients::Setting;
  bind_fields<Setting>(m, "AllClientsSetting", "clients", &Setting::clients, "full", &Setting::full, "direct",
                       &Setting::direct, "max_delay", &Setting::max_delay, "by_dispatch", &Setting::by_dispatch);
  all.def(py::init(&all_clients), by_name, arg("sign"), arg("setting"), arg("rows"), arg("seed"), arg("sum"));
  all.def("give_up", &AllClients::give_up);
  py::class_<Differences, DirectionState, std::shared_ptr<Differences>>(m, "Differences")
      .def(py::init([](double sign, int64_t clients, bool full, Address sum) {
             if (clients < 1) throw Refused("differences: expected at least one client");
             return std::make_shared<Differences>(sign, clients, full, at(sum));
           }),
           by_name, arg("sign"), arg("clients"), arg("full"), arg("sum"));
  py::class_<Calibrated, DirectionState, std::shared_ptr<Calibrated>> of_calibrated(m, "Calibrated");
  using Calibration = Calibrated::Setting;
  bind_fields<Calibration>(m, "CalibratedSetting", "clients", &Calibration::clients, "capacity", &Calibration::capacity,
                           "from_start", &Calibration::from_start);
  of_calibrated.def(py::init(&calibrated), by_name, arg("sign"), arg("setting"), arg("rows"), arg("where"),
                    arg("resummation"));
}

}  // namespace fastagg::bindings
