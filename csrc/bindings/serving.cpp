// Binds the server's road, its ledger and the directions' books. fastagg/serving and fastagg/parts build them.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "../serving/door.h"
#include "../serving/on_cpu.h"
#include "../serving/road.h"
#include "../serving/turn.h"
#if defined(FASTAGG_CUDA)
#include "../serving/on_cuda.h"
#endif
#include "structs.h"

namespace py = pybind11;

namespace fastagg {
namespace {

using namespace serving;
using py::arg;

std::shared_ptr<Scrub> make_scrub(const Rows& rows, int64_t origin, py::function grow, bool on_host) {
  return std::make_shared<Scrub>(rows, origin, std::move(grow), on_host);
}

std::shared_ptr<AllClients> make_all_clients(double sign, const AllClients::Setting& setting, const Rows* rows,
                                             uint64_t seed, Address sum, Scrub* scrub) {
  if (setting.clients < 1) throw Refused("all clients: expected at least one");
  if (rows != nullptr && rows->slots != setting.clients) throw Refused("all clients: expected a row for each");
  std::optional<Rows> held;
  if (rows != nullptr) held = *rows;
  return std::make_shared<AllClients>(sign, setting, held, seed, at(sum), scrub);
}

std::shared_ptr<AllClients> make_all_clients_on(double sign, const AllClients::Setting& setting,
                                                std::shared_ptr<Tiers> tiers, uint64_t seed, Address sum) {
  if (tiers == nullptr || tiers->setting().clients != setting.clients)
    throw Refused("all clients: expected a row for each");
  return std::make_shared<AllClients>(sign, setting, std::move(tiers), seed, at(sum));
}

std::shared_ptr<Tiers> make_tiers(const std::string& format, std::pair<int64_t, int64_t> shape, int64_t memory,
                                  std::pair<int64_t, bool> rules, const std::string& path) {
  const auto [size, clients] = shape;
  const auto [keep, warms_up] = rules;
  if (size < 1 || clients < 1 || keep < 1)
    throw Refused("tiers: expected at least one parameter, client and checkpoint");
  const int place = named(format, RowFormats{}, "tiers");
  return std::make_shared<Tiers>(Tiers::Setting{place, size, clients, memory, keep, warms_up}, path);
}

template <typename T>
py::array_t<T> array_of(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

template <typename T>
std::vector<T> vector_of(const py::handle& given) {
  const py::array_t<T, py::array::c_style | py::array::forcecast> array(py::reinterpret_borrow<py::object>(given));
  return std::vector<T>(array.data(), array.data() + array.size());
}

py::dict cut_of(Tiers& tiers) {
  const Tiers::Cut cut = tiers.cut();
  py::dict state;
  state["number"] = cut.places.number;
  state["slots"] = array_of(cut.places.slots);
  state["sums"] = py::array_t<int64_t>(array_of(cut.places.sums));
  state["arrivals"] = cut.arrivals;
  state["shadow"] = array_of(cut.begun);
  return state;
}

void load_cut(Tiers& tiers, const py::dict& state) {
  Tiers::Cut cut;
  cut.places = {py::cast<int64_t>(state["number"]), vector_of<int64_t>(state["slots"]),
                vector_of<uint32_t>(state["sums"])};
  cut.arrivals = py::cast<int64_t>(state["arrivals"]);
  cut.begun = vector_of<double>(state["shadow"]);
  tiers.load(cut);
}

// Data and scales, or None.
py::object row_of(Tiers& tiers, int64_t client) {
  if (client < 0 || client >= tiers.setting().clients) throw Refused("no client " + std::to_string(client));
  std::vector<char> row;
  if (!tiers.copy_row(client, row)) return py::none();
  return py::bytes(row.data(), row.size());
}

py::dict counts_of(const Tiers& tiers) {
  const Tiers::Counts counts = tiers.counts();
  py::dict found;
  found["ahead"] = counts.ahead;
  found["late"] = counts.late;
  found["cold"] = counts.cold;
  found["there"] = counts.there;
  found["lost"] = counts.lost;
  found["read"] = counts.read;
  found["written"] = counts.written;
  return found;
}

std::shared_ptr<Calibrated> make_calibrated(double sign, const Calibrated::Setting& setting, const Rows& rows,
                                            const std::tuple<uint64_t, Address, Address>& where, Scrub& scrub) {
  if (setting.clients < 1 || setting.capacity < 1) throw Refused("calibrated: expected at least one client and update");
  const auto& [seed, sum, acc] = where;
  return std::make_shared<Calibrated>(sign, setting, rows, seed, at(sum), at(acc), &scrub);
}

std::shared_ptr<Road> make_road(std::shared_ptr<Book> book, std::shared_ptr<Ledger> ledger,
                                std::shared_ptr<Runner> runner, const Stepper& stepper,
                                std::pair<Hooks, Outside> python) {
  return std::make_shared<Road>(std::move(book), std::move(ledger), std::move(runner), stepper, std::move(python.first),
                                std::move(python.second));
}

// The format and the bytes of the rows that a journal keeps in place of updates, or None.
py::object coded_row_of(const Book& book) {
  const Rows row = book.coded_row();
  if (row.size == 0) return py::none();
  return py::make_tuple(format_facts(row.format).name, row.packed_bytes());
}

// `row`: its format, address and bytes, or None for an update that was dropped.
py::object receive_row(Road& road, py::handle client, py::handle version,
                       const std::optional<std::tuple<std::string, Address, int64_t>>& row,
                       const std::pair<double, double>& facts, py::handle more) {
  const auto [share, norm] = facts;
  Road::Recorded recorded{kPlainRows, nullptr, 0, norm};
  if (row) {
    const auto& [format, address, nbytes] = *row;
    recorded = {named(format, RowFormats{}, "row"), at<void>(address), nbytes, norm};
  }
  return road.receive_row(client, version, recorded, share, more);
}

void append(Journal& journal, int kind, const py::bytes& body) {
  auto entry = std::make_unique<Entry>(static_cast<uint8_t>(kind));
  const std::string bytes = body;
  entry->own.assign(bytes.begin(), bytes.end());
  journal.push(std::move(entry));
}

// Describes the parts of this thread's next arrival, for its record. Parameters are (address, elements, type); the
// other parts have their role first.
void describe(const py::list& parameters, const std::vector<std::tuple<int, Address, uint64_t, int>>& rest,
              const py::object& owners, const std::tuple<double, bool, std::shared_ptr<Blob>>& facts) {
  Held* held = Held::current();
  if (held == nullptr) return;  // nobody waits, so the record is of the update itself
  Note note;
  note.given = true;
  std::tie(note.share, note.known, note.blob) = facts;
  const auto add = [&](int role, Address address, uint64_t count, int dtype) {
    if (role < 0 || role > kUpdates || role == kRowRole || dtype < 0 || dtype > 11)
      throw Refused("a part of an arrival: no such role or type");
    note.sent.push_back({static_cast<uint8_t>(role), static_cast<uint8_t>(dtype), count, at<const void>(address)});
  };
  if (!note.blob) {
    for (const py::handle piece : parameters) {
      const auto [address, count, dtype] = py::cast<std::tuple<Address, uint64_t, int>>(piece);
      add(kParameters, address, count, dtype);
    }
  }
  for (const auto& [role, address, count, dtype] : rest) add(role, address, count, dtype);
  note.owners = owners;
  held->note = std::move(note);
}

Stepper stepper_of(const std::string& kind, double lr, std::pair<double, double> betas, double eps,
                   bool bias_correction) {
  return {kind, named(kind, Optimizers{}, "optimizer"), lr, betas.first, betas.second, eps, bias_correction};
}

void raise_as(const char* name, const char* text) {
  py::set_error(py::module_::import("fastagg.errors").attr(name), text);
}

}  // namespace

void bind_serving(py::module_& to) {
  py::register_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(raised);
    } catch (const UnknownClient& error) {
      raise_as("UnknownClient", error.what());
    } catch (const UnknownVersion& error) {
      raise_as("UnknownVersion", error.what());
    } catch (const Busy& error) {
      raise_as("Busy", error.what());
    } catch (const NotDurable& error) {
      raise_as("NotDurable", error.what());
    } catch (const memory::SlotsFailed& error) {
      raise_as("CacheError", error.what());
    } catch (const TooLarge& error) {
      raise_as("UpdateTooLarge", error.what());
    }
  });
  py::module_ m = to.def_submodule("serving", "What a server keeps, and how an update gets into it.");
  const py::kw_only by_name;

  py::class_<Ledger, std::shared_ptr<Ledger>>(m, "Ledger")
      .def(py::init<int64_t, bool>(), by_name, arg("clients"), arg("keeps"))
      .def_readwrite("version", &Ledger::now)
      .def_readwrite("steps", &Ledger::steps)
      .def(
          "limit",
          [](Ledger& ledger, double lease, int64_t max_delay, int64_t open_per_client, int64_t clients) {
            ledger.limits = {lease, max_delay, open_per_client, clients};
          },
          by_name, arg("lease"), arg("max_delay"), arg("open_per_client"), arg("clients"))
      .def_readwrite("skew", &Ledger::skew)
      .def_readwrite("given_time", &Ledger::given_time)
      .def_property_readonly("own_time", &Ledger::own_time)
      .def("expire", &Ledger::expire)
      .def("expire_before", &Ledger::expire_before)
      .def("renew", &Ledger::renew)
      .def_property_readonly("expired", &Ledger::expired)
      .def_property_readonly("open_tasks", &Ledger::open_tasks)
      .def_property_readonly("oldest_task", &Ledger::oldest_task)
      .def("identify", &Ledger::identify)
      .def("find",
           [](const Ledger& ledger, py::handle id, py::handle version) {
             const Ledger::Found found = ledger.find(id, version);
             return py::make_tuple(found.version, found.told);
           })
      .def("answer",
           [](Ledger& ledger, py::handle id, py::handle version) {
             const Ledger::Found found = ledger.find(id, version);
             ledger.close(found.client, found.version);
           })
      .def("tell_next", &Ledger::tell_next_to)
      .def("forget", &Ledger::forget)
      .def("owed", &Ledger::owed)
      .def("owes", &Ledger::owes)
      .def("payload", &Ledger::payload)
      .def("payloads", &Ledger::payloads)
      .def("nbytes", &Ledger::nbytes)
      .def_property_readonly("known", &Ledger::known)
      .def("state", &Ledger::state)
      .def("load", &Ledger::load);

  py::class_<Turn>(m, "Turn")
      .def(py::init<py::object, int64_t>(), arg("lock"), arg("most"))
      .def_property_readonly("waiting", &Turn::waiting)
      .def("__enter__", &Turn::enter)
      .def("__exit__", [](Turn& turn, const py::args&) { turn.exit(); });

  py::class_<Blob, std::shared_ptr<Blob>>(m, "Blob")
      .def(py::init([](uint64_t number, uint64_t nbytes, int dtype, int file) {
             auto blob = std::make_shared<Blob>();
             blob->number = number, blob->nbytes = nbytes, blob->dtype = static_cast<uint8_t>(dtype), blob->file = file;
             blob->crc = 0;
             return blob;
           }),
           by_name, arg("number"), arg("nbytes"), arg("dtype"), arg("file"))
      .def_readwrite("crc", &Blob::crc)
      .def_property_readonly("sequence", [](const Blob& blob) { return blob.sequence.load(); });

  py::class_<Journal, std::shared_ptr<Journal>> journal(m, "Journal");
  py::enum_<Journal::Mode>(journal, "Mode")
      .value("none", Journal::Mode::kNone)
      .value("step", Journal::Mode::kStep)
      .value("arrival", Journal::Mode::kArrival);
  journal.def(py::init(&Journal::begin), arg("files"), by_name, arg("direct"), arg("folder"), arg("sequence"))
      .def_readwrite("mode", &Journal::mode)
      .def_readwrite("max_waiting", &Journal::max_waiting)
      .def("check", &Journal::check)
      .def("append", &append)
      .def("wait", &Journal::wait)
      .def("close", &Journal::close)
      .def_property_readonly("failure", &Journal::failure)
      .def_property_readonly("last", &Journal::last)
      .def_property_readonly("durable", [](const Journal& one) { return one.durable.load(); })
      .def_property_readonly("syncs", [](const Journal& one) { return one.syncs.load(); })
      .def_property_readonly("groups", [](const Journal& one) { return one.groups.load(); })
      .def_property_readonly("written", [](const Journal& one) { return one.written.load(); })
      .def_property_readonly("pending", [](const Journal& one) { return one.pending.load(); })
      .def_property_readonly("waiting", [](const Journal& one) { return one.waiting.load(); })
      .def_static("waited", &Journal::waited);
  py::class_<Held>(m, "Held")
      .def(py::init<std::shared_ptr<Journal>>())
      .def("__enter__",
           [](Held& held) -> Held& {
             held.enter();
             return held;
           })
      .def("__exit__", [](Held& held, const py::args&) { held.leave(); })
      .def("wait", &Held::wait)
      .def_static("describe", &describe, arg("parameters"), arg("rest"), arg("owners"), arg("facts"));

  py::class_<Scrub, std::shared_ptr<Scrub>>(m, "Scrub")
      .def(py::init(&make_scrub), arg("rows"), by_name, arg("origin"), arg("grow"), arg("on_host"),
           py::keep_alive<1, 2>())
      .def("nbytes", &Scrub::nbytes)
      .def("state", &Scrub::state)
      .def("load", &Scrub::load);

  py::class_<Tiers, std::shared_ptr<Tiers>>(m, "Tiers")
      .def(py::init(&make_tiers), by_name, arg("format"), arg("shape"), arg("memory"), arg("rules"), arg("path"))
      .def("use_device",
           [](Tiers& tiers, std::shared_ptr<memory::Copies> copies, std::optional<int64_t> bytes, py::function memory) {
             tiers.use_device(std::move(copies), bytes.value_or(-1), std::move(memory));
           })
      .def("on_first_use", [](Tiers& tiers, py::function claim) { tiers.claim = [claim] { claim(); }; })
      .def("open", &Tiers::open)
      .def("load", &load_cut)
      .def("cut", &cut_of)
      .def("kept_with", &Tiers::kept_with)
      .def("confirm", &Tiers::confirm)
      .def("row", &row_of)
      .def("counts", &counts_of)
      .def_property_readonly("is_open", &Tiers::is_open)
      .def_property_readonly("frames", &Tiers::frames)
      .def_property_readonly("device_frames", &Tiers::device_frames)
      .def_property_readonly("scales_at", [](const Tiers& tiers) { return tiers.windows().scales_at(); })
      .def_readonly_static("window", &Windows::kSize)
      .def_property_readonly("nbytes_on_disk", &Tiers::nbytes_on_disk)
      .def_static("stride", [](const std::string& format, int64_t size) {
        return Windows{named(format, RowFormats{}, "tiers"), size}.stride();
      });

  py::class_<Book, std::shared_ptr<Book>>(m, "Book")
      .def("check", &Book::check)
      .def("writes", &Book::writes)
      .def_property_readonly("coded_row", &coded_row_of)
      .def("state", &Book::state)
      .def("load", &Book::load)
      .def("nbytes", &Book::nbytes)
      .def_property_readonly("immediate", &Book::immediate);
  py::class_<Single, Book, std::shared_ptr<Single>>(m, "Single")
      .def(py::init<double, bool>(), by_name, arg("sign"), arg("blend") = false);
  py::class_<Buffered, Book, std::shared_ptr<Buffered>>(m, "Buffered")
      .def(py::init([](double sign, int64_t capacity, bool synchronous, py::function vector, py::function spare) {
             return std::make_shared<Buffered>(sign, capacity, synchronous, std::move(vector), std::move(spare));
           }),
           by_name, arg("sign"), arg("capacity"), arg("synchronous"), arg("vector"), arg("spare"))
      .def_property_readonly("room", &Buffered::room)
      .def_property_readonly("total", &Buffered::total)
      .def("bound_sum", [](Buffered& book, py::handle bound) { book.bound_sum(bound_of(bound)); })
      .def_property_readonly("acc", [](const Buffered& book) { return book.acc().owner; });
  py::class_<AllClients, Book, std::shared_ptr<AllClients>> all(m, "AllClients");
  py::class_<AllClients::Setting>(m, "AllClientsSetting")
      .def(py::init([](int64_t clients, bool full, bool direct, int64_t max_delay, bool by_dispatch) {
             return AllClients::Setting{clients, full, direct, max_delay, by_dispatch};
           }),
           by_name, arg("clients"), arg("full"), arg("direct") = false, arg("max_delay") = -1,
           arg("by_dispatch") = true);
  all.def(py::init(&make_all_clients), by_name, arg("sign"), arg("setting"), arg("rows"), arg("seed"), arg("sum"),
          arg("scrub"), py::keep_alive<1, 7>());
  all.def_static("on", &make_all_clients_on, by_name, arg("sign"), arg("setting"), arg("tiers"), arg("seed"),
                 arg("sum"));
  py::class_<Calibrated, Book, std::shared_ptr<Calibrated>> calibrated(m, "Calibrated");
  py::class_<Calibrated::Setting>(m, "CalibratedSetting")
      .def(py::init([](int64_t clients, int64_t capacity, bool from_start) {
             return Calibrated::Setting{clients, capacity, from_start};
           }),
           by_name, arg("clients"), arg("capacity"), arg("from_start"));
  calibrated.def(py::init(&make_calibrated), by_name, arg("sign"), arg("setting"), arg("rows"), arg("where"),
                 arg("scrub"), py::keep_alive<1, 6>());

  py::class_<Runner, std::shared_ptr<Runner>>(m, "Runner");
  py::class_<OnCpu, Runner, std::shared_ptr<OnCpu>>(m, "OnCpu").def(py::init<>());
