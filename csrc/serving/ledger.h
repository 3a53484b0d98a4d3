// Who was sent which version and has not answered it yet, and which versions are kept for that. Everything is O(1) in
// the number of clients: 16 bytes for each, and 24 for each open task; with a lease some 32 for each that went out
// within its time.
//
// What may fail is done before anything changes; `close` and `tell_next` cannot fail.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <deque>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fastagg::serving {

namespace py = pybind11;

// Become fastagg.errors.UnknownClient, UnknownVersion and Busy.
class Busy : public std::runtime_error {
  using std::runtime_error::runtime_error;
};
class UnknownClient : public std::runtime_error {
  using std::runtime_error::runtime_error;
};
class UnknownVersion : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr int64_t kLongestName = 256;  // characters of a client's id

// How long a server waits for its clients, and for how many.
struct Limits {
  double lease = std::numeric_limits<double>::infinity();         // seconds that a task may take
  int64_t max_delay = std::numeric_limits<int64_t>::max();        // versions that a task may be old
  int64_t open_per_client = std::numeric_limits<int64_t>::max();  // unanswered tasks of one client
  int64_t clients = std::numeric_limits<int64_t>::max();          // that are known at a time
  bool expires() const { return lease < std::numeric_limits<double>::infinity() || max_delay < INT64_MAX; }
};

class Ledger {
 public:
  // Clients are the whole numbers 0..clients-1, or any 64-bit number and any name if `clients` is negative. `keeps`:
  // whether what goes with a version is kept for as long as a client may answer it.
  Ledger(int64_t clients, bool keeps) : numbered_(clients), keeps_(keeps) {
    if (clients > 0) records_.resize(static_cast<size_t>(clients));
  }

  Limits limits;
  double skew = 0.0;  // seconds by which this ledger's clock is ahead: for tests

  int64_t now = 0;    // the version: t, steps of the model so far, with those that left it as it was
  int64_t steps = 0;  // of the optimizer

  // The id as it is kept: a whole number or a plain string.
  py::object identify(py::handle id) const;

  // What an answer refers to.
  struct Found {
    int64_t client;  // place of its record; its number, where clients are numbered
    int64_t version;
    int32_t told;  // local steps it was told to take; 0 if it was told none
  };
  Found find(py::handle id, py::handle version) const;

  // The local steps that `id` is told to take with its next task: what was said for it, else `usual`.
  int32_t told(py::handle id, int32_t usual) const;
  // `id` gets that version, and is told so many steps; twice the same is one task, as it was sent last. Returns the
  // place of its record.
  int64_t send(py::handle id, int64_t version, int32_t told, const py::object& payload);

  void close(int64_t client, int64_t version) noexcept;

  // Tasks end whose lease is over or whose version is too old; clients that owe nothing and were not heard of for as
  // long are forgotten. `most` of them at a time; all, if it is negative. How many tasks ended.
  int64_t expire(int64_t most);
  // For who writes down what became of every task: what `expire` ended and nobody took yet, (client, version), and
  // (client, -1) for who was forgotten, in the order in which it happened. Noted where `notes_ended` is set.
  bool notes_ended = false;
  const std::pair<py::object, int64_t>* first_ended() const { return ended_.empty() ? nullptr : &ended_.front(); }
  void pop_ended() { ended_.pop_front(); }
  // Every lease begins anew, under the limits that hold now.
  void renew();
  // All tasks of versions below this one end.
  int64_t expire_before(int64_t version);
  int64_t expired() const { return expired_; }  // so far
  int64_t open_tasks() const { return open_; }
  double oldest_task()
      const;  // seconds since the oldest task with a lease went out, answered or not; 0 if there is none
  void tell_next(int64_t client, int32_t told) noexcept { records_[static_cast<size_t>(client)].steps = told; }
  void tell_next_to(py::handle id, int32_t told) { tell_next(known_place(id), told); }
  void forget(py::handle id);  // its tasks, and that it was ever known

  std::vector<int64_t> owed(py::handle id) const;
  bool owes(py::handle id, int64_t version) const;
  py::object payload(int64_t version) const;  // None if nothing is kept
  py::list payloads() const;
  int64_t nbytes() const;
  int64_t known() const { return known_; }

  py::dict state() const;
  void load(const py::dict& state);

 private:
  struct Record {
    int64_t last = -1;  // version last sent; negative: never
    int32_t task = -1;  // first open one
    int32_t steps = 0;
  };
  struct Task {
    int64_t version;
    int32_t told;
    int32_t next;
    double ends;  // when its lease is over
  };
  // A task that went out, in the order in which they did.
  struct Due {
    double ends;
    int64_t version, place;
    py::object id;
  };
  struct Held {
    int64_t count = 0;
    py::object payload;
  };

  std::vector<std::pair<int64_t, py::object>> known_clients() const;  // by their places: in the order they came
  static bool is_named(py::handle plain);                             // kept by a key, and not by a number of 63 bits
  int64_t place_of(py::handle id) const;                              // -1: unknown
  int64_t place_for(py::handle id);                                   // made if it is new
  int64_t known_place(py::handle id) const;
  const Task* task_of(const Record& record, int64_t version) const;
  double clock() const;
  bool over(const Task& task, double time) const { return task.ends <= time || task.version < now - limits.max_delay; }
  void drop(py::handle id, int64_t place);  // its record; it owes nothing any more
  void open(Record& record, int64_t version, int32_t told, const py::object& payload, double ends);
  void check_limits(py::handle id, int64_t place) const;

  int64_t numbered_;
  bool keeps_;
  std::vector<Record> records_;
  std::vector<Task> tasks_;
  int32_t free_task_ = -1;
  std::vector<int64_t> free_records_;
  std::unordered_map<int64_t, int64_t> numbers_;
  std::unordered_map<std::string, int64_t> names_;
  std::unordered_map<int64_t, Held> held_;
  std::deque<Due> due_;  // empty where nothing expires
  std::deque<std::pair<py::object, int64_t>> ended_;
  int64_t known_ = 0, open_ = 0, expired_ = 0;
};

}  // namespace fastagg::serving
