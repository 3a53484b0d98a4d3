// The C++ object of Python's class `Engine`, and a holder of the engine's lock. The class's functions are in several
// files: answers and rounds (answers.cpp), tasks (tasks.cpp), records of a log (replay.cpp), state (engine.cpp).
#pragma once

#include <limits>
#include <memory>
#include <optional>

#include "../engine/engine.h"
#include "../store/process.h"
#include "host.h"
#include "reader.h"

namespace fastagg::bindings {

// An engine, and the Python objects that the engine's results need.
struct ServerObject {
  std::shared_ptr<engine::Engine> engine;  // a caller that does not hold the engine's lock must call now()
  int64_t size;
  py::object layout, task_type, receipt_type;
  bool has_control;
  std::optional<UpdateReader> reader;  // reads the usual forms of updates; none: Python reads all updates
  py::object journal = py::none();
  std::shared_ptr<log::Journal> log;  // the C++ object of `journal`; null: the server has no log
  py::object tell = py::none();
  double slow = std::numeric_limits<double>::infinity();  // in seconds; `tell` is called after slower answers
  bool by_time = false;                                   // whether each call first ends a round whose time is over
  int32_t device = -1;                                    // the CUDA device of the kernels; negative: the CPU

  // In a forked child the atomic's lock may be held by a thread that the child does not have. The child has only one
  // thread, so it reads the engine without the atomic.
  std::shared_ptr<engine::Engine> now() const {
    return store::process() == process ? std::atomic_load(&engine) : engine;
  }
  const int process = store::process();
  // Whether a call takes so long that it releases the GIL. For a server on a device, only waits for the device take
  // long. Such a wait releases the GIL itself.
  bool is_long() const { return device < 0 && size >= kWorthReleasing; }
  PyTypeObject* receipts() const { return reinterpret_cast<PyTypeObject*>(receipt_type.ptr()); }
};

// Calls `act` with the engine. If another engine replaces that engine meanwhile, calls `act` again with the new engine.
template <typename Act>
auto with_engine(ServerObject& server, Act act) {
  for (;;) {
    const std::shared_ptr<engine::Engine> engine = server.now();
    try {
      return act(*engine);
    } catch (const Refusal& refused) {
      if (refused.why != Why::kRetired || engine == server.now()) throw;
    }
  }
}

// Holds the engine's lock from `enter` to `leave`. If `reads` is true, the thread may hold the lock already, because a
// user's own rule may read the server.
class LockHolder {
 public:
  LockHolder(ServerObject& server, bool reads) : server_(server), reads_(reads) {}
  void enter() {
    store::keep_reserve();
    with_engine(server_, [this](engine::Engine& engine) {
      if (reads_ && engine.lock.is_mine()) return;
      engine.lock.enter();
      engine_ = engine.shared_from_this();
    });
  }
  void leave() noexcept {
    if (engine_) engine_->lock.leave();
    engine_.reset();
  }
  ~LockHolder() { leave(); }

 private:
  ServerObject& server_;
  const bool reads_;
  std::shared_ptr<engine::Engine> engine_;
};

template <typename Act>
auto reading(ServerObject& server, Act act) {
  LockHolder held(server, true);
  held.enter();
  return act(*server.engine);
}

// -- Functions that Python calls, and their helpers. Python calls those with the parameter `args` directly, without
// pybind11's conversion of arguments.

// receive(client, update, version, num_samples, task, offset, incarnation): returns the receipt, or None if only Python
// can read the update. Python then calls again with the update's Numbers.
PyObject* take(ServerObject& server, PyObject* const* args);
// receive_many(answers, read_in_python, outcomes): receives a list of fastagg.Answer objects. Appends the receipt or
// error of each answer to `outcomes`. `read_in_python` is called for an answer that only Python can read.
PyObject* take_many(ServerObject& server, PyObject* const* args);
// Ends the round. If `if_due` is true, only ends a round whose time is over. Returns the step size, or None if no step
// was made. Waits for the disk if the senders of a step wait for the disk.
py::object close_round(ServerObject& server, bool if_due);
// If `by_time`, ends a round whose time is over. To be called before a version is sent or an answer is received.
inline void close_if_due(ServerObject& server) {
  if (server.by_time) close_round(server, true);
}
// Notes that an answer's numbers are in host memory. The engine then sends the numbers to the device.
void stay_in_host(engine::Numbers& numbers);
void bind_numbers(py::module_& m);

// dispatch(client, format, local_steps): returns a new task. `format`: the index in WireFormats of the model's
// encoding, or None for no encoding. `local_steps`: replaces the rule's number of local steps if it is above 0.
PyObject* dispatch(ServerObject& server, PyObject* const* args);
// Makes a task for client `to`, with the version and the model of the task of `from`.
py::object hand_on(ServerObject& server, py::handle from, py::handle to, int32_t local_steps);

// Executes the operation of a log's record. `body` has the record's bytes. `update`: the update if it was streamed into
// a file, else None.
void execute(ServerObject& server, const log::Operation& operation, const py::object& body, const py::object& update);

}  // namespace fastagg::bindings
