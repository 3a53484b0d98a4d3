// The functions with which fastagg/server receives answers and ends rounds. This file reads an answer in a usual form
// (reader.h) without calling Python code. Python first reads any other answer.
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

// Allocates an answer's receipt. Must be called before the answer is received, so that a failure changes nothing.
py::object made_for(ServerObject& server, py::handle client, const Answer& answer) {
  py::object receipt = make<ReceiptObject>(server.receipts());
  receipt_in(receipt)->client = plain(client, answer.client).release().ptr();
  return receipt;
}

// Copies the results of an answer to the answer's receipt. Cannot fail.
void fill(ServerObject& server, const py::object& receipt, const Answer& answer) {
  ReceiptObject* const made = receipt_in(receipt);
  made->value = answer.receipt;
  if (server.log) {
    made->journal = server.journal.inc_ref().ptr();
    made->log = server.log.get();
  }
}

// Waits until the answers' records are on the disk, but not for answers whose senders do not wait (Journal::waits).
void wait_for_disk(const ServerObject& server, const Answer* answers, size_t count) {
  if (!server.log) return;
  uint64_t last = 0;
  for (size_t i = 0; i < count; ++i)
    if (server.log->waits(answers[i].receipt.applied)) last = std::max(last, answers[i].receipt.sequence);
  if (last > 0) server.log->wait(last);
}

// `end` calls `server.tell` if the answers took longer than `server.slow` seconds, without the wait for the disk. The
// answers have then counted already. So an `Exception` of the callback is printed and not raised.
class AnswerTimer {
 public:
  AnswerTimer(const ServerObject& server, size_t count) : server_(server), on_(server.slow < HUGE_VAL) {
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
      if (!error.matches(PyExc_Exception)) throw;  // KeyboardInterrupt, or another exception of a signal handler
      error.discard_as_unraisable("the report of a slow update");
    } catch (const std::bad_alloc&) {  // no memory is left, so there is no report
    }
  }

 private:
  const ServerObject& server_;
  const bool on_;
  std::vector<int64_t> delays_, tasks_;  // one element for each answer; task 0: the answer has no task
  std::chrono::steady_clock::time_point begun_;
  double waited_ = 0.0;
};

// Warns about a client. Raises nothing, even if a filter turns warnings into errors, because the answers have counted.
void warn(const ClientId& client, const char* what) {
  const std::string text = "client " + shown(client) + what;
  try {
    py::module_::import("fastagg._checks").attr("warn")(text);
  } catch (py::error_already_set& error) {
    if (error.matches(PyExc_KeyboardInterrupt)) {
      PyErr_SetInterrupt();  // Python raises KeyboardInterrupt later, when the answers' outcomes are set
    } else {
      error.discard_as_unraisable(text.c_str());
    }
  }
}

Engine::Result receive(ServerObject& server, Answer* answers, size_t count) {
  Engine::Result result;
  {
    const GilRelease released(server.is_long());
    result = with_engine(server, [&](Engine& engine) { return engine.receive(answers, count); });
  }
  if (result.majority)
    warn(*result.majority,
         " made more than half of the updates of a step: the model follows it more than the others; "
         "answers_per_step=1 takes one of each client in a step");
  if (result.misformed)
    warn(*result.misformed,
         ": its update is nearly the model itself or its negative, or its trained model is nearly nothing: receive "
         "takes a difference or a gradient; for a trained model use receive_model(task, trained), or "
         "task.delta(trained)");
  return result;
}

// Returns `numbers` as the Numbers that Python has made of an update, or null if it is an object of another class.
const Numbers* numbers_in(py::handle numbers) {
  static PyTypeObject* const type = reinterpret_cast<PyTypeObject*>(py::type::of<Numbers>().ptr());
  return Py_TYPE(numbers.ptr()) == type ? py::cast<const Numbers*>(numbers) : nullptr;
}

// Returns an answer's number of samples, or NaN for None. Returns nullopt if Python must read the number or refuse it.
std::optional<double> samples_of(py::handle samples) {
  if (samples.is_none()) return std::nan("");
  double count = -1.0;
  if (PyLong_CheckExact(samples.ptr())) {
    int overflow = 0;
    count = static_cast<double>(PyLong_AsLongLongAndOverflow(samples.ptr(), &overflow));
  } else if (PyFloat_CheckExact(samples.ptr())) {
    count = PyFloat_AS_DOUBLE(samples.ptr());
  }
  if (count == 0.0 || (count >= 1.0 / engine::kHeaviest && count <= engine::kHeaviest)) return count;
  return std::nullopt;
}

