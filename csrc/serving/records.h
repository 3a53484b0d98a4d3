// What a record says, as bytes; fastagg/serving/records.py reads them. And what a call holds until its records are on
// the disk.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <tuple>
#include <vector>

#include "../plan.h"
#include "journal.h"

namespace fastagg::serving {

enum Kind : uint8_t { kDispatch = 2, kHandOn, kArrival, kCloseRound, kForget, kRate, kExpire };

// A client and a version, which is -1 where there is none.
Queued record_of(Kind kind, py::handle client, int64_t version);
Queued record_of(Kind kind);
Queued record_of_rate(double lr);

// A part of what a client sent: where it belongs (parameters, statistics, counters, a control variate) and its type, as
// records.py numbers them.
struct Sent {
  uint8_t role, dtype;
  uint64_t count;
  const void* data;
};

// What came with an answer, where that is more than an update's pieces.
struct Note {
  bool given = false, known = true;  // known: whether it is decided when the call returns
  double share = 1.0;                // before anybody weighed it
  std::vector<Sent> sent;
  std::shared_ptr<Blob> blob;  // its parameters are there
  py::object owners;
};

// What was decided.
struct Decided {
  bool applied;
  int64_t version;
  double step_size;  // NaN: no step
  double weight, norm;
};

// One call's updates whose bytes stay where they are until they are on the disk: those that somebody waits for and that
// are large. It is left, however that happens, when nobody reads them any more.
class Held {
 public:
  explicit Held(std::shared_ptr<Journal> journal) : journal_(std::move(journal)) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() { leave(); }

  void enter();
  void leave() noexcept;
  void wait() { journal_->wait(last); }
  static Held* current() { return innermost; }  // of this thread

  void make_room();                                        // for one more
  void add(uint64_t sequence, py::object owner) noexcept;  // there is room for it

  Note note;          // of the answer that comes next
  uint64_t last = 0;  // the last record that its sender waits for

 private:
  static thread_local Held* innermost;
  std::shared_ptr<Journal> journal_;
  Held* outer_ = nullptr;
  bool inside_ = false;
  struct First {  // most calls have no more than one
    uint64_t sequence = 0;
    py::object owner;
  };
  First first_;
  std::vector<uint64_t> sequences_;
  std::vector<py::object> owners_;
};

// An answer's record, on its way through one call.
class Arriving {
 public:
  // Everything that may fail. `owner` holds the memory of `update`; null: it must be copied. Nothing, if there is no
  // journal.
  void prepare(const std::shared_ptr<Journal>& journal, py::handle client, int64_t version, uint64_t life, double share,
               const Update& update, const Decided& decided, const py::object* owner);
  void push() noexcept;
  uint64_t sequence() const { return sequence_; }

 private:
  Journal* journal_ = nullptr;
  Queued entry_;
  uint64_t sequence_ = 0;
  py::object owner_;
  bool outside_ = false;
};

}  // namespace fastagg::serving
