#include "operation.h"

#include <algorithm>
#include <cstring>

#include "../refusal.h"

namespace fastagg::log {
namespace {

constexpr const char* kNames[kKinds] = {"",       "incarnation", "dispatch", "hand_on", "answer", "close_round",
                                        "forget", "lr",          "expire"};
constexpr uint8_t kSizes[kElements] = {4, 2, 2, 8, 4, 2, 1, 1, 1, 2, 4, 8};
constexpr uint32_t kInFile = 1u << 31;  // a flag in the number of parts, set if the update is in a file
constexpr size_t kAligned = 64, kWorthAligning = 4096;
constexpr size_t kPartBytes = sizeof(Part::role) + sizeof(Part::dtype) + sizeof(Part::count);
constexpr size_t kUploadBytes =
    sizeof(UploadFile::number) + sizeof(UploadFile::nbytes) + sizeof(UploadFile::crc) + sizeof(UploadFile::dtype);

[[noreturn]] void damaged(const std::string& text) {
  throw Refusal(Why::kDamaged, "a record that cannot be read: " + text);
}

class Body {
 public:
  Body(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  template <typename T>
  T read() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  const uint8_t* take(size_t count) {
    if (count > size_ - at_) damaged("it ends too early");
    const uint8_t* bytes = data_ + at_;
    at_ += count;
    return bytes;
  }
  size_t left() const { return size_ - at_; }
  void align() { take(std::min(size_ - at_, gap_of(at_))); }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

size_t field_bytes(OperationKind kind) {
  size_t bytes = 0;
  each_field(kind, [&](auto field) { bytes += field.kBytes; });
  return bytes;
}

// Writes the fixed fields from byte `at` of the body on. Returns the offset of the byte behind these fields.
size_t put_fields(Entry& entry, size_t at, const Operation& operation) {
  each_field(operation.kind, [&](auto field) {
    std::memcpy(entry.body() + at, &(operation.*field.value), field.kBytes);
    at += field.kBytes;
  });
  return at;
}

size_t client_bytes(const ClientId& client) { return client.kind == ClientId::kName ? 11 + client.name.size() : 17; }

void put_client(Entry& to, const ClientId& client, int64_t version) {
  to.put(client.kind);
  if (client.kind == ClientId::kName) {
    to.put(static_cast<uint16_t>(client.name.size()), version);
    to.put_bytes(client.name.data(), client.name.size());
  } else {
    to.put(client.number, version);
  }
}

// Reads a client's id. In a record's body, a version lies behind the name's length or the client's number. `fields`
// gets this version. A list of clients has no versions: `fields` must then be null.
ClientId read_client(Body& from, RecordFields* fields = nullptr) {
  const auto kind = from.read<uint8_t>();
  if (kind > ClientId::kLarge) damaged("a client's id of an unknown kind");
  ClientId client;
  client.kind = static_cast<ClientId::IdKind>(kind);
  const size_t size = kind == ClientId::kName ? from.read<uint16_t>() : 0;
  if (kind != ClientId::kName) client.number = from.read<int64_t>();
  if (fields != nullptr) fields->version = from.read<int64_t>();
  client.name.assign(reinterpret_cast<const char*>(from.take(size)), size);
  return client;
}

void read_parts(Body& from, Operation& to) {
  const auto flagged = from.read<uint32_t>();
  const uint32_t count = flagged & (kInFile - 1);
  for (uint32_t i = 0; i < count; ++i) {
    Part part{from.read<uint8_t>(), from.read<uint8_t>(), 0};
    part.count = from.read<uint64_t>();
    if (part.role >= kRoles || part.dtype >= kElements) damaged("a part of an unknown role or type");
    if (part.count > UINT64_MAX / 16) damaged("a part that is too large");
    to.parts.push_back(part);
  }
  if ((flagged & kInFile) != 0)
    to.streamed = UploadFile{from.read<uint64_t>(), from.read<uint64_t>(), from.read<uint32_t>(), from.read<uint8_t>()};
  from.align();
  for (Part& part : to.parts) {
    from.align();
    part.data = from.take(part.nbytes());
  }
  to.parts.erase(
      std::remove_if(to.parts.begin(), to.parts.end(), [](const Part& each) { return each.role == kPadding; }),
      to.parts.end());
}

}  // namespace

const char* name_of(OperationKind kind) { return kNames[kind]; }

size_t bytes_of(uint8_t element) { return kSizes[element]; }

std::vector<uint8_t> bytes_of(const std::vector<ClientId>& clients) {
  std::vector<uint8_t> bytes;
  const auto put = [&](const void* from, size_t size) {
    bytes.insert(bytes.end(), static_cast<const uint8_t*>(from), static_cast<const uint8_t*>(from) + size);
  };
  for (const ClientId& client : clients) {
    bytes.push_back(client.kind);
    if (client.kind == ClientId::kName) {
      const auto size = static_cast<uint16_t>(client.name.size());
      put(&size, sizeof size), put(client.name.data(), size);
    } else {
      put(&client.number, sizeof client.number);
    }
  }
  return bytes;
}

std::vector<ClientId> clients_in(const Part& part) {
  std::vector<ClientId> clients;
  for (Body from(part.data, part.nbytes()); from.left() > 0;) clients.push_back(read_client(from));
  return clients;
}

Operation read(uint8_t kind, const uint8_t* body, size_t length) {
  if (kind == 0 || kind >= kKinds) damaged("this version of fastagg does not know its kind, " + std::to_string(kind));
  Operation operation;
  operation.kind = static_cast<OperationKind>(kind);
  Body from(body, length);
  if (has_client(kind)) operation.client = read_client(from, &operation);
  each_field(kind, [&](auto field) { std::memcpy(&(operation.*field.value), from.take(field.kBytes), field.kBytes); });
  if (operation.kind == kAnswer) read_parts(from, operation);
  if (operation.kind == kIncarnation && (operation.version < 0 || operation.incarnation > INT64_MAX))
    damaged("a version or an incarnation below zero");
  if (operation.task < 0) damaged("a task's id below zero");
  return operation;
}

RecordList record_of(Journal& journal, const Operation& operation) {
  RecordList made = journal.entry(operation.kind, client_bytes(operation.client) + field_bytes(operation.kind));
  Entry& entry = made.front();
  if (has_client(operation.kind)) put_client(entry, operation.client, operation.version);
  entry.length = put_fields(entry, entry.length, operation);
  return made;
}

RecordList record_of_answer(Journal& journal, Operation& operation) {
  size_t data = 0;
  for (const Part& part : operation.parts) data += part.nbytes() + 8;
  const bool aligned = data >= kWorthAligning;
  const size_t count = operation.parts.size() + aligned;
  size_t own = client_bytes(operation.client) + field_bytes(kAnswer) + sizeof(uint32_t) + kPartBytes * count;
  if (operation.streamed) own += kUploadBytes;
  own += gap_of(own);
  const size_t padding = aligned ? (kAligned - (kRecordHead + own) % kAligned) % kAligned : 0;
  RecordList made = journal.entry(operation.kind, own + padding + data);
  Entry& entry = made.front();
  put_client(entry, operation.client, operation.version);
  entry.fields = entry.length;
  entry.length = put_fields(entry, entry.length, operation);
  entry.put(static_cast<uint32_t>(count) | (operation.streamed ? kInFile : 0));
  if (aligned) entry.put(static_cast<uint8_t>(kPadding), uint8_t{0}, static_cast<uint64_t>(padding));
  for (const Part& part : operation.parts) entry.put(part.role, part.dtype, part.count);
  if (operation.streamed) {
    const UploadFile& streamed = *operation.streamed;
    entry.put(streamed.number, streamed.nbytes, streamed.crc, streamed.dtype);
  }
  static constexpr uint8_t zeros[kAligned] = {};
  entry.facts = entry.length, entry.counts = true;
  entry.put_bytes(zeros, gap_of(entry.length));
  entry.put_bytes(zeros, padding);
  for (Part& part : operation.parts) {
    entry.put_bytes(zeros, gap_of(entry.length));
    part.data = entry.body() + entry.length;
    entry.length += part.nbytes();
  }
  return made;
}

void decide(Entry& entry, const Operation& operation) { put_fields(entry, entry.fields, operation); }

}  // namespace fastagg::log
