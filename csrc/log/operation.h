// An operation is a change of a server. The log records operations, and a recovery executes the operations again. This
// file defines the bytes of operations, which docs/log-format.md shows as a table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "../client_id.h"
#include "../plan.h"
#include "journal.h"

namespace fastagg::log {

enum OperationKind : uint8_t {
  kIncarnation = 1,  // from `version` on, versions belong to incarnation `incarnation` of the server
  kDispatch,
  kHandOn,  // an open task was given to one more client
  kAnswer,  // an update, a sum of updates, or the difference between a trained model and its base
  kCloseRound,
  kForget,  // a task is forgotten, or a client is forgotten with all its tasks
  kRate,    // the learning rate changes
  kExpire,  // all tasks of versions below `version` end
  kKinds
};
const char* name_of(OperationKind kind);
constexpr bool has_client(uint8_t kind) {
  return kind == kDispatch || kind == kHandOn || kind == kAnswer || kind == kForget;
}

// The content of a part of an answer.
enum Role : uint8_t {
  kParameters,
  kBuffers,       // BatchNorm's statistics
  kCounter,       // BatchNorm's counters
  kControl,       // vectors besides the update, such as a control variate
  kUpdates,       // the number of updates in a sum
  kPadding,       // zeros that align the next part
  kOffset,        // the answer's offset in the queue that it was read from
  kEncodedRole,   // an encoded update, in place of kParameters
  kParticipants,  // the ids of the clients whose updates are in a sum
  kRoles
};

// Types of elements (docs/log-format.md lists all). The first three are those of Dtype (plan.h).
enum Element : uint8_t { kInt64 = 3, kElements = 12 };
size_t bytes_of(uint8_t element);

struct Part {
  uint8_t role, dtype;
  uint64_t count;  // the number of elements; of bytes for padding, an encoded update and clients' ids
  const uint8_t* data = nullptr;
  size_t nbytes() const {
    return role == kPadding || role == kEncodedRole || role == kParticipants ? count : count * bytes_of(dtype);
  }
};

// The fixed fields of a record's body. The struct is packed, so that its size proves that kRecordFields has all members
// (static_assert below). Fields of 8 bytes come first, so that these fields are aligned.
#pragma pack(push, 1)
struct RecordFields {
  int64_t version = -1;      // the version sent or answered; -1: none; of kIncarnation: the incarnation's first version
  uint64_t incarnation = 0;  // the incarnation of an answer's version; of kIncarnation: the new incarnation
  int64_t task = 0;          // the task's id; 0: not known yet
  double rate = 0.0;         // the new learning rate
  double share = 1.0;        // an update's weight in a mean; of a sum: the total weight of its updates
  // The following fields are the outcome of an answer, or of a round's end.
  int64_t version_after = 0;
  double step_size = 0.0;  // NaN: no step
  double weight = 0.0, norm = 0.0;
  uint8_t known = 1;  // 0: the outcome was on a device and is not recorded
  uint8_t applied = 0;
};
#pragma pack(pop)

struct UploadFile {  // the file into which an update was streamed
  uint64_t number, nbytes;
  uint32_t crc;
  uint8_t dtype;
};

struct Operation : RecordFields {
  OperationKind kind = kDispatch;
  ClientId client;
  bool again = false;  // whether the answer is executed for a new task, so that its outcome may differ
  std::vector<Part> parts;
  std::optional<UploadFile> streamed;
};

template <typename Value>
struct Field {
  static constexpr size_t kBytes = sizeof(Value);
  static constexpr char kType = std::is_floating_point_v<Value> ? 'f' : std::is_signed_v<Value> ? 'i' : 'u';
  const char* name;  // as in docs/log-format.md
  Value RecordFields::* value;
  uint32_t kinds;  // bit k is set if records of kind k have the field
};
template <typename Value, typename... Kinds>
constexpr Field<Value> field(const char* name, Value RecordFields::* value, Kinds... kinds) {
  return {name, value, (... | (1u << kinds))};
}

// All fixed fields, in the order of their bytes. In a record, these fields lie behind the client, if there is a client.
// This list is used to write, read and describe records. A change of the list changes the format.
constexpr auto kRecordFields = std::make_tuple(                                  //
    field("version", &RecordFields::version, kIncarnation, kExpire),             //
    field("task", &RecordFields::task, kDispatch, kHandOn),                      //
    field("rate", &RecordFields::rate, kRate),                                   //
    field("share", &RecordFields::share, kAnswer),                               //
    field("incarnation", &RecordFields::incarnation, kIncarnation, kAnswer),     //
    field("known", &RecordFields::known, kAnswer, kCloseRound),                  //
    field("applied", &RecordFields::applied, kAnswer, kCloseRound),              //
    field("version after", &RecordFields::version_after, kAnswer, kCloseRound),  //
    field("step size", &RecordFields::step_size, kAnswer, kCloseRound),          //
    field("weight", &RecordFields::weight, kAnswer),                             //
    field("norm", &RecordFields::norm, kAnswer));

// Calls `act` for each field of a kind's records.
template <typename Act>
constexpr void each_field(uint8_t kind, Act act) {
  std::apply([&](auto... field) { ((field.kinds >> kind & 1u ? act(field) : void()), ...); }, kRecordFields);
}

static_assert(std::apply([](auto... field) { return (field.kBytes + ...); }, kRecordFields) == sizeof(RecordFields),
              "a member of RecordFields is not in kRecordFields, or is there twice");

// Convert clients' ids to the bytes of a part, and back. `clients_in` throws Refusal, kDamaged.
std::vector<uint8_t> bytes_of(const std::vector<ClientId>& clients);
std::vector<ClientId> clients_in(const Part& part);

// Reads a record's body. The parts of the returned operation point into the body. Throws Refusal, kDamaged.
Operation read(uint8_t kind, const uint8_t* body, size_t length);

// Makes the record of an operation without parts.
RecordList record_of(Journal& journal, const Operation& operation);
// Makes the record of an answer. Points each part's `data` into the record's body, where the caller then writes the
// part's elements. When the outcome is known, `decide` writes the fixed fields again.
RecordList record_of_answer(Journal& journal, Operation& operation);
void decide(Entry& entry, const Operation& operation);

}  // namespace fastagg::log
