// Binds the engine's directions, the rows of client caches, and memory, for fastagg/rules. A direction combines updates
// into the vector along which the optimizer steps.
#include "../engine/aligned.h"
#include "../engine/all_clients.h"
#include "../engine/buffers.h"
#include "../engine/calibrated.h"
#include "../engine/on_cpu.h"
#include "../engine/ordered.h"
#include "../engine/robust.h"
#include "../engine/single.h"
#include "../store/row_cut.h"
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

// -- memory and kernels

#if defined(FASTAGG_CUDA)
// Memory on a CUDA device. Torch allocates the memory on the current stream of the calling thread.
class DeviceMemory : public store::Memory {
 public:
  // `allocate` is a Python function. `allocate(nbytes)` returns a tensor of `nbytes` bytes on the device.
  DeviceMemory(int device, py::function allocate)
      : queue(cuda::queue_on(device)), device_(device), allocate_(owner_of(std::move(allocate))) {}

  store::Vector bytes(int64_t nbytes) override {
    const GilHolder held;
    return vector_of(py::handle(object_of(allocate_))(nbytes));
  }
  void zero(void* at, int64_t nbytes) override {
    in_order([&](const cuda::LaunchPlace& where) { cuda::zero(at, nbytes, where); });
  }
  void copy(void* to, const void* from, int64_t nbytes) override {
    in_order([&](const cuda::LaunchPlace& where) { cuda::copy(to, from, nbytes, where); });
  }
  void put(void* to, const void* host, int64_t nbytes) override {
    in_order([&](const cuda::LaunchPlace& where) { cuda::copy_now(to, host, nbytes, where); });
  }
  void get(void* host, const void* from, int64_t nbytes) override { put(host, from, nbytes); }
  bool is_host() const override { return false; }

  const std::shared_ptr<cuda::Queue> queue;

