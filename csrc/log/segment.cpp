#include "segment.h"

#include <algorithm>
#include <cstring>

#include "../cpu/cpu.h"
#include "../refusal.h"

namespace fastagg::log {
namespace {

constexpr char kSegmentMagic[] = "FASTAGGJ", kRecordMagic[] = "FAGR";
constexpr size_t kHashed = 12, kHashedOfRecord = 8;  // the first byte that the CRC covers, in a block and in a record

uint32_t crc_of(const void* data, size_t size) {
  return cpu::crc32c(static_cast<const uint8_t*>(data), static_cast<int64_t>(size), 0, false);
}

[[noreturn]] void damaged(const std::string& text) { throw Refusal(Why::kDamaged, text); }

std::optional<Record> record_in(const Bytes& bytes, size_t at) {
  if (at > bytes.size || bytes.size - at < kRecordHead || std::memcmp(bytes.data + at, kRecordMagic, 4) != 0)
    return std::nullopt;
  RecordHead head;
  std::memcpy(&head, bytes.data + at, sizeof head);
  if (head.length > bytes.size - at - kRecordHead || head.facts > head.length) return std::nullopt;
  if (crc_of(bytes.data + at + kHashedOfRecord, kRecordHead - kHashedOfRecord + head.length) != head.crc)
    return std::nullopt;
  const size_t end = at + kRecordHead + head.length;
  return Record{head, bytes.data + at + kRecordHead, 0, at, end + gap_of(end), bytes.owner};
}

// Calls `act` with each valid record from byte `at` on, until `act` returns true. Returns whether a call returned true.
template <typename Act>
bool any_record(const Bytes& bytes, size_t at, Act act) {
  for (at = (at + 7) / 8 * 8; at + kRecordHead <= bytes.size; at += 8) {
    const auto record = record_in(bytes, at);
    if (!record) continue;
    if (act(*record)) return true;
    at = record->end - 8;
  }
  return false;
}

}  // namespace

Digest chained(const Digest& before, const uint8_t* record) noexcept {
  RecordHead head;
  std::memcpy(&head, record, sizeof head);
  return cpu::Sha256().add(before.data(), before.size()).add(record, kRecordHead + head.facts).digest();
}

void put_head(BlockHead head, uint8_t* block) {
  std::memset(block, 0, kBlock);
  std::memcpy(head.magic, kSegmentMagic, sizeof head.magic);
  head.format = kFormat;
  std::memcpy(block, &head, sizeof head);
  const uint32_t crc = crc_of(block + kHashed, kBlock - kHashed);
  std::memcpy(block + offsetof(BlockHead, crc), &crc, sizeof crc);
}

std::optional<BlockHead> head_at(const uint8_t* data, size_t size, size_t at) {
  if (at > size || size - at < kBlock || std::memcmp(data + at, kSegmentMagic, 8) != 0) return std::nullopt;
  BlockHead head;
  std::memcpy(&head, data + at, sizeof head);
  if (crc_of(data + at + kHashed, kBlock - kHashed) != head.crc) return std::nullopt;
  return head;
}

void put_head(RecordHead head, uint8_t* record) {
  std::memcpy(head.magic, kRecordMagic, sizeof head.magic);
  std::memcpy(record, &head, sizeof head);
  const uint32_t crc = crc_of(record + kHashedOfRecord, kRecordHead - kHashedOfRecord + head.length);
  std::memcpy(record + offsetof(RecordHead, crc), &crc, sizeof crc);
}

std::vector<Record> records_in(const Bytes& bytes) {
  std::vector<Record> records;
  any_record(bytes, 0, [&](const Record& record) {
    records.push_back(record);
    return false;
  });
  return records;
}

// -- the files

Reader::Reader(const std::vector<File>& files, Load load, const ExpectedEnd& after)
    : load_(std::move(load)), after_(after), wanted_(after.sequence + 1), digest_(after.digest) {
  take_files(files);
  if (!segments_.empty()) seek();
}

// Checks the files' heads. Then goes to the last segment that begins before the wanted record, else to the first one.
void Reader::take_files(const std::vector<File>& files) {
  std::vector<std::pair<size_t, std::string>> bad;
  for (size_t i = 0; i < files.size(); ++i) {
    const File& file = files[i];
    const auto head = head_at(file.block.data(), file.block.size(), 0);
    if (head && head->format != kFormat)
      damaged(file.name + ": it is of format " + std::to_string(head->format) +
              ", and this version of fastagg reads format " + std::to_string(kFormat));
    if (head && head->folder != after_.folder)
      damaged(file.name + ": this segment is of another folder's log: move it away");
    std::string wrong;
    if (!head) {
      wrong = "its head is damaged";
    } else if (head->number != file.number || head->next != 0) {
      wrong = "its head is that of another segment";
    } else if (head->size > file.size) {
      wrong = "it is cut: it had " + std::to_string(head->size) + " bytes, and has " + std::to_string(file.size);
    }
    if (wrong.empty()) {
      segments_.push_back({file.name, file.number, file.size, i, *head});
    } else {
      bad.emplace_back(i, wrong);
    }
  }
  size_t first = 0;
  while (first + 1 < segments_.size() && segments_[first + 1].head.first < wanted_) ++first;
  // Files before segment `first` may be damaged, because no record in these files is needed.
  for (const auto& [i, wrong] : bad)
    if (segments_.empty() || files[i].number > segments_[first].number || segments_[first].head.first > wanted_)
      damaged(files[i].name + ", byte 0: " + wrong);
  if (segments_.empty()) {
    if (last() > 0 || after_.end > 0)
      damaged("the log is missing; it had come to record " + std::to_string(std::max(last(), after_.end)));
    return;
  }
  if (segments_[first].head.first > wanted_)
    damaged(segments_[first].name + ": the log begins with record " + std::to_string(segments_[first].head.first) +
            ", and the checkpoint ends with " + std::to_string(last()) + ": what was between is missing");
  enter(first);
}

Bytes& Reader::held() {
  if (held_.data == nullptr) held_ = load_(here().file);
  return held_;
}

std::string Reader::where(size_t at) const { return here().name + ", byte " + std::to_string(at); }

// -- records

void Reader::enter(size_t segment) {
  if (segment != segment_) held_ = {};
  segment_ = segment;
  use_ = here().head.use;
  at_ = kBlock, tail_ = 0, is_head_ = false;
}

std::optional<Record> Reader::record_at(size_t at) {
  auto record = record_in(held(), at);
  if (record && (record->head.use != use_ || record->head.sequence != wanted_)) record.reset();
  if (record) record->segment = segment_;
  return record;
}

// Returns the head or mark at byte `at`, if it belongs to this segment of this log.
std::optional<BlockHead> Reader::own_head(const Bytes& bytes, const Segment& segment, size_t at) const {
  auto head = head_at(bytes.data, bytes.size, at);
  const bool ours = head && head->format == kFormat && head->number == segment.number && head->folder == after_.folder;
  return ours ? head : std::nullopt;
}

// If the wanted record comes directly after the head or mark at byte `at`, passes the head or mark and returns true.
bool Reader::pass_head(size_t at) {
  const auto head = own_head(held(), here(), at);
  if (!head || head->first != wanted_) return false;
  if (head->digest != digest_)
    damaged(where(at) + ": what came before was something else: it is of another past of this folder");
  go_to(at + kBlock);
  use_ = head->use;
  if (!is_head_) tail_ = at, is_head_ = true;
  if (head->next != 0) {
    mark_ = {segment_, at};
    follow(*head);
  }
  return true;
}

// Goes to the segment that a mark names.
void Reader::follow(const BlockHead& mark) {
  const auto next = std::find_if(segments_.begin(), segments_.end(),
                                 [&](const Segment& segment) { return segment.number == mark.next; });
  if (next == segments_.end())
    damaged(here().name + ": the log goes on in segment " + std::to_string(mark.next) + ", which is missing");
  if (next->head.first != wanted_ || next->head.use != mark.use || next->head.digest != digest_)
    damaged(next->name +
            ": what came before this segment was something else: it is of another past of this folder: "
            "move it away");
  enter(static_cast<size_t>(next - segments_.begin()));
  passed_ += kBlock;
}

// Goes to the first wanted record, which may be in the middle of a segment. Compares the digest of all earlier records
// with the checkpoint's, unless an earlier record is damaged.
void Reader::seek() {
  const uint64_t wanted = wanted_;
  wanted_ = here().head.first, digest_ = here().head.digest;
  bool reached = wanted_ == wanted, known = true;  // known: whether `digest_` covers all records before `wanted_`
  const Bytes& bytes = held();
  for (size_t at = kBlock; at < bytes.size && !reached; at += kBlock)
    if (const auto head = own_head(bytes, here(), at); head && head->first <= wanted && head->next == 0) {
      use_ = head->use, wanted_ = head->first, digest_ = head->digest;
      at_ = at + kBlock;
    }
  reached = wanted_ == wanted;
  if (!reached) {
    any_record(bytes, at_, [&](const Record& record) {
      const uint64_t sequence = record.head.sequence;
      if (record.head.use != use_ || sequence > wanted) return record.head.use == use_;
      reached = sequence + 1 >= wanted;
      if (sequence == wanted) {
        at_ = record.begin;
        return true;
      }
      known = known && sequence == wanted_;  // else an earlier record is damaged, which recovery does not need
      digest_ = chained(digest_, record.body - kRecordHead);
      wanted_ = sequence + 1, at_ = record.end;
      return reached;
    });
  }
  if (!reached)
    damaged(where(at_) + ": the log ends with record " + std::to_string(wanted_ - 1) +
            ", and its folder says that it had come to record " + std::to_string(std::max(after_.end, wanted - 1)));
  known = known && wanted_ == wanted;
  wanted_ = wanted;
  if (known && digest_ != after_.digest)
    damaged(here().name + ": the records up to " + std::to_string(last()) +
            " are not those of the checkpoint: it is of another past of this folder, or a record was changed: move one "
            "of them away");
  digest_ = after_.digest;
}

void Reader::go_to(size_t at) {
  if (at > at_) passed_ += at - at_;
  at_ = at;
}

Record Reader::take(const Record& record) {
  if (tail_ == 0 || is_head_ || record.head.synced != synced_) tail_ = record.begin;
  synced_ = record.head.synced, is_head_ = false;
  go_to(record.end);
  ++wanted_;
  digest_ = chained(digest_, record.body - kRecordHead);
  return record;
}

std::optional<Record> Reader::next() {
  while (!segments_.empty()) {
    if (const auto record = record_at(at_)) return take(*record);
    const size_t block = next_block(at_);
    if (const auto record = record_at(block)) return take(*record);
    if (pass_head(block) || pass_head(block + kBlock)) continue;  // the second call skips a damaged head
    check_end();
    break;
  }
  return std::nullopt;
}

// Must be called if the wanted record was not found. Throws Refusal if later records or heads prove that the wanted
// record was on the disk, or if the log ends before record `after_.end`.
void Reader::check_end() {
  std::vector<uint64_t> uses;  // the `use` of each head before the end
  for (size_t at = 0; at < at_; at += kBlock)
    if (const auto head = own_head(held(), here(), at)) uses.push_back(head->use);
  bool bad = false;
  uint64_t count = 0;
  for (size_t i = segment_; i < segments_.size(); ++i) {
    const bool is_here = i == segment_;
    const Bytes bytes = is_here ? held() : load_(segments_[i].file);
    for (size_t at = is_here ? next_block(at_) : 0; at < bytes.size; at += kBlock)
      if (const auto head = own_head(bytes, segments_[i], at)) bad = bad || head->first > wanted_;
    any_record(bytes, is_here ? at_ : 0, [&](const Record& record) {
      const RecordHead& head = record.head;
      if (head.sequence < wanted_) return false;
      count += head.sequence > wanted_;
      bad = bad || !is_here || head.synced >= wanted_ || std::find(uses.begin(), uses.end(), head.use) == uses.end();
      return false;
    });
  }
  if (bad)
    damaged(where(at_) + ": record " + std::to_string(wanted_) + " is damaged, and it was on the disk; " +
            std::to_string(count) + " good records lie behind it");
  if (last() < after_.end)
    damaged(where(at_) + ": the log ends with record " + std::to_string(last()) +
            ", and its folder says that it had come to record " + std::to_string(after_.end));
}

// Returns true if the bytes at the end look like the next record, or like a head before that record. At most one of the
// compared fields may differ. Old records and heads in a reused file differ in more fields.
bool Reader::is_torn() {
  if (segments_.empty()) return false;
  const Bytes& bytes = held();
  for (const size_t at : {at_, static_cast<size_t>(next_block(at_))}) {
    if (at > bytes.size || bytes.size - at < sizeof(BlockHead)) continue;
    RecordHead record;
    BlockHead head;
    std::memcpy(&record, bytes.data + at, sizeof record);
    std::memcpy(&head, bytes.data + at, sizeof head);
    const int of_record = (std::memcmp(record.magic, kRecordMagic, sizeof record.magic) == 0) + (record.use == use_) +
                          (record.sequence == wanted_);
    const int of_head = (std::memcmp(head.magic, kSegmentMagic, sizeof head.magic) == 0) +
                        (head.number == here().number) + (head.first == wanted_) + (head.folder == after_.folder);
    if (of_record >= 2 || of_head >= 3) return true;
  }
  return false;
}

}  // namespace fastagg::log
