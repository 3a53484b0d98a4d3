#include "operation.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "../refusal.h"

namespace fastagg::log {
namespace {

constexpr const char* kNames[kKinds] = {"",       "incarnation", "dispatch", "hand_on", "answer", "close_round",
                                        "forget", "lr",          "expire"};
constexpr uint8_t kSizes[kElements] = {4, 2, 2, 8, 4, 2, 1, 1, 1, 2, 4, 8};
constexpr uint32_t kInFile = 1u << 31;  // a flag in the number of parts: the update is in a file
constexpr size_t kPartBytes = 10, kFactBytes = 54, kAligned = 64, kWorthAligning = 4096;
constexpr size_t kOfRound = offsetof(RecordedOutcome, weight);  // bytes of the outcome of a round's end

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

bool sends(OperationKind kind) { return kind == kDispatch || kind == kHandOn; }

size_t client_bytes(const ClientId& client) { return client.kind == ClientId::kName ? 11 + client.name.size() : 17; }

void put_client(Entry& to, const ClientId& client, int64_t version) {
  if (client.kind == ClientId::kName) {
    to.put(uint8_t{1}, static_cast<uint16_t>(client.name.size()), version);
    to.put_bytes(client.name.data(), client.name.size());
  } else {
    to.put(static_cast<uint8_t>(client.kind == ClientId::kLarge ? 2 : 0), client.number, version);
  }
}

ClientId read_client(Body& from, int64_t* version) {
  const auto kind = from.read<uint8_t>();
  if (kind > 2) damaged("a client's id of an unknown kind");
  ClientId client;
  if (kind == 1) {
    const auto size = from.read<uint16_t>();
    *version = from.read<int64_t>();
    client.kind = ClientId::kName;
    client.name.assign(reinterpret_cast<const char*>(from.take(size)), size);
    return client;
  }
  client.kind = kind == 2 ? ClientId::kLarge : ClientId::kNumber;
  client.number = from.read<int64_t>();
  *version = from.read<int64_t>();
  return client;
}

void read_answer(Body& from, Operation& to) {
  to.share = from.read<double>();
  to.incarnation = from.read<uint64_t>();
  to.decided = from.read<RecordedOutcome>();
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
  for (Body from(part.data, part.nbytes()); from.left() > 0;) {
    ClientId& client = clients.emplace_back();
    const auto kind = from.read<uint8_t>();
    if (kind > ClientId::kLarge) damaged("a client's id of an unknown kind");
    client.kind = static_cast<ClientId::IdKind>(kind);
    if (client.kind == ClientId::kName) {
      const auto size = from.read<uint16_t>();
      client.name.assign(reinterpret_cast<const char*>(from.take(size)), size);
    } else {
      client.number = from.read<int64_t>();
    }
  }
  return clients;
}

Operation read(uint8_t kind, const uint8_t* body, size_t length) {
  if (kind == 0 || kind >= kKinds) damaged("this version of fastagg does not know its kind, " + std::to_string(kind));
  Operation operation;
  operation.kind = static_cast<OperationKind>(kind);
  Body from(body, length);
  switch (operation.kind) {
    case kIncarnation: {
      operation.version = from.read<int64_t>();
      const auto number = from.read<int64_t>();
      if (operation.version < 0 || number < 0) damaged("a version or an incarnation below zero");
      operation.incarnation = static_cast<uint64_t>(number);
      break;
    }
    case kCloseRound: std::memcpy(static_cast<void*>(&operation.decided), from.take(kOfRound), kOfRound); break;
    case kRate: operation.rate = from.read<double>(); break;
    case kAnswer:
      operation.client = read_client(from, &operation.version);
      read_answer(from, operation);
      break;
    case kExpire: operation.version = from.read<int64_t>(); break;
    default:
      operation.client = read_client(from, &operation.version);
      if (sends(operation.kind)) operation.task = from.read<int64_t>();
      if (operation.task < 0) damaged("a task's id below zero");
  }
  return operation;
}

RecordList record_of(Journal& journal, const Operation& operation) {
  RecordList made = journal.entry(operation.kind, client_bytes(operation.client) + kOfRound + sizeof operation.task);
  Entry& entry = made.front();
  switch (operation.kind) {
    case kIncarnation: entry.put(operation.version, operation.incarnation); break;
    case kRate: entry.put(operation.rate); break;
    case kExpire: entry.put(operation.version); break;
    case kCloseRound: entry.put_bytes(&operation.decided, kOfRound); break;
    default:
      put_client(entry, operation.client, operation.version);
      if (sends(operation.kind)) entry.put(operation.task);
  }
  return made;
}

RecordList record_of_answer(Journal& journal, Operation& operation) {
  size_t data = 0;
  for (const Part& part : operation.parts) data += part.nbytes() + 8;
  const bool aligned = data >= kWorthAligning;
  const size_t count = operation.parts.size() + aligned;
  size_t own = client_bytes(operation.client) + kFactBytes + kPartBytes * count + (operation.streamed ? 21 : 0);
  own += gap_of(own);
  const size_t padding = aligned ? (kAligned - (kRecordHead + own) % kAligned) % kAligned : 0;
  RecordList made = journal.entry(operation.kind, own + padding + data);
  Entry& entry = made.front();
  put_client(entry, operation.client, operation.version);
  entry.put(operation.share, operation.incarnation);
  entry.outcome = entry.length;
  entry.put(RecordedOutcome{0}, static_cast<uint32_t>(count) | (operation.streamed ? kInFile : 0));
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

void decide(Entry& entry, const Operation& operation) {
  std::memcpy(entry.body() + entry.outcome, &operation.decided, sizeof operation.decided);
}

}  // namespace fastagg::log
