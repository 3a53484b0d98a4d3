// Binds the engine: what fastagg/server calls. An answer in a usual form is read, taken and acknowledged in one call.
#include "../engine/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "../cpu/cpu.h"
#include "../cuda/cuda.h"
#include "../engine/ordered.h"
#include "../store/process.h"
#include "archive.h"
#include "arrays.h"
#include "extension.h"
#include "host.h"
#include "ids.h"
#include "reader.h"
#include "records.h"
#include "structs.h"

namespace fastagg::bindings {
namespace {

using engine::Answer;
using engine::Engine;
using engine::Numbers;
using py::arg;

// An engine, and the Python objects that its results are made with.
struct Shared {
  std::shared_ptr<Engine> engine;  // who does not hold its lock reads it through now()
  int64_t size;
  py::object layout, task_type, receipt_type;
  bool has_control;
  std::optional<Reader> reader;  // of the forms that are read here
  py::object journal = py::none();
  std::shared_ptr<log::Journal> log;  // the same
  // Called after answers that took more than so many seconds, with these seconds, those of waiting for the disk, which
  // are not among them, and the delays of the answers that counted.
  py::object tell = py::none();
  double slow = std::numeric_limits<double>::infinity();
  bool by_time = false;       // whether calls end a round that is due
  bool checks_models = true;  // whether an update that is nearly the model is left to Python, which warns
  int32_t device = -1;        // the CUDA device that kernels run on; negative: the processor

  // A forked child may have inherited the lock behind the atomic from a thread that it does not have. It is alone.
  std::shared_ptr<Engine> now() const { return store::process() == process ? std::atomic_load(&engine) : engine; }
  const int process = store::process();
  // Whether a call takes so long that other threads should go on meanwhile. On a device it only waits for the device,
  // which lets them go on.
  bool is_long() const { return device < 0 && size >= kWorthReleasing; }
  PyTypeObject* receipts() const { return reinterpret_cast<PyTypeObject*>(receipt_type.ptr()); }
};

// Calls `act` with the engine, and again with the one that has taken its place meanwhile.
template <typename Act>
auto with_engine(Shared& server, Act act) {
  for (;;) {
    const std::shared_ptr<Engine> engine = server.now();
    try {
      return act(*engine);
    } catch (const Refusal& refused) {
      if (refused.why != Why::kRetired || engine == server.now()) throw;
    }
  }
}

// Holds the lock. Whoever only reads may hold it already: a rule of a user's own may look at the server.
class Held {
 public:
  Held(Shared& server, bool reads) : server_(server), reads_(reads) {}
  void enter() {
    store::keep_reserve();
    with_engine(server_, [this](Engine& engine) {
      if (reads_ && engine.lock.is_mine()) return;
      engine.lock.enter();
      engine_ = engine.shared_from_this();
    });
  }
  void leave() noexcept {
    if (engine_) engine_->lock.leave();
    engine_.reset();
  }
  ~Held() { leave(); }

