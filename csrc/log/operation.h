// An operation is a change of a server. The log records operations, and a recovery executes the operations again. This
// file defines the bytes of operations. docs/log-format.md shows these bytes as a table.
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
  kIncarnation = 1,  // a new life of the server began: from `version` on, versions belong to `incarnation`
  kDispatch,
  kHandOn,  // an open task was also given to another client
  kAnswer,  // an answer was received: an update, a sum of updates, or a trained model minus its base model
  kCloseRound,
  kForget,  // a task was forgotten, or a client with all its tasks
  kRate,    // the learning rate was changed
  kExpire,  // all tasks of versions below `version` were ended
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
  kControl,       // vectors that a client sent besides the update, such as the change of a control variate
  kUpdates,       // the number of updates in a sum
  kPadding,       // zeros that align the next part in memory
  kOffset,        // the answer's offset in the message queue from which the answer was read
  kEncodedRole,   // an encoded update, in place of kParameters
  kParticipants,  // the ids of the clients whose updates are in a sum
  kRoles
};

// Codes of elements' types. The first three are those of Dtype (plan.h). docs/log-format.md lists all codes.
enum Element : uint8_t { kInt64 = 3, kElements = 12 };
size_t bytes_of(uint8_t element);

struct Part {
  uint8_t role, dtype;
  uint64_t count;  // the number of elements; for padding, an encoded update and clients' ids: the number of bytes
  const uint8_t* data = nullptr;
  size_t nbytes() const {
    return role == kPadding || role == kEncodedRole || role == kParticipants ? count : count * bytes_of(dtype);
  }
};

// The fixed fields of a record's body. The struct is packed, so that its size proves that kRecordFields has all members
// (static_assert below). Fields of 8 bytes come first, so that these fields are aligned.
#pragma pack(push, 1)
struct RecordFields {
  int64_t version = -1;      // the task's version; -1: none; kIncarnation, kExpire: as described at OperationKind
  uint64_t incarnation = 0;  // kAnswer: the incarnation of the answered version; kIncarnation: the new incarnation
  int64_t task = 0;          // kDispatch, kHandOn: the task's id; 0: the engine chooses the id
  double rate = 0.0;         // the new learning rate
  double share = 1.0;        // an update's weight in a mean; for a sum of updates: the sum of their weights
  // The following fields are the outcome of an answer, or of a round's end. `step_size` is NaN if no step was made.
  int64_t version_after = 0;
  double step_size = 0.0;
  double weight = 0.0, norm = 0.0;
  uint8_t known = 1;  // 0: the outcome was known only on a device, and the outcome's other fields are zeros
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
  bool again = false;  // whether an answer is executed for another task, so that its outcome may differ
  std::vector<Part> parts;
  std::optional<UploadFile> streamed;
};

template <typename Value>
struct Field {
  static constexpr size_t kBytes = sizeof(Value);
  static constexpr char kType = std::is_floating_point_v<Value> ? 'f' : std::is_signed_v<Value> ? 'i' : 'u';
  const char* name;  // the field's name in docs/log-format.md
  Value RecordFields::* value;
  uint32_t kinds;  // bit k is set if records of kind k have the field
};
template <typename Value, typename... Kinds>
constexpr Field<Value> field(const char* name, Value RecordFields::* value, Kinds... kinds) {
  return {name, value, (... | (1u << kinds))};
}

// All fixed fields, in the order of their bytes, with the kinds of records that have the field. In a record, these
// fields lie behind the client's id, if there is one. Records are written, read and described with this list. A change
// of the list changes the format.
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

// Calls `act` for each fixed field that records of this kind have.
template <typename Act>
constexpr void each_field(uint8_t kind, Act act) {
  std::apply([&](auto... field) { ((field.kinds >> kind & 1u ? act(field) : void()), ...); }, kRecordFields);
}

static_assert(std::apply([](auto... field) { return (field.kBytes + ...); }, kRecordFields) == sizeof(RecordFields),
              "a member of RecordFields is not in kRecordFields, or is there twice");

// `bytes_of` returns clients' ids as a part's bytes. `clients_in` returns the ids, or throws Refusal, kDamaged.
std::vector<uint8_t> bytes_of(const std::vector<ClientId>& clients);
std::vector<ClientId> clients_in(const Part& part);

// Reads a record's body. The operation's parts point into the body. Throws Refusal, kDamaged, if the body is invalid.
Operation read(uint8_t kind, const uint8_t* body, size_t length);

// Makes the record of an operation without parts.
RecordList record_of(Journal& journal, const Operation& operation);
// Makes the record of an answer. Points each part's `data` into the record's body, where the caller then writes the
// part's elements. When the outcome is known, `decide` writes the fixed fields again.
RecordList record_of_answer(Journal& journal, Operation& operation);
void decide(Entry& entry, const Operation& operation);

}  // namespace fastagg::log
