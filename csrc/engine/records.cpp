#include "records.h"

#include <cmath>
#include <cstring>

#include "../store/encoded.h"
#include "transaction.h"

namespace fastagg::engine {
namespace {

// Returns the parts of a record that are copied unchanged: an encoded update, and everything besides the update. `ids`
// has the participants' ids as bytes.
std::vector<log::Part> rest_of(const Answer& answer, const Update& numbers, const std::vector<uint8_t>& ids) {
  std::vector<log::Part> rest;
  const auto add = [&](log::Role role, uint8_t type, size_t count, const void* from) {
    if (count > 0) rest.push_back({role, type, count, static_cast<const uint8_t*>(from)});
  };
  if (!answer.blob && store::is_encoded(numbers)) {
    const store::Encoded& encoded = *store::encoded_in(numbers);
    add(log::kEncodedRole, 0, static_cast<size_t>(encoded.nbytes), encoded.bytes);
  }
  if (const ReportedStatistics* const reported = answer.reported.get()) {
    add(log::kBuffers, kFloat32, static_cast<size_t>(reported->size), reported->values.data);
    add(log::kCounter, log::kInt64, reported->counters.size(), reported->counters.data());
  }
  if (answer.control) add(log::kControl, kFloat32, static_cast<size_t>(answer.control_size), answer.control.data);
  if (answer.kind == Answer::kSum) add(log::kUpdates, log::kInt64, 1, &answer.count);
  add(log::kParticipants, 0, ids.size(), ids.data());
  if (answer.offset >= 0) add(log::kOffset, log::kInt64, 1, &answer.offset);
  return rest;
}

}  // namespace

std::vector<log::Part> parts_of(const Answer& answer, const Update& update) {
  if (answer.base) return {{log::kParameters, kFloat32, static_cast<uint64_t>(update.size)}};
  std::vector<log::Part> parts;
  for (const Piece& piece : update.pieces) {
    const auto dtype = static_cast<uint8_t>(piece.dtype);
    if (parts.empty() || parts.back().dtype != dtype) parts.push_back({log::kParameters, dtype, 0});
    parts.back().count += static_cast<uint64_t>(piece.size);
  }
  return parts;
}

Update update_at(const std::vector<log::Part>& parts) {
  Update update;
  for (const log::Part& part : parts)
    if (part.role == log::kParameters)
      update.add(part.data, static_cast<int64_t>(part.count), static_cast<Dtype>(part.dtype));
  return update;
}

log::RecordList Records::of(const log::Operation& operation) const {
  return journal_ ? log::record_of(*journal_, operation) : log::RecordList{};
}

void Records::begin(PendingAnswer& pending, const Update& numbers, const Ledger& ledger) const {
  if (!journal_) return;
  const Answer& answer = *pending.answer;
  log::Operation& operation = pending.operation;
  operation.kind = log::kAnswer;
  operation.client = answer.client;
  operation.version = pending.task.version;
  operation.incarnation = ledger.incarnations.of(pending.task.version);
  operation.share = answer.kind == Answer::kSum ? answer.total : pending.brings.share;
  if (answer.blob) {
    const log::Blob& blob = *answer.blob;
    operation.streamed = log::UploadFile{blob.number, blob.nbytes, blob.crc, blob.dtype};
  } else if (!store::is_encoded(numbers)) {
    operation.parts = parts_of(answer, numbers);
  }
  const std::vector<uint8_t> ids = log::bytes_of(answer.participants);
  const std::vector<log::Part> rest = rest_of(answer, numbers, ids);
  const size_t first = operation.parts.size();
  operation.parts.insert(operation.parts.end(), rest.begin(), rest.end());
  pending.record = log::record_of_answer(*journal_, operation);
  for (size_t i = 0; i < rest.size(); ++i)
    std::memcpy(const_cast<uint8_t*>(operation.parts[first + i].data), rest[i].data, rest[i].nbytes());
  pending.record.front().blob = answer.blob;
}

void Records::decide(PendingAnswer& pending) const {
  if (pending.record.empty()) return;
  Receipt& receipt = pending.answer->receipt;
  receipt.sequence = journal_->next();
  log::RecordFields& fields = pending.operation;
  fields.known = !std::isnan(receipt.norm);
  if (fields.known != 0) {
    fields.applied = receipt.applied, fields.version_after = receipt.version, fields.step_size = receipt.step_size;
    fields.weight = receipt.weight, fields.norm = receipt.norm;
  }
  log::Entry& record = pending.record.front();
  log::decide(record, pending.operation);
  record.waits = journal_->waits(receipt.applied);
}

}  // namespace fastagg::engine