 private:
  Shared& server_;
  const bool reads_;
  std::shared_ptr<Engine> engine_;
};

// For Python: `with engine.reading:` and `with engine.locked:`
struct Block {
  Block(std::shared_ptr<Shared> of, bool reads) : server(std::move(of)), held(*server, reads) {}
  std::shared_ptr<Shared> server;
  Held held;
};

template <typename Act>
auto reading(Shared& server, Act act) {
  Held held(server, true);
  held.enter();
  return act(*server.engine);
}

// Its step is on the disk when it returns. What it returns is made before: nothing may fail after the step.
py::object close_round(Shared& server, bool if_due) {
  engine::Receipt receipt;
  bool stepped = true;
  py::float_ rate(0.0);
  {
    const Released released(server.is_long());
    if (!with_engine(server, [&](Engine& engine) { return engine.close_round(&receipt, if_due); })) stepped = false;
  }
  if (!stepped || std::isnan(receipt.step_size)) return py::none();
  if (server.log && server.log->waits(true)) {
    const Released released(true);
    server.log->wait(server.log->last());
  }
  reinterpret_cast<PyFloatObject*>(rate.ptr())->ob_fval = receipt.step_size;
  return rate;
}

// Whoever is sent a version, or answers, ends a round whose time is over.
void close_if_due(Shared& server) {
  if (server.by_time) close_round(server, true);
}

// -- answers

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

// The model that a trained one is taken from; None: it is a difference already.
void set_base(Numbers& answer, const py::object& task) {
  answer.kind = Numbers::kModel;
  if (task.is_none()) return;
  answer.base = vector_of(task.attr("flat"));
}

void set_sum(Numbers& answer, int64_t count, double total) {
  answer.kind = Numbers::kSum;
  answer.count = count, answer.total = total;
}

double samples_of(py::handle given, bool* usual) {
  *usual = true;
  if (given.is_none()) return std::nan("");
  double count = -1.0;
  if (PyLong_CheckExact(given.ptr())) {
    int overflow = 0;
    count = static_cast<double>(PyLong_AsLongLongAndOverflow(given.ptr(), &overflow));
  } else if (PyFloat_CheckExact(given.ptr())) {
    count = PyFloat_AS_DOUBLE(given.ptr());
  }
  // refused by name, or a type of its own that Python reads
  *usual = count == 0.0 || (count >= 1.0 / engine::kHeaviest && count <= engine::kHeaviest);
  return count;
}

// Its numbers are in the host's memory, and the engine sends them to the device.
void stay_in_host(Numbers& answer) {
  answer.in_host = true;
  answer.on_host = answer.update, answer.on_host_owner = answer.owner;
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
    return !reading(server, [&](Engine& engine) { return cpu::nearly(answer.update, engine.model.current.data); });
  }
  return true;
}

// Reads an answer: (client, update, version, num_samples, task, offset, incarnation). False: only Python can.
bool read(Shared& server, py::handle const* given, Arrays& arrays, Answer& answer) {
  bool usual = true;
  answer.samples = samples_of(given[3], &usual);
  if (!usual || !read_update(server, given[1], arrays, answer)) return false;
  answer.client = id_of(given[0]);
  answer.version = version_of(given[2], answer.client);
  answer.task = task_id_of(given[4]);
  answer.offset = offset_of(given[5]);
  answer.incarnation = incarnation_of(given[6]);
  return true;
}

// receive(client, update, version, num_samples, task, offset, incarnation): the receipt, or None if only Python can
// read the update. It then comes again with its numbers as an `Answer`.
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

// The current exception as the outcome of an answer. What is no error of this package, such as Ctrl-C, is raised, with
// the first `done` outcomes as its attribute `outcomes`.
py::object outcome_of_exception(py::list& outcomes, size_t done) {
  set_error_of_current_exception();
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
      outcomes[done] = outcome_of_exception(outcomes, done);
      ++done;
    }
  }
  try {
    wait_for_disk(server, answers.data(), count);
  } catch (...) {
    const py::object error = outcome_of_exception(outcomes, count);
    for (size_t i = 0; i < count; ++i) {
      const engine::Receipt& receipt = answers[i].receipt;
      if (receipt.sequence > 0 && server.log->waits(receipt.applied)) outcomes[i] = error;
    }
  }
  watched.end();
  return outcomes;
}

// receive_many(answers, begin): the outcomes of the first answers from `begin` on, up to one that only Python can read.
// Answers are (client, update, version, num_samples, task, offset, incarnation); all but the first two may be left out.
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

// -- tasks

py::object new_task(const Shared& server) {
  auto* const type = reinterpret_cast<PyTypeObject*>(server.task_type.ptr());
  py::object made = py::reinterpret_steal<py::object>(type->tp_new(type, nullptr, nullptr));
  if (!made) throw py::error_already_set();
  return made;
}

// Completes a task that was made before it was sent.
py::object filled(Shared& server, py::object made, py::object client, engine::Task&& task, py::object control) {
  TaskObject* const one = task_in(made);
  one->client = client.release().ptr();
  one->layout = server.layout.inc_ref().ptr();
  one->control = control.release().ptr();
  one->state = py::reinterpret_borrow<py::object>(object_of(task.state)).release().ptr();
  one->version = task.version;
  one->size = server.size;
  one->local_steps = task.local_steps;
  one->incarnation = task.incarnation;
  one->has_incarnation = true;
  one->id = task.id;
  one->model = std::move(task.model);
  one->encoded = std::move(task.encoded);
  return made;
}

