// The ledger knows which client was sent which version and has not answered it yet, and which versions are kept for
// that. Every operation takes O(1) time in the number of clients. Memory: 16 bytes per client and 24 per open task.
// With a lease, also about 32 bytes for each task that was sent within the lease's time.
//
// All that may fail happens before anything changes. `close` and `tell_next` cannot fail.
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

// In Python: fastagg.errors.UnknownClient, UnknownVersion and Busy.
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

// How long a server waits for its clients, and how many tasks and clients it allows.
struct Limits {
  double lease = std::numeric_limits<double>::infinity();         // the most seconds that a task may take
  int64_t max_delay = std::numeric_limits<int64_t>::max();        // the most versions that a task may be old
  int64_t open_per_client = std::numeric_limits<int64_t>::max();  // the most unanswered tasks of one client
  int64_t clients = std::numeric_limits<int64_t>::max();          // the most clients known at a time
  bool expires() const { return lease < std::numeric_limits<double>::infinity() || max_delay < INT64_MAX; }
};

class Ledger {
 public:
  // `clients` >= 0: the ids are the whole numbers 0..clients-1. Negative: any 64-bit number and any name is an id.
  // `keeps`: whether the data of a version is kept for as long as a client may answer it.
  Ledger(int64_t clients, bool keeps) : numbered_(clients), keeps_(keeps) {
    if (clients > 0) records_.resize(static_cast<size_t>(clients));
  }

  Limits limits;
  double skew = 0.0;  // seconds by which this clock is ahead; for tests
  // The time at which leases are compared, for ledgers in several processes that must end the same tasks. NaN: this
  // process' clock.
  double given_time = std::numeric_limits<double>::quiet_NaN();
  double own_time() const;  // seconds, by this process' clock

  int64_t now = 0;    // the version t: counts all steps of the model, also those that left it unchanged
  int64_t steps = 0;  // the optimizer's steps

  // The id in the stored form: a whole number or a plain string.
  py::object identify(py::handle id) const;

  // The task that an answer refers to.
  struct Found {
    int64_t client;  // the place of the client's record; its number, if clients are numbered
    int64_t version;
    int32_t told;  // the local steps it was told to take; 0 if none were told
  };
  Found find(py::handle id, py::handle version) const;

  // The local steps that `id` is told to take with its next task: its own number if one was set, otherwise `usual`.
  int32_t told(py::handle id, int32_t usual) const;
  // Records that `id` was sent that version and told so many steps. Sending a version twice makes one task, with the
  // values of the last time. Returns the place of the client's record.
  int64_t send(py::handle id, int64_t version, int32_t told, const py::object& payload);

  void close(int64_t client, int64_t version) noexcept;

  // Ends tasks whose lease is over or whose version is too old. Forgets clients that have no open task and were not
  // heard of for the same time. Looks at `most` of the sent tasks; at all, if it is negative. Returns how many ended.
  int64_t expire(int64_t most);
  // What `expire` ended and the journal has not recorded yet, in order of time: (client, version) for a task, (client,
  // -1) for a client that was forgotten. It is noted only if `notes_ended` is set.
  bool notes_ended = false;
  const std::pair<py::object, int64_t>* first_ended() const { return ended_.empty() ? nullptr : &ended_.front(); }
  void pop_ended() { ended_.pop_front(); }
  // All leases begin anew, under the current limits.
  void renew();
  // Ends all tasks of versions below this one.
  int64_t expire_before(int64_t version);
  int64_t expired() const { return expired_; }  // tasks that have expired so far
  int64_t open_tasks() const { return open_; }
  // The seconds since the oldest task with a lease was sent, answered or not. 0 if there is none.
  double oldest_task() const;
  void tell_next(int64_t client, int32_t told) noexcept { records_[static_cast<size_t>(client)].steps = told; }
  void tell_next_to(py::handle id, int32_t told) { tell_next(known_place(id), told); }
  void forget(py::handle id);  // ends its tasks and removes it

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
    int64_t last = -1;  // the version sent last; negative: none was sent
    int32_t task = -1;  // the first open task
    int32_t steps = 0;
  };
  struct Task {
    int64_t version;
    int32_t told;
    int32_t next;
    double ends;  // the end of its lease
  };
  // A task that was sent. The queue has them in the order in which they were sent.
  struct Due {
    double ends;
    int64_t version, place;
    py::object id;
  };
  struct Held {
    int64_t count = 0;
    py::object payload;
  };

  // ordered by place: in the order in which they came
  std::vector<std::pair<int64_t, py::object>> known_clients() const;
  static bool is_named(py::handle plain);  // whether it is stored by name, not by number
  int64_t place_of(py::handle id) const;   // -1: unknown
  int64_t place_for(py::handle id);        // creates the place for a new client
  int64_t known_place(py::handle id) const;
  const Task* task_of(const Record& record, int64_t version) const;
  double clock() const;
  bool over(const Task& task, double time) const { return task.ends <= time || task.version < now - limits.max_delay; }
  void drop(py::handle id, int64_t place);  // removes its record; it has no open task
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
  std::deque<Due> due_;  // empty if nothing expires
  std::deque<std::pair<py::object, int64_t>> ended_;
  int64_t known_ = 0, open_ = 0, expired_ = 0;
};

}  // namespace fastagg::serving
