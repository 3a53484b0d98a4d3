// What clients answer, and the ends of rounds. An answer in a usual form is read, taken and acknowledged in one call.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <utility>

#include "../cpu/cpu.h"
#include "../cuda/cuda.h"
#include "arrays.h"
#include "extension.h"
#include "ids.h"
#include "records.h"
#include "server.h"

namespace fastagg::bindings {
namespace {

using engine::Answer;
using engine::Engine;
using engine::Numbers;

// A receipt that is made before its answer is taken.
py::object made_for(Shared& server, py::handle client, const Answer& answer) {
  py::object receipt = make<ReceiptObject>(server.receipts());
  receipt_in(receipt)->client = plain(client, answer.client).release().ptr();
  if (server.now()->settings.defers) receipt_in(receipt)->later = new std::shared_ptr<Judgement>();
  return receipt;
}

// Copies what a receipt needs. Cannot fail.
void fill(Shared& server, const py::object& receipt, Answer& answer) {
  ReceiptObject* const one = receipt_in(receipt);
  one->value = answer.receipt;
  one->kept = true;
  one->scales = server.now()->direction->is.immediate;
  if (answer.later) {
    *one->later = std::move(answer.later);
  } else {
    delete std::exchange(one->later, nullptr);
  }
  if (server.log) {
    one->journal = server.journal.inc_ref().ptr();
    one->log = server.log.get();
  }
}

// Waits until the records of these answers are on the disk, as far as their senders wait for it.
void wait_for_disk(const Shared& server, const Answer* answers, size_t count) {
  if (!server.log) return;
  uint64_t last = 0;
  for (size_t i = 0; i < count; ++i)
    if (server.log->waits(answers[i].receipt.applied)) last = std::max(last, answers[i].receipt.sequence);
  if (last > 0) server.log->wait(last);
}

// Reports how long answers took, if somebody wants to know. The answers count already, so nothing here may fail.
class Watched {
 public:
  Watched(const Shared& server, size_t count) : server_(server), on_(server.slow < HUGE_VAL) {
    if (!on_) return;
    delays_.reserve(count), tasks_.reserve(count);
    begun_ = std::chrono::steady_clock::now(), waited_ = log::Journal::waited();
  }
  void add(const engine::Receipt& receipt) {
    if (on_) delays_.push_back(receipt.delay), tasks_.push_back(receipt.task);
  }
  void end() const {
    if (!on_) return;
    const double waited = log::Journal::waited() - waited_;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun_;
    if (took.count() - waited <= server_.slow) return;
    try {
      server_.tell(took.count() - waited, waited, delays_, tasks_);
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) throw;  // a signal's, such as KeyboardInterrupt
      error.discard_as_unraisable("the report of a slow update");
    } catch (const std::bad_alloc&) {  // one report is missing
    }
  }