// What goes with a client's task besides the model.
py::object control_of(const Shared& server, const py::handle& client) {
  return server.has_control ? py::object(python_of(*server.now()->extension).attr("sent")(client)) : py::none();
}

// dispatch(client, format): a place among the formats of encoded updates, or None
PyObject* dispatch(Shared& server, PyObject* const* args) {
  const ClientId client = id_of(args[0]);
  const int format = args[1] == Py_None ? engine::kAsItIs : py::cast<int>(py::handle(args[1]));
  close_if_due(server);
  py::object made = new_task(server), control = control_of(server, args[0]), name = plain(args[0], client);
  engine::Task task;
  {
    const Released released(format != engine::kAsItIs && server.is_long());
    task = with_engine(server, [&](Engine& engine) { return engine.dispatch(client, format); });
  }
  return filled(server, std::move(made), std::move(name), std::move(task), std::move(control)).release().ptr();
}

// A task of another client, with the version and the model of the first one's.
py::object hand_on(Shared& server, py::handle from, py::handle to) {
  const TaskObject& of = *task_of(from);
  const ClientId first = id_of(of.client == nullptr ? Py_None : of.client), second = id_of(to);
  py::object made = new_task(server), name = plain(to, second);
  const bool by_client = of.control != nullptr && PyDict_Check(of.control);
  py::object control = by_client ? control_of(server, to) : py::reinterpret_borrow<py::object>(of.control);
  const engine::Task task =
      with_engine(server, [&](Engine& engine) { return engine.hand_on(first, of.version, second); });
  TaskObject* const one = task_in(made);
  one->client = name.release().ptr();
  one->control = control.release().ptr();
  one->layout = Py_XNewRef(of.layout);
  one->state = Py_XNewRef(of.state), one->flat = Py_XNewRef(of.flat);
  one->version = of.version, one->size = of.size;
  one->local_steps = task.local_steps;
  one->incarnation = of.incarnation, one->has_incarnation = of.has_incarnation;
  one->id = task.id;
  one->model = of.model, one->encoded = of.encoded;
  return made;
}

// -- the functions that take the shortest way from Python

template <PyObject* (*Act)(Shared&, PyObject* const*), Py_ssize_t Count>
PyObject* entry(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != Count) {
    PyErr_SetString(PyExc_TypeError, "a wrong number of arguments");
    return nullptr;
  }
  const Call call;
  auto* const server = static_cast<std::shared_ptr<Shared>*>(PyCapsule_GetPointer(self, nullptr));
  return guarded([&] {
    store::keep_reserve();
    return Act(**server, args);
  });
}

py::object function_of(const std::shared_ptr<Shared>& server, PyMethodDef* method) {
  const py::capsule self(new std::shared_ptr<Shared>(server),
                         [](void* held) { delete static_cast<std::shared_ptr<Shared>*>(held); });
  PyObject* const made = PyCFunction_New(method, self.ptr());
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

// A property that gives the function.
template <PyObject* (*Act)(Shared&, PyObject* const*), Py_ssize_t Count>
auto quick(const char* name) {
  auto* const found = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&entry<Act, Count>));
  static PyMethodDef def{name, found, METH_FASTCALL, nullptr};
  return [](const std::shared_ptr<Shared>& server) { return function_of(server, &def); };
}

// A property that is read with the lock.
template <typename Of>
auto read_by(Of of) {
  return [of](Shared& server) { return reading(server, of); };
}

// -- recovery