// Reads an update into `answer`. Returns false if only Python can read the update.
bool read_update(ServerObject& server, py::handle update, Arrays& arrays, Answer& answer) {
  if (const Numbers* const numbers = numbers_in(update)) {  // Python has read the update already
    static_cast<Numbers&>(answer) = *numbers;
    return true;
  }
  if (!server.reader) return false;
  const UpdateReader::UpdateForm form = server.reader->read(update, arrays, answer);
  if (form == UpdateReader::UpdateForm::kNo) return false;
  if (server.device >= 0) {
    // Only Python can send statistics or a large update to a device, join many pieces, and copy an update for a log.
    constexpr int64_t kMostSent = int64_t{1} << 18;  // the most elements of an update that C++ sends to the device
    if (answer.reported) return false;
    if (arrays.on_device() ? static_cast<bool>(server.log) || answer.update.pieces.size() > cuda::kMostPieces
                           : answer.update.size > kMostSent)
      return false;
    answer.in_host = !arrays.on_device();
    if (answer.in_host) answer.on_host = answer.update;
    answer.owner = arrays.owner(answer.update.size * static_cast<int64_t>(sizeof(float)));
  }
  return true;
}

// Returns the fields of a fastagg.Answer, which is a named tuple (fastagg/server/answers.py).
PyObject* const* fields_of(const py::object& answer) { return &PyTuple_GET_ITEM(answer.ptr(), 0); }

// Whether an answer's fields kind, sent, control, extra and measures have their defaults, as `read` requires.
bool is_plain(const py::object& answer) {
  PyObject* const* const fields = fields_of(answer);
  return std::all_of(fields + 7, fields + 11, [](PyObject* field) { return field == Py_None; }) &&
         fields[11] == Py_True;
}

// Reads the first fields of an answer: client, update, version, num_samples, task, offset, incarnation. Returns false
// if only Python can read the answer.
bool read(ServerObject& server, PyObject* const* arguments, Arrays& arrays, Answer& answer) {
  const std::optional<double> samples = samples_of(arguments[3]);
  if (!samples || !read_update(server, arguments[1], arrays, answer)) return false;
  answer.samples = *samples;
  answer.client = id_of(arguments[0]);
  answer.version = version_of(arguments[2], answer.client);
  answer.task = task_id_of(arguments[4]);
  answer.offset = offset_of(arguments[5]);
  answer.incarnation = incarnation_of(arguments[6]);
  return true;
}

// Returns the current exception as the outcome of an answer, if it is a FastaggError. Raises any other exception, such
// as KeyboardInterrupt. `counted`: whether earlier answers of this call have counted. If they have, returns `no_memory`
// for a MemoryError, because Python could not make an error that carries the earlier outcomes.
py::object outcome_of_exception(bool counted = false, const py::object& no_memory = {}) {
  set_error_of_current_exception();
  if (counted && PyErr_ExceptionMatches(PyExc_MemoryError) != 0) {
    PyErr_Clear();
    return no_memory;
  }
  py::error_already_set raised;
  if (raised.matches(py::module_::import("fastagg.errors").attr("FastaggError"))) return raised.value();
  throw raised;
}

// The answers of one call, and the Python objects for their outcomes.
struct Batch {
  std::deque<Arrays> arrays;
  std::vector<Answer> answers;
  std::vector<py::object> receipts;
  std::vector<py::object> refusals;  // for each answer: the error if it could not be read, else null
  py::list outcomes;                 // the caller's list, to which this batch appends
  size_t first = 0;                  // the index in `outcomes` of this batch's first outcome

  size_t size() const { return answers.size(); }
  void set(size_t place, const py::object& outcome) { outcomes[first + place] = outcome; }
};

// Returns the index of the first answer, from `begin` on, that could not be read, or the batch's size if all could.
size_t readable(const Batch& batch, size_t begin) {
  while (begin < batch.size() && !batch.refusals[begin]) ++begin;
  return begin;
}

// Gives the answers that could be read to the engine. Sets the outcome of each answer to a receipt or an error.
void receive_all(ServerObject& server, Batch& batch) {
  const size_t count = batch.size();
  std::vector<Answer>& answers = batch.answers;
  const py::object no_memory = py::module_::import("fastagg.errors").attr("NO_MEMORY");
  AnswerTimer watched(server, count);
  for (size_t done = 0; done < count;) {
    if (batch.refusals[done]) {
      batch.set(done, batch.refusals[done]);
      ++done;
      continue;
    }
    Engine::Result result;
    const size_t end = readable(batch, done);
    try {
      result = receive(server, answers.data() + done, end - done);
    } catch (...) {
      result.failed = std::current_exception();
    }
    for (const size_t until = done + result.done; done < until; ++done) {
      fill(server, batch.receipts[done], answers[done]);
      batch.set(done, batch.receipts[done]);
      watched.add(answers[done].receipt);
    }
    if (!result.refused && !result.failed) continue;
    try {
      if (result.failed) std::rethrow_exception(result.failed);
      throw *result.refused;
    } catch (...) {
      batch.set(done, outcome_of_exception(done > 0, no_memory));
      ++done;
    }
  }
  try {
    wait_for_disk(server, answers.data(), count);
  } catch (...) {
    const py::object error = outcome_of_exception(true, no_memory);
    for (size_t i = 0; i < count; ++i) {
      const engine::Receipt& receipt = answers[i].receipt;
      if (receipt.sequence > 0 && server.log->waits(receipt.applied)) batch.set(i, error);
    }
  }
  watched.end();
}

}  // namespace

