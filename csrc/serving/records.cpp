#include "records.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "unlocked.h"

namespace fastagg::serving {
namespace {

constexpr size_t kSmall = 2048;  // bytes: a smaller update is copied, because that is cheaper than holding on to it
constexpr size_t kWorthReleasing = 1 << 20;
constexpr uint8_t kInFile = 1 << 7;  // a flag in the highest byte of the number of parts: the update is in a file
constexpr uint8_t kZeros[8] = {};
// bytes per element, by type as numbered in records.py
constexpr uint8_t kSizes[] = {4, 2, 2, 8, 4, 2, 1, 1, 1, 2, 4, 8};

template <typename... Each>
void put(std::vector<uint8_t>& to, Each... each) {
  uint8_t bytes[(sizeof(Each) + ...)];
  size_t at = 0;
  ((std::memcpy(bytes + at, &each, sizeof each), at += sizeof each), ...);
  to.insert(to.end(), bytes, bytes + at);
}

void put_client(std::vector<uint8_t>& to, py::handle client, int64_t version) {
  if (PyUnicode_Check(client.ptr())) {
    const auto text =
        py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(client.ptr(), "utf-8", "surrogatepass"));
    if (!text) throw py::error_already_set();
    const auto size = static_cast<size_t>(PyBytes_GET_SIZE(text.ptr()));
    put(to, uint8_t{1}, static_cast<uint16_t>(size), version);
    const auto* bytes = reinterpret_cast<const uint8_t*>(PyBytes_AS_STRING(text.ptr()));
    to.insert(to.end(), bytes, bytes + size);
    return;
  }
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(client.ptr(), &overflow);
  if (overflow == 0) {
    put(to, uint8_t{0}, number, version);
  } else {
    put(to, uint8_t{2}, PyLong_AsUnsignedLongLong(client.ptr()), version);
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
}

size_t gap_of(size_t size) { return (8 - size % 8) % 8; }

}  // namespace

thread_local Held* Held::innermost = nullptr;

Queued record_of(Kind kind) { return std::make_unique<Entry>(kind); }

Queued record_of(Kind kind, py::handle client, int64_t version) {
  Queued entry = record_of(kind);
  put_client(entry->own, client, version);
  return entry;
}

Queued record_of_rate(double lr) {
  Queued entry = record_of(kRate);
  put(entry->own, lr);
  return entry;
}

Note note_of(const Update& update, double share, py::object owners) {
  Note note;
  note.given = true;
  note.share = share;
  for (const Piece& piece : update.pieces)
    note.sent.push_back(
        {kParameters, static_cast<uint8_t>(piece.dtype), static_cast<uint64_t>(piece.size), piece.data});
  note.owners = std::move(owners);
  return note;
}

void Held::enter() {
  outer_ = innermost;
  innermost = this;
  inside_ = true;
}

void Held::leave() noexcept {
  if (inside_) innermost = outer_;
  inside_ = false;
  if (first_.sequence > 0) journal_->take_back(&first_.sequence, 1);
  if (!sequences_.empty()) journal_->take_back(sequences_.data(), sequences_.size());
  first_ = First{};
  sequences_.clear();
  owners_.clear();
}

void Held::make_room() {
  if (first_.sequence == 0) return;
  sequences_.reserve(sequences_.size() + 1);
  owners_.reserve(owners_.size() + 1);
}

void Held::add(uint64_t sequence, py::object owner) noexcept {
  if (first_.sequence == 0) {
    first_ = {sequence, std::move(owner)};
    return;
  }
  sequences_.push_back(sequence);
  owners_.push_back(std::move(owner));
}

void Arriving::prepare(const std::shared_ptr<Journal>& journal, py::handle client, int64_t version, uint64_t life,
                       double share, const Update& update, const Decided& decided, const py::object* owner,
                       const CodedRow* row) {
  if (!journal) return;
  Held* held = Held::current();
  Note note;
  if (held != nullptr && held->note.given) note = std::exchange(held->note, Note{});
  if (note.blob) row = nullptr;
  if (!note.given) note = note_of(update, share, owner == nullptr ? py::none() : *owner);
  if (row != nullptr)
    note.sent.erase(
        std::remove_if(note.sent.begin(), note.sent.end(), [](const Sent& one) { return one.role == kParameters; }),
        note.sent.end());
  const bool has_row = row != nullptr && row->nbytes > 0;
  size_t bytes = 0;  // without the row's
  for (const Sent& one : note.sent) bytes += static_cast<size_t>(one.count) * kSizes[one.dtype] + 8;
  entry_ = journal->fresh(row != nullptr ? kRow : kArrival);
  entry_->waits = journal->waits(decided.applied);
  outside_ = entry_->waits && held != nullptr && owner != nullptr && bytes >= kSmall;
  std::vector<uint8_t>& own = entry_->own;
  own.reserve(128 + 10 * (note.sent.size() + 1) + (outside_ ? 0 : bytes));
  put_client(own, client, version);
  const Decided said = note.known ? decided : Decided{false, 0, 0.0, 0.0, 0.0};
  const auto count = static_cast<uint32_t>(note.sent.size() + has_row) | static_cast<uint32_t>(note.blob ? kInFile : 0)
                                                                             << 24;
  put(own, note.share, life, static_cast<uint8_t>(note.known), static_cast<uint8_t>(said.applied), said.version,
      said.step_size, said.weight, said.norm, count);
  for (const Sent& one : note.sent) put(own, one.role, one.dtype, one.count);
  if (has_row)
    put(own, static_cast<uint8_t>(kRowRole), static_cast<uint8_t>(row->format), static_cast<uint64_t>(row->nbytes));
  if (note.blob) put(own, note.blob->number, note.blob->nbytes, note.blob->crc, note.blob->dtype);
  own.insert(own.end(), gap_of(own.size()), 0);
  std::vector<Part>& parts = entry_->parts;
  for (size_t i = 0; i < note.sent.size(); ++i) {
    const Sent& one = note.sent[i];
    const size_t size = static_cast<size_t>(one.count) * kSizes[one.dtype];
    parts.push_back({one.data, size});
    if (has_row || i + 1 < note.sent.size()) parts.push_back({kZeros, gap_of(size)});
  }
  if (outside_) {
    held->make_room();
    owner_ = std::move(note.owners);
  } else {
    std::optional<Unlocked> released;
    if (bytes > kWorthReleasing) released.emplace();
    entry_->copy_parts();
  }
  if (has_row) {
    const auto nbytes = static_cast<size_t>(row->nbytes);
    entry_->row = memory::block_of(nbytes);
    parts.push_back({entry_->row.get(), nbytes});
  }
  entry_->blob = std::move(note.blob);
  journal_ = journal.get();
  sequence_ = journal->next();
}

void Arriving::push() noexcept {
  if (journal_ == nullptr) return;
  Held* held = Held::current();
  if (held != nullptr && entry_->waits) held->last = sequence_;
  if (outside_) held->add(sequence_, std::move(owner_));
  journal_->push(std::move(entry_));
}

}  // namespace fastagg::serving