// An answer from a log. Its parts lie in `body`, or in the file that it was streamed into (`update`).
Answer answer_of(const Shared& server, const log::Operation& operation, const py::object& body,
                 const py::object& update) {
  const auto damaged = [](const std::string& text) { throw Refusal(Why::kDamaged, text); };
  const engine::Settings& settings = server.engine->settings;
  Answer answer;
  answer.client = operation.client;
  answer.version = operation.version;
  answer.samples = operation.share;
  if (operation.known && !operation.again) answer.decided = &operation.decided;
  answer.is_private = true;
  // An owner in an owner: the record's memory is not taken for the update's own object (pieces_of).
  answer.owner = std::make_shared<store::Owner>(owner_of(body));
  if (!(std::isfinite(operation.share) && operation.share >= 0.0))
    damaged("the update's weight is no number of at least 0");
  auto reported = std::make_shared<engine::Reported>();
  std::vector<float> values;
  for (const log::Part& part : operation.parts) {
    const auto count = static_cast<int64_t>(part.count);
    if (part.role == log::kParameters) {
      if (part.dtype > kWholeNumbers) damaged("parameters of an unknown type");
      answer.update.add(part.data, count, static_cast<Dtype>(part.dtype));
    } else if (part.role == log::kEncodedRole) {
      auto encoded = store::Encoded::read(part.data, count);
      answer.update = encoded->update();
      answer.owner = std::move(encoded);
    } else if (part.role == log::kBuffers) {
      if (part.dtype != kFloat32) damaged("statistics of an unknown type");
      const auto* from = reinterpret_cast<const float*>(part.data);
      values.insert(values.end(), from, from + count);
    } else if (part.role == log::kCounter) {
      if (part.dtype != log::kInt64) damaged("counters of an unknown type");
      const auto* from = reinterpret_cast<const int64_t*>(part.data);
      reported->counters.insert(reported->counters.end(), from, from + count);
    } else if (part.role == log::kControl) {
      if (part.dtype != kFloat32) damaged("what came besides an update is of an unknown type");
      answer.control = store::new_vector(count);
      answer.control_size = count;
      std::memcpy(answer.control.data, part.data, part.nbytes());
    } else if (part.role == log::kUpdates) {
      if (part.dtype != log::kInt64 || count != 1) damaged("a sum's number of updates is not one whole number");
      answer.kind = Answer::kSum;
      std::memcpy(&answer.count, part.data, sizeof answer.count);
      answer.total = operation.share;
    } else if (part.role == log::kOffset) {
      if (part.dtype != log::kInt64 || count != 1) damaged("an offset that is not one whole number");
      std::memcpy(&answer.offset, part.data, sizeof answer.offset);
      if (answer.offset < 0) damaged("an offset below zero");
    } else if (part.role == log::kMeasured) {
      damaged(
          "it is of a slice of a model, and servers in slices are gone: a model that is too large for one host is "
          "cut into parts, one server each");
    } else if (part.role == log::kRowRole) {
      answer.row = &part;
    }
  }
  if (operation.kind == log::kRow) {
    if (!operation.known) damaged("it does not tell the outcome");
    if (!answer.update.pieces.empty()) damaged("it holds an update and a row");
    answer.kind = Answer::kRow;
    answer.norm = operation.decided.norm;
  } else if (!update.is_none()) {
    answer.update = update_of(update.attr("native"));
    answer.owner = owner_of(update);
  }
  const auto& pieces = answer.update.pieces;
  if (std::any_of(pieces.begin(), pieces.end(), [](const Piece& one) { return one.dtype == kWholeNumbers; }) &&
      (pieces.size() != 1 || answer.kind != Answer::kSum || server.engine->direction->is.sums == nullptr ||
       server.engine->direction->is.sums->unit == 0.0))
    damaged("whole numbers, and this is no exact sum");
  if (operation.kind != log::kRow && answer.update.size != settings.size)
    damaged("the update has " + std::to_string(answer.update.size) + " numbers, expected " +
            std::to_string(settings.size));
  if (!values.empty()) {
    reported->size = static_cast<int64_t>(values.size());
    reported->values = store::new_vector(reported->size);
    std::copy(values.begin(), values.end(), reported->values.data);
  }
  if (reported->given()) {
    const py::object fits = python_of(*server.engine->extension).attr("fits");
    if (!py::cast<bool>(fits(reported->size, reported->counters.size()))) damaged("the statistics are not the model's");
    answer.reported = std::move(reported);
  }
  return answer;
}

