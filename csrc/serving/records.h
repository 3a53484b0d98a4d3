// Encodes records as bytes; fastagg/serving/records.py decodes them. Also holds the memory of a call's updates until
// their records are on the disk.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <tuple>
#include <vector>

#include "../plan.h"
#include "journal.h"

namespace fastagg::serving {

enum Kind : uint8_t { kDispatch = 2, kHandOn, kArrival, kCloseRound, kForget, kRate, kExpire, kRow };

// A record of a client and a version. The version is -1 if there is none.
Queued record_of(Kind kind, py::handle client, int64_t version);
Queued record_of(Kind kind);
Queued record_of_rate(double lr);

// What a part of an answer is: parameters, statistics, counters, a control variate, an encoded row (its type is the
// row's format, its count bytes), or of how many updates a leaf's sum is made.
enum Role : uint8_t { kParameters, kBuffers, kCounter, kControl, kRowRole, kUpdates };

// A part of what a client sent. Types are numbered as in records.py; the first ones are those of Dtype.
constexpr uint8_t kInt64 = 3;
struct Sent {
  uint8_t role, dtype;
  uint64_t count;
  const void* data;
};

// What came with an answer in addition to an update's pieces.
struct Note {
  bool given = false, known = true;  // known: whether the outcome is decided when the call returns
  double share = 1.0;                // the client's share, before a rule weighs it
  std::vector<Sent> sent;
  std::shared_ptr<Blob> blob;  // the file with the parameters, if they were streamed
  py::object owners;
};

// The note of an update whose parameters lie where `update` says. `owners`: of the memory.
Note note_of(const Update& update, double share, py::object owners);

// The outcome of an arrival.
struct Decided {
  bool applied;
  int64_t version;
  double step_size;  // NaN: no step
  double weight, norm;
};

// What a record (kRow) holds in place of an update whose whole effect follows from the row that it becomes.
struct CodedRow {
  int format;
  int64_t nbytes;  // 0: the update was dropped and becomes no row
};

// Holds one call's updates until they are on the disk: the large ones for which a sender waits. Their bytes stay in the
// sender's memory. However the call ends, it leaves this object only when nobody reads these bytes any more.
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

  void make_room();                                        // for one more update
  void add(uint64_t sequence, py::object owner) noexcept;  // `make_room` was called before

  Note note;          // for the next answer
  uint64_t last = 0;  // the last record for which its sender waits

 private:
  static thread_local Held* innermost;
  std::shared_ptr<Journal> journal_;
  Held* outer_ = nullptr;
  bool inside_ = false;
  struct First {  // most calls have only one
    uint64_t sequence = 0;
    py::object owner;
  };
  First first_;
  std::vector<uint64_t> sequences_;
  std::vector<py::object> owners_;
};

// The record of an answer, while its call runs.
class Arriving {
 public:
  // Does everything that may fail. `owner` holds the memory of `update`; null: the bytes must be copied. `row`: what
  // the update becomes; null: the record holds the update itself, as it does if the update is in a file already. Does
  // nothing if there is no journal.
  void prepare(const std::shared_ptr<Journal>& journal, py::handle client, int64_t version, uint64_t life, double share,
               const Update& update, const Decided& decided, const py::object* owner, const CodedRow* row);
  // Where the step must put the row before `push`; null: nowhere.
  void* row_place() const { return entry_ ? entry_->row.get() : nullptr; }
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