 private:
  const Shared& server_;
  const bool on_;
  std::vector<int64_t> delays_, tasks_;  // of each answer; 0: of no task
  std::chrono::steady_clock::time_point begun_;
  double waited_ = 0.0;
};

Engine::Result receive(Shared& server, Answer* answers, size_t count) {
  const Released released(server.is_long());
  return with_engine(server, [&](Engine& engine) { return engine.receive(answers, count); });
}

// An answer's numbers, if Python has read them; null: it has not.
const Numbers* numbers_in(py::handle given) {
  static PyTypeObject* const type = reinterpret_cast<PyTypeObject*>(py::type::of<Numbers>().ptr());
  return Py_TYPE(given.ptr()) == type ? py::cast<const Numbers*>(given) : nullptr;
}

// None: they are refused by name, or of a type of its own that Python reads.
std::optional<double> samples_of(py::handle given) {
  if (given.is_none()) return std::nan("");
  double count = -1.0;
  if (PyLong_CheckExact(given.ptr())) {
    int overflow = 0;
    count = static_cast<double>(PyLong_AsLongLongAndOverflow(given.ptr(), &overflow));
  } else if (PyFloat_CheckExact(given.ptr())) {
    count = PyFloat_AS_DOUBLE(given.ptr());
  }
  if (count == 0.0 || (count >= 1.0 / engine::kHeaviest && count <= engine::kHeaviest)) return count;
  return std::nullopt;
}

// Reads an answer's numbers. False: only Python can.
bool read_update(Shared& server, py::handle given, Arrays& arrays, Answer& answer) {
  if (const Numbers* const numbers = numbers_in(given)) {  // Python has read it
    static_cast<Numbers&>(answer) = *numbers;
    return true;
  }
  if (!server.reader) return false;
  const Reader::Found found = server.reader->read(given, arrays, answer);
  if (found == Reader::Found::kNo) return false;
  if (server.device >= 0) {
    // Python looks for a model where a difference is expected, joins many pieces, sends much, and copies for a log.
    constexpr int64_t kMostSent = int64_t{1} << 18;
    if ((found == Reader::Found::kArrays && server.checks_models) || answer.reported) return false;
    if (arrays.on_device() ? static_cast<bool>(server.log) || answer.update.pieces.size() > cuda::kMostPieces
                           : answer.update.size > kMostSent)
      return false;
    answer.in_host = !arrays.on_device();
    if (answer.in_host) answer.on_host = answer.update;
    answer.owner = arrays.owner(answer.update.size * static_cast<int64_t>(sizeof(float)));
  } else if (found == Reader::Found::kArrays && server.checks_models) {
    return !reading(server, [&](Engine& engine) {
      return cpu::nearly(answer.update, store::update_of(engine.model.current, server.size));
    });
  }
  return true;
}

// Reads an answer: (client, update, version, num_samples, task, offset, incarnation). False: only Python can.
bool read(Shared& server, py::handle const* given, Arrays& arrays, Answer& answer) {
  const std::optional<double> samples = samples_of(given[3]);
  if (!samples || !read_update(server, given[1], arrays, answer)) return false;
  answer.samples = *samples;
  answer.client = id_of(given[0]);
  answer.version = version_of(given[2], answer.client);
  answer.task = task_id_of(given[4]);
  answer.offset = offset_of(given[5]);
  answer.incarnation = incarnation_of(given[6]);
  return true;
}

// The current exception as the outcome of an answer. What is no error of this package, such as Ctrl-C, is raised, with
// the first `done` outcomes as its attribute `outcomes`. If these have counted and there is no memory left, the outcome
// is `no_memory`: Python cannot raise an error with what it has then.
py::object outcome_of_exception(py::list& outcomes, size_t done, const py::object& no_memory) {
  set_error_of_current_exception();
  if (done > 0 && PyErr_ExceptionMatches(PyExc_MemoryError) != 0) {
    PyErr_Clear();
    return no_memory;
  }
  py::error_already_set raised;
  if (raised.matches(py::module_::import("fastagg.errors").attr("FastaggError"))) return raised.value();
  PyList_SetSlice(outcomes.ptr(), static_cast<Py_ssize_t>(done), PyList_GET_SIZE(outcomes.ptr()), nullptr);
  py::setattr(raised.value(), "outcomes", outcomes);
  throw raised;
}

// The outcomes of answers that are read already: a receipt or an error for each. The lock may refuse some, too.
py::list receive_all(Shared& server, std::vector<Answer>& answers, const std::vector<py::object>& clients) {
  const size_t count = answers.size();
  close_if_due(server);
  std::vector<py::object> receipts;
  for (size_t i = 0; i < count; ++i) receipts.push_back(made_for(server, clients[i], answers[i]));
  py::list outcomes(count);  // all memory is there before the first answer counts
  const py::object no_memory = py::module_::import("fastagg.errors").attr("NO_MEMORY");
  Watched watched(server, count);
  for (size_t done = 0; done < count;) {
    Engine::Result result;
    try {
      result = receive(server, answers.data() + done, count - done);
    } catch (...) {
      result.failed = std::current_exception();
    }
    for (const size_t until = done + result.done; done < until; ++done) {
      fill(server, receipts[done], answers[done]);
      outcomes[done] = receipts[done];
      watched.add(answers[done].receipt);
    }
    if (!result.refused && !result.failed) continue;
    try {
      if (result.failed) std::rethrow_exception(result.failed);
      throw *result.refused;
    } catch (...) {
      outcomes[done] = outcome_of_exception(outcomes, done, no_memory);
      ++done;
    }
  }
  try {
    wait_for_disk(server, answers.data(), count);
  } catch (...) {
    const py::object error = outcome_of_exception(outcomes, count, no_memory);
    for (size_t i = 0; i < count; ++i) {
      const engine::Receipt& receipt = answers[i].receipt;
      if (receipt.sequence > 0 && server.log->waits(receipt.applied)) outcomes[i] = error;
    }
  }
  watched.end();
  return outcomes;
}

}  // namespace

PyObject* take(Shared& server, PyObject* const* args) {
  Arrays arrays(server.device);
  Answer answer;
  const py::handle given[7] = {args[0], args[1], args[2], args[3], args[4], args[5], args[6]};
  if (!read(server, given, arrays, answer)) return Py_NewRef(Py_None);
  close_if_due(server);
  py::object receipt = made_for(server, given[0], answer);
  Watched watched(server, 1);
  const Engine::Result result = receive(server, &answer, 1);
  if (result.failed) std::rethrow_exception(result.failed);
  if (result.refused) throw *result.refused;
  fill(server, receipt, answer);
  wait_for_disk(server, &answer, 1);
  watched.add(answer.receipt);
  watched.end();
  return receipt.release().ptr();
}