// Sends an answer of the log to the device, as when it came.
void bring(const Shared& server, Answer& answer) {
  if (store::is_encoded(answer.update) && !answer.reported && !server.engine->extension->asks.prepare)
    return stay_in_host(answer);
  const py::list pieces = tensors_in(answer.owner, answer.update);
  const py::object reported = answer.reported ? py::cast(answer.reported) : py::none();
  const py::tuple found = python_of(*server.engine->extension).attr("brought")(pieces, reported);
  const py::object there = found[0], extra = found[1];
  answer.update = update_of(there.attr("native"));
  answer.owner = owner_of(there);
  if (!extra.is_none()) answer.extra = owner_of(extra);
}

void execute(Shared& server, const log::Operation& operation, const py::object& body, const py::object& update) {
  Answer answer;
  const bool answers = operation.kind == log::kAnswer || operation.kind == log::kRow;
  if (answers) answer = answer_of(server, operation, body, update);
  if (server.device >= 0 && operation.kind == log::kAnswer && !answer.is_whole()) bring(server, answer);
  const Released released(answers && server.is_long());
  server.engine->execute(operation, &answer);
}

// -- settings and state

engine::Staleness staleness_of(const std::string& weight, const std::string& rate, double a, double b, double threshold,
                               double lipschitz) {
  using S = engine::Staleness;
  return {static_cast<S::Weight>(named(weight, S::kWeights, "weight")), a,         b,
          static_cast<S::Rate>(named(rate, S::kRates, "rate")),         threshold, lipschitz};
}

std::shared_ptr<Shared> make_server(const engine::Settings& settings, std::shared_ptr<engine::DirectionState> direction,
                                    const engine::OptimizerSettings& optimizer, uint64_t seed,
                                    const engine::Place& place, const py::object& extension,
                                    const engine::Extension::Asks& asks, const py::object& flat,
                                    const py::dict& python) {
  auto server = std::make_shared<Shared>();
  std::shared_ptr<engine::Extension> given;
  if (!extension.is_none()) given = extension_of(extension, asks, settings.size);
  server->engine = std::make_shared<Engine>(settings, std::move(direction), optimizer, seed, place, std::move(given),
                                            vector_of(flat));
  server->size = settings.size;
  server->layout = python["layout"];
  server->task_type = python["task"];
  server->receipt_type = python["receipt"];
  server->has_control = py::cast<bool>(python["control"]);
  server->device = py::cast<int32_t>(python["device"]);
  if (const py::object reader = python["reader"]; !reader.is_none()) server->reader = py::cast<Reader>(reader);
  server->engine->model.state = owner_of(python["statistics"]);
  return server;
}

// The current version and its statistics, of the same moment. Neither changes any more.
std::pair<store::Vector, store::Owner> current(Shared& server) {
  return reading(server, [](Engine& engine) {
    engine.follow();
    return std::make_pair(engine.model.share(), engine.model.state);
  });
}

// Another engine takes the place of this one, whose lock the caller holds. Who waits for this one goes there.
void adopt(Shared& server, Shared& other) {
  const std::shared_ptr<Engine> before = server.engine;
  std::atomic_store(&server.engine, other.engine);
  before->lock.retire();
}

py::list tensors_of(const Shared& server, const std::vector<store::Vector>& vectors) {
  py::list found;
  server.engine->follow();
  for (const store::Vector& one : vectors) found.append(tensor_of(one, server.size));
  return found;
}

// The direction that keeps updates until their round is complete; null: it is another one.
engine::Ordered* ordered_of(const Shared& server) {
  return dynamic_cast<engine::Ordered*>(server.engine->direction.get());
}

