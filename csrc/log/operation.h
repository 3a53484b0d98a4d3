// An operation is what changed a server: the log writes it, a recovery executes it. This
// file has its bytes; docs/log-format.md has the table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../client_id.h"
#include "../plan.h"
#include "journal.h"

namespace fastagg::log {

enum OperationKind : uint8_t {
  kIncarnation = 1,  // from a version on, versions belong to another incarnation of the server
  kDispatch,
  kHandOn,  // an open task was given to one more client
  kAnswer,  // an update, a sum or a trained model's difference, as it was stepped
  kCloseRound,
  kForget,  // a task, or a client with all of its tasks
  kRate,    // the learning rate
  kExpire,  // all tasks of versions below `version`
  kKinds
};
const char* name_of(OperationKind kind);

// What a part of an answer is: parameters, statistics, counters, a control variate, of how many updates a sum is made,
// nothing (it aligns what comes behind it), an offset in a sender's log, an encoded update, or whose updates a sum is
// of.
enum Role : uint8_t {
  kParameters,
  kBuffers,
  kCounter,
  kControl,
  kUpdates,
  kPadding,
  kOffset,
  kEncodedRole,
  kParticipants,
  kRoles
};

// Types of elements; the first ones are those of Dtype (plan.h).
enum Element : uint8_t { kInt64 = 3, kElements = 12 };
size_t bytes_of(uint8_t element);

struct Part {
  uint8_t role, dtype;
  uint64_t count;  // of elements; bytes of padding, of an encoded update and of clients' ids
  const uint8_t* data = nullptr;
  size_t nbytes() const {
    return role == kPadding || role == kEncodedRole || role == kParticipants ? count : count * bytes_of(dtype);
  }
};

// The outcome of an answer, or of a round's end, which has no weight and no norm, as it lies in a record.
#pragma pack(push, 1)
struct RecordedOutcome {
  uint8_t known = 1;  // 0: only a device knew it
  uint8_t applied = 0;
  int64_t version = 0;     // afterwards
  double step_size = 0.0;  // NaN: no step
  double weight = 0.0, norm = 0.0;
};
#pragma pack(pop)
static_assert(sizeof(RecordedOutcome) == 34);

struct UploadFile {  // the file of an upload
  uint64_t number, nbytes;
  uint32_t crc;
  uint8_t dtype;
};

struct Operation {
  OperationKind kind = kDispatch;
  ClientId client;
  int64_t version = -1;      // that was sent or answered; -1: none; kIncarnation: the first of it
  uint64_t incarnation = 0;  // of an answer's version; kIncarnation: the new one
  int64_t task = 0;          // kDispatch, kHandOn: its id; 0: not known yet
  double rate = 0.0;
  // Fields of an answer:
  double share = 1.0;  // in a mean; a sum's weight
  bool again = false;  // it is given once more, as an answer to a new task: its outcome may be another one
  RecordedOutcome decided;
  std::vector<Part> parts;
  std::optional<UploadFile> streamed;
};

// Clients' ids as the bytes of a part, and back. Throws Refusal, kDamaged.
std::vector<uint8_t> bytes_of(const std::vector<ClientId>& clients);
std::vector<ClientId> clients_in(const Part& part);

// Reads a record's body. Parts lie in it. Throws Refusal, kDamaged.
Operation read(uint8_t kind, const uint8_t* body, size_t length);

// The record of an operation without parts.
RecordList record_of(Journal& journal, const Operation& operation);
// The record of an answer, with memory for its parts, where each part's `data` then points; `decide` writes the
// outcome.
RecordList record_of_answer(Journal& journal, Operation& operation);
void decide(Entry& entry, const Operation& operation);

}  // namespace fastagg::log