#if defined(FASTAGG_CUDA)
  py::class_<OnCuda, Runner, std::shared_ptr<OnCuda>>(m, "OnCuda").def(py::init<py::function>());
#endif

  py::class_<Stepper>(m, "Stepper")
      .def(py::init(&stepper_of), arg("kind"), by_name, arg("lr"), arg("betas"), arg("eps"), arg("bias_correction"));
  py::class_<Hooks>(m, "Hooks")
      .def(py::init<>())
      .def_readwrite("vector", &Hooks::vector)
      .def_readwrite("model", &Hooks::model)
      .def_readwrite("keep", &Hooks::keep)
      .def_readwrite("control", &Hooks::control)
      .def_readwrite("weigh", &Hooks::weigh)
      .def_readwrite("rate", &Hooks::rate)
      .def_readwrite("moments", &Hooks::moments)
      .def_readwrite("step", &Hooks::step)
      .def_readwrite("statistics", &Hooks::statistics)
      .def_readwrite("measure", &Hooks::measure);
  py::enum_<ArrayRole>(m, "Role")
      .value("parameter", ArrayRole::kParameter)
      .value("statistic", ArrayRole::kStatistic)
      .value("variance", ArrayRole::kVariance)
      .value("counter", ArrayRole::kCounter)
      .value("count", ArrayRole::kCount);
  py::class_<Reported>(m, "Reported")
      .def_property_readonly("given", &Reported::given)
      .def("add_to", &Reported::add_to)
      .def("largest", &Reported::largest);
  py::class_<Form>(m, "Form").def(
      py::init<const std::vector<std::tuple<py::object, Form::Shape, ArrayRole>>&, bool, double>(), by_name,
      arg("parts"), arg("named"), arg("limit"));
  py::class_<Outside>(m, "Outside")
      .def(py::init([](std::pair<py::type, py::type> records, py::object layout, int32_t usual_steps, bool keeps_model,
                       bool weighs_by_sample, std::optional<Form> form) {
             return Outside{
                 Record(std::move(records.first),
                        {"client", "version", "local_steps", "control", "incarnation", "_layout", "_model"}),
                 Record(std::move(records.second), {"client", "applied", "version", "delay", "step_size", "update_norm",
                                                    "weight", "kept", "_journal", "_sequence"}),
                 std::move(layout),
                 usual_steps,
                 keeps_model,
                 weighs_by_sample,
                 std::move(form)};
           }),
           by_name, arg("records"), arg("layout"), arg("usual_steps"), arg("keeps_model"), arg("weighs_by_sample"),
           arg("form"));
  py::class_<Road, std::shared_ptr<Road>>(m, "Road")
      .def(py::init(&make_road), by_name, arg("book"), arg("ledger"), arg("runner"), arg("stepper"), arg("python"))
      .def("start", &Road::start, arg("flat"), by_name, arg("size"), arg("origin"))
      .def("clip", &Road::set_judge)
      .def("set_rate", &Road::set_rate)
      .def("bound_from", &Road::bound_from)
      .def("send", &Road::send)
      .def("receive", &Road::receive)
      .def("receive_row", &receive_row, arg("client"), arg("version"), arg("row"), arg("facts"), arg("more"))
      .def("hand_on", &Road::hand_on)
      .def("forget", &Road::forget)
      .def("expire", &Road::expire)
      .def("attach", &Road::attach)
      .def("note_ended", &Road::note_ended)
      .def_readwrite("before_row", &Road::before_row)
      .def("take", &Road::take)
      .def("take_many", &Road::take_many)
      .def("fold", &Road::fold)
      .def("check_round", &Road::check_round)
      .def("close_round", &Road::close_round)
      .def("model", &Road::model)
      .def("begin_life", &Road::begin_life)
      .def_property_readonly("lives", &Road::lives)
      .def("life_of", &Road::life_of)
      .def_property_readonly("flat", &Road::flat)
      .def_property_readonly("moments", &Road::moments)
      .def_readwrite("sent", &Road::sent);

  py::class_<Door>(m, "Door")
      .def(py::init<py::object, std::shared_ptr<Road>>(), arg("turn"), arg("road"))
      .def("take", &Door::take)
      .def_readwrite("follow", &Door::follow)
      .def_readwrite("tell_slow", &Door::tell_slow)
      .def_readwrite("slow", &Door::slow);
}

}  // namespace fastagg