py::list waiting_of(const Shared& server) {
  py::list found;
  server.engine->follow();
  const engine::Ordered* const ordered = ordered_of(server);
  if (ordered == nullptr) return found;
  for (const auto& [answer, brings] : ordered->waiting()) {
    py::dict entry;
    entry["client"] = to_python(answer.client);
    entry["gain"] = brings.gain, entry["weight"] = brings.weight;
    entry["share"] = brings.share, entry["norm"] = brings.norm;
    const engine::HeldUpdate kept{answer.update, answer.owner};
    const auto here = server.device < 0 ? kept : engine::moved(kept, *server.engine->place.memory, false);
    entry["update"] = tensors_in(here.owner, here.update, true);
    entry["reported"] =
        answer.reported ? py::cast(std::const_pointer_cast<engine::Reported>(answer.reported)) : py::none();
    found.append(entry);
  }
  return found;
}

void load_waiting(Shared& server, const py::list& entries) {
  std::vector<engine::Ordered::Waiting> all;
  for (const py::handle given : entries) {
    const auto entry = py::reinterpret_borrow<py::dict>(given);
    auto& [answer, brings] = all.emplace_back();
    answer.client = id_of(entry["client"]);
    brings.start = brings.now = server.engine->ledger.now;
    brings.gain = py::cast<double>(entry["gain"]), brings.weight = py::cast<double>(entry["weight"]);
    brings.share = py::cast<double>(entry["share"]), brings.norm = py::cast<double>(entry["norm"]);
    answer.update = update_of(py::object(entry["update"]).attr("native"));
    answer.owner = owner_of(entry["update"]);
    if (!entry["reported"].is_none()) answer.reported = py::cast<std::shared_ptr<engine::Reported>>(entry["reported"]);
  }
  if (engine::Ordered* const ordered = ordered_of(server)) ordered->load(std::move(all));
}

}  // namespace