PyObject* take_many(Shared& server, PyObject* const* args) {
  const py::handle sent(args[0]);
  const Py_ssize_t begin = PyLong_AsSsize_t(args[1]), end = PySequence_Fast_GET_SIZE(sent.ptr());
  std::deque<Arrays> arrays;
  std::vector<Answer> answers;
  std::vector<py::object> clients;
  answers.reserve(static_cast<size_t>(end - begin));
  for (Py_ssize_t i = begin; i < end; ++i) {
    const py::object one = item_at(sent, i);
    if (!one) break;
    // copied, because their owner may change the list
    const auto parts = py::reinterpret_steal<py::object>(PySequence_Tuple(one.ptr()));
    if (!parts) throw py::error_already_set();
    py::handle given[7] = {Py_None, Py_None, Py_None, Py_None, Py_None, Py_None, Py_None};
    const Py_ssize_t count = PyTuple_GET_SIZE(parts.ptr());
    for (Py_ssize_t part = 0; part < std::min<Py_ssize_t>(count, 7); ++part)
      given[part] = PyTuple_GET_ITEM(parts.ptr(), part);
    Answer answer;
    arrays.emplace_back(server.device);
    try {
      if (!read(server, given, arrays.back(), answer)) break;
    } catch (const Refusal&) {  // it is raised when this answer is taken alone
      break;
    }
    answers.push_back(std::move(answer));
    clients.push_back(py::reinterpret_borrow<py::object>(given[0]));
  }
  return receive_all(server, answers, clients).release().ptr();
}

py::object close_round(Shared& server, bool if_due) {
  engine::Receipt receipt;
  py::float_ rate(0.0);  // made before: nothing may fail after the step
  {
    const Released released(server.is_long());
    with_engine(server, [&](Engine& engine) { return engine.close_round(&receipt, if_due); });
  }
  if (std::isnan(receipt.step_size)) return py::none();
  if (server.log && server.log->waits(true)) {
    const Released released(true);
    server.log->wait(server.log->last());
  }
  reinterpret_cast<PyFloatObject*>(rate.ptr())->ob_fval = receipt.step_size;
  return rate;
}

void stay_in_host(Numbers& answer) {
  answer.in_host = true;
  answer.on_host = answer.update, answer.on_host_owner = answer.owner;
}

void bind_numbers(py::module_& m) {
  const py::kw_only by_name;
  using py::arg;
  py::enum_<ArrayRole>(m, "Role")
      .value("parameter", ArrayRole::kParameter)
      .value("statistic", ArrayRole::kStatistic)
      .value("variance", ArrayRole::kVariance)
      .value("counter", ArrayRole::kCounter)
      .value("count", ArrayRole::kCount);
  py::class_<Reader>(m, "Reader")
      .def(py::init<const std::vector<std::tuple<py::object, Reader::Shape, ArrayRole>>&, bool, py::object, double,
                    int64_t>(),
           by_name, arg("parts"), arg("named"), arg("whole"), arg("limit"), arg("size"));
  // of an answer that Python has read; who sent it, and for which task, are arguments of `receive`
  py::class_<Numbers>(m, "Numbers")
      .def_readwrite("reported", &Numbers::reported)
      .def_readwrite("blob", &Numbers::blob)
      .def_readwrite("is_private", &Numbers::is_private)
      .def_readwrite("still", &Numbers::still)
      // None: it is a difference already
      .def("less",
           [](Numbers& numbers, const py::object& task) {
             numbers.kind = Numbers::kModel;
             numbers.base = task.is_none() ? store::Vector{} : vector_of(task.attr("flat"));
           })
      .def("sum_of", [](Numbers& numbers, int64_t count,
                        double total) { numbers.kind = Numbers::kSum, numbers.count = count, numbers.total = total; })
      .def("with_control",
           [](Numbers& answer, const py::object& control) {
             answer.control = vector_of(control);
             answer.control_size = py::cast<int64_t>(control.attr("numel")());
           })
      .def("with_extra", [](Numbers& answer, py::object extra) { answer.extra = owner_of(std::move(extra)); })
      .def("with_copy",
           [](Numbers& answer, const py::object& pieces) {
             answer.on_host = update_of(pieces.attr("native")), answer.on_host_owner = owner_of(pieces);
           })
      .def("from_host", &stay_in_host);
  // a function, because of memory that runs out (extension.cpp)
  m.def(
      "numbers",
      [](const py::object& pieces) {
        Numbers made;
        made.update = update_of(pieces.attr("native")), made.owner = owner_of(pieces);
        return made;
      },
      arg("pieces"));
}

}  // namespace fastagg::bindings