PyObject* take(ServerObject& server, PyObject* const* args) {
  Arrays arrays(server.device);
  Answer answer;
  PyObject* const* const arguments = args;
  if (!read(server, arguments, arrays, answer)) return Py_NewRef(Py_None);
  answer.still = arguments[7] == Py_True;
  close_if_due(server);
  py::object receipt = made_for(server, arguments[0], answer);
  AnswerTimer watched(server, 1);
  const Engine::Result result = receive(server, &answer, 1);
  if (result.failed) std::rethrow_exception(result.failed);
  if (result.refused) throw *result.refused;
  fill(server, receipt, answer);
  wait_for_disk(server, &answer, 1);
  watched.add(answer.receipt);
  watched.end();
  return receipt.release().ptr();
}

// server.h describes the arguments.
PyObject* take_many(ServerObject& server, PyObject* const* args) {
  const py::handle read_in_python(args[1]);
  Batch batch;
  batch.outcomes = py::reinterpret_borrow<py::list>(args[2]);
  batch.first = batch.outcomes.size();
  for (const py::handle entry : py::reinterpret_borrow<py::list>(args[0])) {
    py::object answer = py::reinterpret_borrow<py::object>(entry), refusal;
    batch.arrays.emplace_back(server.device);
    Answer& taken = batch.answers.emplace_back();
    try {
      if (!is_plain(answer) || !read(server, fields_of(answer), batch.arrays.back(), taken)) {
        answer = read_in_python(answer);
        read(server, fields_of(answer), batch.arrays.back(), taken);
      }
      taken.still = fields_of(answer)[12] == Py_True;
      batch.receipts.push_back(made_for(server, fields_of(answer)[0], taken));
    } catch (...) {
      refusal = outcome_of_exception();
      batch.receipts.push_back(refusal);
    }
    batch.refusals.push_back(refusal);
  }
  close_if_due(server);
  for (size_t i = 0; i < batch.size(); ++i)
    batch.outcomes.append(py::none());  // allocates the list's memory before the first answer counts
  receive_all(server, batch);
  return Py_NewRef(Py_None);
}

py::object close_round(ServerObject& server, bool if_due) {
  engine::Receipt receipt;
  py::float_ rate(0.0);  // made before the step, because nothing may fail after the step
  {
    const GilRelease released(server.is_long());
    with_engine(server, [&](Engine& engine) { return engine.close_round(&receipt, if_due); });
  }
  if (std::isnan(receipt.step_size)) return py::none();
  if (server.log && server.log->waits(true)) {
    const GilRelease released(true);
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
  py::class_<UpdateReader>(m, "Reader")
      .def(py::init<const std::vector<std::tuple<py::object, UpdateReader::ShapeVector, ArrayRole>>&, bool, py::object,
                    double, int64_t>(),
           by_name, arg("parts"), arg("named"), arg("whole"), arg("limit"), arg("size"));
  // The contents of an answer that Python has read. The client and the task are passed to `receive` as arguments.
  py::class_<Numbers>(m, "Numbers")
      .def_readwrite("reported", &Numbers::reported)
      .def_readwrite("blob", &Numbers::blob)
      .def_readwrite("is_private", &Numbers::is_private)
      // Marks the numbers as a model trained from `task`. If `task` is None, the numbers are already the difference.
      .def("less",
           [](Numbers& numbers, const py::object& task) {
             numbers.kind = Numbers::kModel;
             numbers.base = task.is_none() ? store::Vector{} : vector_of(task.attr("flat"));
           })
      .def("sum_of",
           [](Numbers& numbers, int64_t count, double total, const py::iterable& clients) {
             numbers.kind = Numbers::kSum, numbers.count = count, numbers.total = total;
             for (const py::handle client : clients) numbers.participants.push_back(id_of(client));
           })
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
  // A function makes the object, because pybind11's constructor ends the process if no memory is left.
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