void bind_engine(py::module_& m) {
  const py::kw_only by_name;
  using engine::Settings;
  py::class_<Block>(m, "Block")
      .def("__enter__", [](Block& block) { block.held.enter(); })
      .def("__exit__", [](Block& block, const py::args&) { block.held.leave(); });
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
  py::class_<engine::Staleness>(m, "Staleness")
      .def(py::init(&staleness_of), by_name, arg("weight") = "one", arg("rate") = "same", arg("a") = 0.0,
           arg("b") = 0.0, arg("threshold") = 0.0, arg("lipschitz") = 1.0);
  py::class_<engine::OptimizerSettings>(m, "Optimizer")
      .def(py::init([](const std::string& kind, std::pair<double, double> betas, const py::kwargs& given) {
             using S = engine::OptimizerSettings;
             auto made = made_of<S>(given, "lr", &S::lr, "eps", &S::eps, "bias_correction", &S::bias_correction,
                                    "coded", &S::coded, "eps_root", &S::eps_root, "weight_decay", &S::weight_decay,
                                    "decoupled_weight_decay", &S::decoupled, "initial", &S::initial, "period",
                                    &S::period, "look_ahead", &S::look_ahead);
             made.kind = optimizer_named(kind);
             std::tie(made.beta1, made.beta2) = betas;
             return made;
           }),
           arg("kind"), arg("betas") = std::pair(0.0, 0.0));
  bind_fields<Settings>(m, "Settings", "size", &Settings::size, "clients", &Settings::clients, "clip_norm",
                        &Settings::clip_norm, "max_samples", &Settings::max_samples, "largest_model",
                        &Settings::largest_model, "local_steps", &Settings::local_steps, "weighs_by_samples",
                        &Settings::weighs_by_samples, "keeps_versions", &Settings::keeps_versions, "closes_early",
                        &Settings::closes_early, "folds", &Settings::folds, "defers", &Settings::defers, "staleness",
                        &Settings::staleness);
  using Asks = engine::Extension::Asks;
  bind_fields<Asks>(m, "Asks", "prepare", &Asks::prepare, "step", &Asks::step, "statistics", &Asks::statistics,
                    "bounds", &Asks::bounds);
  // of an answer that Python has read; who sent it, and for which task, are arguments of `receive`
  py::class_<Numbers>(m, "Numbers")
      .def_readwrite("reported", &Numbers::reported)
      .def_readwrite("blob", &Numbers::blob)
      .def_readwrite("is_private", &Numbers::is_private)
      .def_readwrite("still", &Numbers::still)
      .def("less", &set_base, arg("task"))
      .def("sum_of", &set_sum, arg("count"), arg("total"))
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

  const auto ledger = [](Shared& server) -> engine::Ledger& { return server.engine->ledger; };
  py::class_<Shared, std::shared_ptr<Shared>>(m, "Engine")
      .def(py::init(&make_server), by_name, arg("settings"), arg("direction"), arg("optimizer"), arg("seed"),
           arg("place"), arg("extension"), arg("asks"), arg("flat"), arg("python"))
      // for `with`: nobody else holds the lock meanwhile. A thread that holds it may read, and is otherwise refused
      .def_property_readonly(
          "reading", [](const std::shared_ptr<Shared>& server) { return std::make_unique<Block>(server, true); })
      .def_property_readonly(
          "locked", [](const std::shared_ptr<Shared>& server) { return std::make_unique<Block>(server, false); })
      .def_property_readonly("holds_lock", [](const Shared& server) { return server.now()->lock.is_mine(); })
      .def_property_readonly("callers_waiting", [](const Shared& server) { return server.now()->lock.waiting(); })
      .def("most_waiting", [](Shared& server, int64_t most) { server.now()->lock.most_waiting = most; })
      .def_property_readonly("dispatch", quick<dispatch, 2>("dispatch"))
      .def_property_readonly("receive", quick<take, 7>("receive"))
      .def_property_readonly("receive_many", quick<take_many, 2>("receive_many"))
      .def("close_round", &close_round, arg("if_due") = false)
      .def_property_readonly("is_due", read_by([](Engine& engine) { return engine.is_due(); }))
      .def_readwrite("by_time", &Shared::by_time)
      .def("hand_on", &hand_on)
      .def("forget",
           [](Shared& server, py::handle given, py::handle version) {
             const ClientId client = id_of(given);
             std::optional<int64_t> one;
             if (!version.is_none()) one = version_of(version, client);
             with_engine(server, [&](Engine& engine) { engine.forget(client, one); });
           })
      .def("expire",
           [](Shared& server, std::optional<int64_t> before) {
             return with_engine(server, [&](Engine& engine) { return engine.expire(before); });
           })
      .def_property(
          "lr", read_by([](Engine& engine) { return engine.optimizer.settings.lr; }),
          [](Shared& server, double lr) { with_engine(server, [&](Engine& engine) { engine.set_rate(lr); }); })
      .def("begin_incarnation",
           [](Shared& server, int64_t version, uint64_t number) { server.engine->begin_incarnation(version, number); })
      .def(
          "limit",
          [](Shared& server, double lease, int64_t max_delay, int64_t open_per_client, int64_t clients) {
            server.engine->limit({lease, max_delay, open_per_client, clients});
          },
          by_name, arg("lease"), arg("max_delay"), arg("open_per_client"), arg("clients"))
      .def("execute", &execute, arg("operation"), arg("body"), arg("update"))
      .def("attach",
           [](Shared& server, py::object journal) {
             server.log = py::cast<std::shared_ptr<log::Journal>>(journal);
             server.engine->records.attach(server.log);
             server.journal = std::move(journal);
           })
      .def("cut_rows", [](Shared& server, std::shared_ptr<store::RowCut> cut) { server.engine->cut = std::move(cut); })
      .def("watch",
           [](Shared& server, double slow, py::object tell) { server.slow = slow, server.tell = std::move(tell); })
      .def_readwrite("checks_models", &Shared::checks_models)
      .def("measure", [](Shared& server) { server.engine->measure(); })
      // what Python asks for on the current stream, to read what the server holds, comes after the server's work
      .def("follow", [](const Shared& server) { server.engine->follow(); })
      .def_property_readonly("flat", [](Shared& server) { return tensor_of(current(server).first, server.size); })
      // the same vector for the holder of the lock, who lets it go before: a later step may write to it
      .def_property_readonly("model",
                             [](Shared& server) {
                               server.engine->follow();
                               return tensor_of(server.engine->model.current, server.size);
                             })
      .def("current",
           [](Shared& server) {
             const auto [model, state] = current(server);
             return py::make_tuple(tensor_of(model, server.size), py::reinterpret_borrow<py::object>(object_of(state)));
           })
      .def("adopt", &adopt)
      .def_property_readonly("moments",
                             [](const Shared& server) {
                               server.engine->follow();
                               return moments_of(server.engine->optimizer);
                             })
      .def_property_readonly("moments_nbytes", [](const Shared& server) { return server.engine->optimizer.nbytes(); })
      .def_property_readonly("waiting", &waiting_of)
      .def("load_waiting", &load_waiting)
      .def_property_readonly("version", read_by([](Engine& engine) { return engine.ledger.now; }))
      .def_property_readonly("steps", read_by([](Engine& engine) { return engine.ledger.steps; }))
      .def_property_readonly("offset", read_by([](Engine& engine) { return engine.ledger.offset; }))
      .def_property_readonly("incarnations", read_by([](Engine& engine) { return engine.ledger.incarnations.all; }))
      // the ledger; the caller holds the lock
      .def(
          "find",
          [](Shared& server, py::handle client, py::handle version, py::handle task, py::handle offset,
             py::handle incarnation) {
            Answer asked;
            asked.client = id_of(client);
            asked.version = version_of(version, asked.client);
            asked.task = task_id_of(task), asked.offset = offset_of(offset);
            asked.incarnation = incarnation_of(incarnation);
            const auto found = reading(server, [&](Engine& engine) { return engine.find(asked); });
            return py::make_tuple(found.version, found.id);
          },
          arg("client"), arg("version") = py::none(), arg("task") = py::none(), arg("offset") = py::none(),
          arg("incarnation") = py::none())
      .def("check_client",
           [ledger](Shared& server, py::handle client) {
             const ClientId id = id_of(client);
             ledger(server).roster.clients.check(id);
             return plain(client, id);
           })
      .def("owes",
           [ledger](Shared& server, py::handle client, int64_t version) {
             const engine::Roster& roster = ledger(server).roster;
             const int64_t place = roster.clients.find(id_of(client));
             return place >= 0 && roster.tasks.find(place, version) != nullptr;
           })
      .def("owed",
           [ledger](Shared& server, py::handle client) {
             const engine::Ledger& of = ledger(server);
             return of.roster.owed(of.place_of(id_of(client)));
           })
      .def("tell_next",
           [ledger](Shared& server, py::handle client, int32_t steps) {
             engine::Ledger& of = ledger(server);
             const int64_t place = of.place_of(id_of(client));
             of.roster.tells_steps(), of.roster.tell_next(place, steps);
           })
      .def_property_readonly("kept",
                             [](const Shared& server) {
                               std::vector<store::Vector> kept;
                               for (const auto& [version, data] : server.engine->ledger.kept.all())
                                 kept.push_back(data);
                               return tensors_of(server, kept);
                             })
      .def_property_readonly(
          "held_before", [](const Shared& server) { return tensors_of(server, server.engine->model.held_before()); })
      .def_property_readonly("known", [ledger](Shared& server) { return ledger(server).roster.known; })
      .def_property_readonly("open_tasks", [ledger](Shared& server) { return ledger(server).roster.tasks.count(); })
      .def_property_readonly("expired", [ledger](Shared& server) { return ledger(server).leases.expired; })
      .def_property_readonly("oldest_task", [ledger](Shared& server) { return ledger(server).leases.oldest(); })
      .def_property_readonly("ledger_nbytes", [ledger](Shared& server) { return ledger(server).nbytes(); })
      .def_property(
          "skew", [ledger](Shared& server) { return ledger(server).leases.skew; },
          [ledger](Shared& server, double skew) { ledger(server).leases.skew = skew; })
      .def("tasks",
           [ledger](Shared& server) {
             auto state = ledger(server).state();
             const bool numbered = server.engine->settings.clients >= 0;
             return saved([&](engine::Archive& archive) { state.fields(archive, numbered, server.size); });
           })
      .def("load_tasks", [ledger](Shared& server, const py::dict& given) {
        engine::Ledger::State state;
        load(given, [&](engine::Archive& archive) { state.fields(archive, false, server.size); });
        ledger(server).load(state);
      });
}

}  // namespace fastagg::bindings