 private:
  template <typename Act>
  void in_order(Act act) {
    const cuda::LaunchPlace where{device_, current_stream(device_)};
    queue->begin(where.stream);
    struct QueueEnd {
      ~QueueEnd() { queue.end(); }
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

std::shared_ptr<AllClients> all_clients(double sign, AllClients::Setting setting, const Rows& rows, uint64_t seed,
                                        Address sum, std::shared_ptr<Resummation> resummation) {
  if (setting.clients < 1) throw SettingError("all clients: expected at least one");
  if (rows.slots != setting.clients) throw SettingError("all clients: expected a row for each");
  setting.seed = seed, setting.sum = at(sum);
  return std::make_shared<AllClients>(sign, setting, rows, std::move(resummation));
}

std::shared_ptr<CalibratedDirection> calibrated(double sign, const CalibratedDirection::Setting& setting,
                                                const Rows& rows, const std::tuple<uint64_t, Address, Address>& where,
                                                std::shared_ptr<Resummation> resummation) {
  if (setting.clients < 1 || setting.capacity < 1)
    throw SettingError("calibrated: expected at least one client and update");
  const auto& [seed, sum, acc] = where;
  return std::make_shared<CalibratedDirection>(sign, setting, rows, seed, at(sum), at(acc), std::move(resummation));
}

// Returns a dict: a robust rule's name -> (names of its settings, whether the rule compares whole updates).
py::dict facts_of_rules() {
  py::dict facts;
  for (const RobustRule& rule : robust_rules())
    facts[rule.name] = py::make_tuple(py::tuple(py::cast(rule.settings)), rule.shares != nullptr);
  return facts;
}

// -- rows

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
  bind_rows(m);
  py::class_<Resummation, std::shared_ptr<Resummation>>(m, "Resummation")
      .def(py::init([](const Rows& rows, std::shared_ptr<store::Memory> memory, py::object owner) {
             return std::make_shared<Resummation>(rows, std::move(memory), owner_of(std::move(owner)));
           }),
           arg("rows"), by_name, arg("memory"), arg("owner"))
      .def("nbytes", &Resummation::nbytes)
      .def("state", [](Resummation& sum) { return saved([&](Archive& archive) { sum.fields(archive); }); })
      .def("load", [](Resummation& sum, const py::dict& state) {
        load(state, [&](Archive& archive) { sum.fields(archive); });
      });

  py::class_<DirectionState, std::shared_ptr<DirectionState>>(m, "Direction")
      .def("state",
           [](DirectionState& direction) { return saved([&](Archive& archive) { direction.fields(archive); }); })
      .def("load", [](DirectionState& direction,
                      const py::dict& state) { load(state, [&](Archive& archive) { direction.fields(archive); }); })
      .def("nbytes", &DirectionState::nbytes);
  py::class_<SingleDirection, DirectionState, std::shared_ptr<SingleDirection>>(m, "Single")
      .def(py::init<double, bool, double>(), by_name, arg("sign"), arg("blend") = false, arg("divisor") = 0.0);
  py::class_<AlignedDirection, SingleDirection, std::shared_ptr<AlignedDirection>>(m, "Aligned")
      .def(py::init([](double sign, std::array<double, 7> setting, std::vector<int64_t> ends) {
             const auto [rho, c_ok, k_s, k_d, kappa, beta_max, eps] = setting;
             return std::make_shared<AlignedDirection>(
                 sign, AlignedDirection::Setting{rho, c_ok, k_s, k_d, kappa, beta_max, eps}, std::move(ends));
           }),
           by_name, arg("sign"), arg("setting"), arg("ends"));
  py::class_<Combiner, std::shared_ptr<Combiner>>(m, "Combine");
  py::class_<RobustCombiner, Combiner, std::shared_ptr<RobustCombiner>>(m, "Robust")
      .def(py::init([](const std::string& rule, const py::kwargs& settings) {
             using S = RobustSetting;
             return RobustCombiner(rule,
                                   made_of<S>(settings, "trim", &S::trim, "f", &S::f, "keep", &S::keep, "iterations",
                                              &S::iterations, "smoothing", &S::smoothing, "radius", &S::radius));
           }),
           arg("rule"))
      .def("check", &RobustCombiner::check);
  m.attr("robust_rules") = facts_of_rules();
  using Round = BufferedDirection::Setting;
  bind_fields<Round>(m, "BufferedSetting", "capacity", &Round::capacity, "synchronous", &Round::synchronous,
                     "closes_first", &Round::closes_first, "at_least", &Round::at_least, "grace", &Round::grace,
                     "divisor", &Round::divisor, "size", &Round::size, "combine", &Round::combine);
  using Private = Privacy::Setting;
  bind_fields<Private>(m, "PrivacySetting", "noise", &Private::noise, "clip", &Private::clip, "quantile",
                       &Private::quantile, "rate", &Private::rate, "count_noise", &Private::count_noise, "omega",
                       &Private::omega, "theta", &Private::theta);
  py::class_<BufferedDirection, DirectionState, std::shared_ptr<BufferedDirection>>(m, "Buffered")
      .def(py::init(&engine::buffer_of), by_name, arg("sign"), arg("setting"), arg("memory"),
           arg("privacy") = py::none())
      .def("set_key",
           [](BufferedDirection& buffered, const std::string& bytes) {
             ChaChaKey key;
             if (buffered.is.privacy == nullptr || bytes.size() != sizeof key.words)
               throw SettingError("a key has 32 bytes");
             std::memcpy(key.words, bytes.data(), sizeof key.words);
             buffered.is.privacy->set_key(key);
           })
      .def_property_readonly("key_id", [](BufferedDirection& buffered) { return buffered.is.privacy->key_id(); })
      .def_property_readonly("clip", [](BufferedDirection& buffered) { return buffered.is.privacy->clip(); })
      .def_property_readonly("room", &BufferedDirection::room)
      .def_property_readonly("total", &BufferedDirection::total)
      .def_property_readonly("holds_sum",
                             [](const BufferedDirection& buffered) { return static_cast<bool>(buffered.sum.acc); })
      .def("bound_sum", [](BufferedDirection& buffered, double bound) {
        check_bound(bound);
        buffered.round.bound += bound;
      });
  py::class_<OrderedDirection, DirectionState, std::shared_ptr<OrderedDirection>>(m, "Ordered")
      .def(py::init<std::shared_ptr<DirectionState>>(), arg("round"));
  using Setting = AllClients::Setting;
  bind_fields<Setting>(m, "AllClientsSetting", "clients", &Setting::clients, "full", &Setting::full, "direct",
                       &Setting::direct, "max_delay", &Setting::max_delay, "by_dispatch", &Setting::by_dispatch);
  py::class_<AllClients, DirectionState, std::shared_ptr<AllClients>>(m, "AllClients")
      .def(py::init(&all_clients), by_name, arg("sign"), arg("setting"), arg("rows"), arg("seed"), arg("sum"),
           arg("resummation"));
  py::class_<Differences, DirectionState, std::shared_ptr<Differences>>(m, "Differences")
      .def(py::init([](double sign, int64_t clients, bool full, Address sum) {
             if (clients < 1) throw SettingError("differences: expected at least one client");
             return std::make_shared<Differences>(sign, clients, full, at(sum));
           }),
           by_name, arg("sign"), arg("clients"), arg("full"), arg("sum"));
  py::class_<CalibratedDirection, DirectionState, std::shared_ptr<CalibratedDirection>> of_calibrated(m, "Calibrated");
  using Calibration = CalibratedDirection::Setting;
  bind_fields<Calibration>(m, "CalibratedSetting", "clients", &Calibration::clients, "capacity", &Calibration::capacity,
                           "from_start", &Calibration::from_start);
  of_calibrated.def(py::init(&calibrated), by_name, arg("sign"), arg("setting"), arg("rows"), arg("where"),
                    arg("resummation"));
}

}  // namespace fastagg::bindings
