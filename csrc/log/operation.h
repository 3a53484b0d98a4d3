// An operation is a change of a server. The log records operations, and a recovery executes the operations again. This
// file defines the bytes of operations, with the table of docs/log-format.md.
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
  kAnswer,  // an update, a sum, or the difference between a trained model and its base
  kCloseRound,
  kForget,  // a task is forgotten, or a client with all of its tasks
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
  kBuffers,  // BatchNorm's statistics
  kCounter,  // BatchNorm's counters
  kControl,  // vectors besides the update, such as a control variate
  kUpdates,  // the number of a sum's updates
  kPadding,  // aligns the parts behind it
  kOffset,   // the answer's offset in the queue that it was read from
  kEncodedRole,
  kParticipants,  // the ids of the clients of a sum's updates
  kRoles
};

// Types of elements. The first three are those of Dtype (plan.h).
enum Element : uint8_t { kInt64 = 3, kElements = 12 };
size_t bytes_of(uint8_t element);

struct Part {
  uint8_t role, dtype;
  uint64_t count;  // the number of elements; for padding, an encoded update and clients' ids: of bytes
  const uint8_t* data = nullptr;
  size_t nbytes() const {
    return role == kPadding || role == kEncodedRole || role == kParticipants ? count : count * bytes_of(dtype);
  }
};

// The fixed fields of a record's body. Packed, so that the size shows a member without an entry in kRecordFields.
// Fields of 8 bytes come first, so that they are aligned.
#pragma pack(push, 1)
struct RecordFields {
  int64_t version = -1;      // the version sent or answered; -1: none; kIncarnation: the incarnation's first
  uint64_t incarnation = 0;  // of an answer's version; kIncarnation: the new incarnation
  int64_t task = 0;          // the task's id; 0: not known yet
  double rate = 0.0;
  double share = 1.0;  // an update's share in a mean; the sum of a sum's shares
  // The outcome of an answer, or of a round's end:
  int64_t version_after = 0;
  double step_size = 0.0;  // NaN: no step
  double weight = 0.0, norm = 0.0;
  uint8_t known = 1;  // 0: the outcome was known only to a device
  uint8_t applied = 0;
};
#pragma pack(pop)

struct UploadFile {  // the file of an upload
  uint64_t number, nbytes;
  uint32_t crc;
  uint8_t dtype;
};

struct Operation : RecordFields {
  OperationKind kind = kDispatch;
  ClientId client;
  bool again = false;  // the answer is given once more, to a new task, so its outcome may differ
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

// All fixed fields, in the order of their bytes. They stand behind the client, if the record has one. Records are
// written, read and described by this list. A change of the list changes the format (tests compare docs/log-format.md).
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

// Reads a record's body. Its parts' `data` points into the body. Throws Refusal, kDamaged.
Operation read(uint8_t kind, const uint8_t* body, size_t length);

// Makes the record of an operation without parts.
RecordList record_of(Journal& journal, const Operation& operation);
// Makes the record of an answer, with memory for its parts, and points each part's `data` to that memory. `decide`
// writes the fixed fields again when the outcome is known.
RecordList record_of_answer(Journal& journal, Operation& operation);
void decide(Entry& entry, const Operation& operation);

}  // namespace fastagg::log
