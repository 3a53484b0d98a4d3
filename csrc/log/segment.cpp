#include "segment.h"

#include <algorithm>
#include <cstring>

#include "../cpu/cpu.h"
#include "../refusal.h"

namespace fastagg::log {
namespace {

constexpr char kSegmentMagic[] = "FASTAGGJ", kRecordMagic[] = "FAGR";
constexpr size_t kHeadFields = 12;  // magic and CRC come before them
constexpr size_t kTreeAt = 48;

template <typename T>
T read(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

uint32_t crc_of(const uint8_t* data, size_t size, uint32_t before = 0) {
  return cpu::crc32c(data, static_cast<int64_t>(size), before, false);
}

size_t fields_of(uint32_t format) { return (format == 1 ? 40 : format == 2 ? kTreeAt + 8 : kBlock) - kHeadFields; }

size_t next_block(size_t at) { return (at + kBlock - 1) / kBlock * kBlock; }

std::optional<Record> record_in(const uint8_t* data, size_t size, size_t at, bool checked) {
  if (at > size || size - at < kRecordHead || std::memcmp(data + at, kRecordMagic, 4) != 0) return std::nullopt;
  const uint8_t* head = data + at;
  RecordHead found{read<uint64_t>(head + 8),
                   read<uint64_t>(head + 16),
                   read<uint64_t>(head + 24),
                   read<uint64_t>(head + 32),
                   head[40],
                   head[41] != 0,
                   read<uint32_t>(head + 44),
                   read<uint32_t>(head + 4)};
  if (found.length > size - at - kRecordHead) return std::nullopt;
  if (checked && crc_of(head + 8, kRecordHead - 8 + found.length) != found.crc) return std::nullopt;
  const size_t end = at + kRecordHead + found.length;
  return Record{found, head + kRecordHead, 0, at, end + gap_of(end)};
}

}  // namespace

// All numbers are little endian, as on all supported processors.
void put_head(const SegmentHead& head, uint8_t* block) {
  std::memset(block, 0, kBlock);
  std::memcpy(block, kSegmentMagic, 8);
  std::memcpy(block + 12, &head.format, 4);
  const uint64_t numbers[] = {head.number, head.use, head.first, head.folder, head.before.base};
  std::memcpy(block + 16, numbers, sizeof numbers);
  for (size_t i = 0; i < head.before.peaks(); ++i)
    std::memcpy(block + kSegmentHead + i * sizeof(Digest), head.before.peak(i).data(), sizeof(Digest));
  const uint32_t crc = crc_of(block + kHeadFields, fields_of(kFormat));
  std::memcpy(block + 8, &crc, 4);
}

std::optional<SegmentHead> head_at(const uint8_t* data, size_t size, size_t at) {
  if (at > size || size - at < kSegmentHead || std::memcmp(data + at, kSegmentMagic, 8) != 0) return std::nullopt;
  const uint8_t* head = data + at;
  SegmentHead found;
  found.format = read<uint32_t>(head + 12);
  const size_t fields = fields_of(found.format);
  if (fields > size - at - kHeadFields) return std::nullopt;
  if (crc_of(head + kHeadFields, fields) != read<uint32_t>(head + 8)) return std::nullopt;
  found.number = read<uint64_t>(head + 16);
  found.use = read<uint64_t>(head + 24);
  found.first = read<uint64_t>(head + 32);
  if (found.format == 1) return found;
  found.folder = read<uint64_t>(head + 40);
  const auto base = read<uint64_t>(head + kTreeAt);
  if (found.format == 2 || base >= found.first) return found;
  found.before = Tree::restored(base, found.first - 1 - base, head + kSegmentHead);
  return found;
}

void put_head(const RecordHead& head, uint8_t* record) {
  std::memset(record, 0, kRecordHead);
  std::memcpy(record, kRecordMagic, 4);
  const uint64_t numbers[] = {head.use, head.sequence, head.synced, head.length};
  std::memcpy(record + 8, numbers, sizeof numbers);
  record[40] = head.kind;
  record[41] = head.hashed;
  std::memcpy(record + 44, &head.facts, 4);
  const uint32_t crc = crc_of(record + 8, kRecordHead - 8 + head.length);
  std::memcpy(record + 4, &crc, 4);
}

std::vector<uint8_t> bound_of(const uint8_t* record) {
  const auto length = read<uint64_t>(record + 32);
  const uint64_t facts = std::min<uint64_t>(read<uint32_t>(record + 44), length);
  std::vector<uint8_t> bound(record, record + kRecordHead + facts);
  if (record[41] == 0) return bound;
  const Digest rest = cpu::Sha256().add(record + kRecordHead + facts, length - facts).digest();
  bound.insert(bound.end(), rest.begin(), rest.end());
  return bound;
}

Digest leaf_of(const uint8_t* record) {
  static constexpr uint8_t kLeaf = 0;
  const std::vector<uint8_t> bound = bound_of(record);
  return cpu::Sha256().add(&kLeaf, 1).add(bound.data(), bound.size()).digest();
}

std::optional<SegmentHead> head_from_records(const uint8_t* data, size_t size, uint64_t number, uint64_t sequence) {
  SegmentHead head;
  head.number = number;
  bool beyond = false;
  for (size_t at = kBlock; at + kRecordHead <= size; at += 8) {
    const auto found = record_in(data, size, at, true);
    if (!found) continue;
    if (head.first == 0) head.use = found->head.use, head.first = found->head.sequence;
    beyond = beyond || (found->head.use == head.use && found->head.sequence > sequence);
    at = found->end - 8;
  }
  return beyond ? std::optional<SegmentHead>(head) : std::nullopt;
}

Reader::Reader(std::vector<Segment> segments, uint64_t sequence, uint64_t folder, std::optional<Digest> root)
    : segments_(std::move(segments)), folder_(folder), wanted_(sequence + 1) {
  for (const Segment& one : segments_)
    if (folder_ != 0 && one.head.folder != 0 && one.head.folder != folder_)
      throw Refusal(Why::kDamaged, one.name + ": this segment is of another folder's log: move it away");
  if (segments_.empty()) return;
  if (segments_.front().head.first > wanted_)
    throw Refusal(Why::kDamaged, segments_.front().name + ": the journal begins with record " +
                                     std::to_string(segments_.front().head.first) + ", and the checkpoint ends with " +
                                     std::to_string(sequence) + ": what was between is missing");
  size_t first = 0;
  while (first + 1 < segments_.size() && segments_[first + 1].head.first <= wanted_) ++first;
  enter(first);
  seek();
  if (root && tree_.known && tree_.root() != *root)
    throw Refusal(Why::kDamaged, here().name + ": the records up to " + std::to_string(sequence) +
                                     " are not those of the checkpoint: it is of another past of this folder, or a "
                                     "record was changed: move one of them away");
}

void Reader::enter(size_t segment) {
  segment_ = segment;
  use_ = here().head.use;
  at_ = kBlock;
}

std::optional<Record> Reader::record_at(size_t segment, size_t at, bool checked) const {
  auto found = record_in(segments_[segment].data, segments_[segment].size, at, checked);
  if (found) found->segment = segment;
  return found;
}

// A head of a later life that begins with the wanted record.
bool Reader::pass_head(size_t at) {
  const auto head = head_at(here().data, here().size, at);
  if (!head || head->format < 2 || head->number != here().head.number || head->first != wanted_) return false;
  if (folder_ != 0 && head->folder != folder_) return false;
  if (tree_.known && head->before.known && head->before != tree_) return false;
  if (!tree_.known) tree_ = head->before;
  use_ = head->use;
  go_to(at + kBlock);
  return true;
}

// Goes to the first wanted record, in the middle of a segment: over heads and over records, by their own lengths. On
// the way the tree over what is passed becomes known.
void Reader::seek() {
  Tree tree = here().head.before;
  if (here().head.first == wanted_) tree_ = tree;
  if (here().head.first >= wanted_) return;
  uint64_t expected = here().head.first;
  for (size_t at = kBlock; at < here().size; at += kBlock) {
    const auto head = head_at(here().data, here().size, at);
    if (head && head->format >= 2 && head->number == here().head.number && head->first <= wanted_ &&
        (folder_ == 0 || head->folder == folder_)) {
      use_ = head->use;
      at_ = at + kBlock;
      tree = head->before;
      expected = head->first;
    }
  }
  for (size_t at = at_; at + kRecordHead <= here().size; at += 8) {
    if (std::memcmp(here().data + at, kRecordMagic, 4) != 0) continue;
    if (read<uint64_t>(here().data + at + 8) != use_) continue;
    const auto sequence = read<uint64_t>(here().data + at + 16);
    if (sequence > wanted_) break;
    if (sequence == wanted_) {
      at_ = at;
      break;
    }
    const auto found = record_at(segment_, at);
    if (!found) continue;
    if (tree.known && sequence == expected) {
      tree.add(leaf_of(here().data + at));
    } else {
      tree.known = false;
    }
    expected = sequence + 1;
    at_ = found->end;  // where the log ends, if nothing is wanted behind it
    at = found->end - 8;
  }
  if (expected == wanted_) tree_ = tree;
}

void Reader::go_to(size_t at) {
  if (at > at_) passed_ += at - at_;
  at_ = at;
}

Record Reader::take(const Record& record) {
  use_ = record.head.use;
  go_to(record.end);
  wanted_ = record.head.sequence + 1;
  if (tree_.known) tree_.add(leaf_of(record.body - kRecordHead));
  return record;
}

std::optional<Record> Reader::next() {
  if (segments_.empty()) return std::nullopt;
  const auto good = [&](size_t at) {
    auto found = record_at(segment_, at);
    if (found && (found->head.use != use_ || found->head.sequence != wanted_)) found.reset();
    return found;
  };
  if (const auto found = good(at_)) return take(*found);
  const size_t block = next_block(at_);
  if (const auto found = good(block)) return take(*found);
  if (pass_head(block)) return next();
  if (segment_ + 1 < segments_.size() && segments_[segment_ + 1].head.first == wanted_) {
    const SegmentHead& head = segments_[segment_ + 1].head;
    if (tree_.known && head.before.known && head.before != tree_)
      throw Refusal(Why::kDamaged, segments_[segment_ + 1].name +
                                       ": what came before this segment was something else: it is of another past of "
                                       "this folder: move it away");
    if (!tree_.known) tree_ = head.before;
    enter(segment_ + 1);
    passed_ += kBlock;
    return next();
  }
  return std::nullopt;
}

// Of what is there, all but one field are those of the next record, or of a head before it. A file that is used again
// has older records and heads, with other numbers.
bool Reader::is_torn() const {
  if (segments_.empty()) return false;
  const uint8_t* data = here().data;
  for (const size_t at : {at_, next_block(at_)}) {
    if (at > here().size || here().size - at < kSegmentHead) continue;
    const int record = (std::memcmp(data + at, kRecordMagic, 4) == 0) + (read<uint64_t>(data + at + 8) == use_) +
                       (read<uint64_t>(data + at + 16) == wanted_);
    const int head =
        (std::memcmp(data + at, kSegmentMagic, 8) == 0) + (read<uint64_t>(data + at + 16) == here().head.number) +
        (read<uint64_t>(data + at + 32) == wanted_) + (folder_ == 0 || read<uint64_t>(data + at + 40) == folder_);
    if (record >= 2 || head >= 3) return true;
  }
  return false;
}

// The head at `at`, of the segment itself or of a life in it, if it begins behind the wanted record. It proves that all
// records before it were on the disk.
std::optional<SegmentHead> Reader::later_head(size_t segment, size_t at) const {
  const Segment& in = segments_[segment];
  if (at == 0) return in.head.first > wanted_ ? std::optional<SegmentHead>(in.head) : std::nullopt;
  auto head = head_at(in.data, in.size, at);
  const bool ours = head && head->format >= 2 && head->number == in.head.number && head->first > wanted_ &&
                    (folder_ == 0 || head->folder == folder_);
  return ours ? head : std::nullopt;
}

std::optional<Reader::Lost> Reader::skip_lost() {
  if (segments_.empty()) return std::nullopt;
  Lost lost{wanted_, 0, std::nullopt};
  for (const size_t at : {at_, next_block(at_)}) {
    const auto found = record_at(segment_, at, false);
    if (!lost.claimed && found && found->head.use == use_ && found->head.sequence == wanted_) lost.claimed = found;
  }
  std::optional<Record> first;  // good, and behind the wanted one
  const auto go_on = [&](size_t segment, size_t at, uint64_t use, uint64_t sequence, const Tree& tree) {
    if (segment != segment_) segment_ = segment, at_ = 0;
    go_to(at);
    use_ = use, tree_ = tree;
    lost.count = sequence - wanted_;
    wanted_ = sequence;
    return lost;
  };
  for (size_t segment = segment_; segment < segments_.size(); ++segment) {
    const Segment& in = segments_[segment];
    for (size_t at = segment == segment_ ? at_ / 8 * 8 : 0; at + kRecordHead <= in.size; at += 8) {
      if (at % kBlock == 0) {
        if (const auto head = later_head(segment, at); head) {
          if (first) return go_on(first->segment, first->begin, first->head.use, first->head.sequence, Tree());
          return go_on(segment, at + kBlock, head->use, head->first, head->before);
        }
      }
      if (segment != segment_ || std::memcmp(in.data + at, kRecordMagic, 4) != 0) continue;
      const auto found = record_at(segment, at);
      if (!found || found->head.use != use_ || found->head.sequence <= wanted_) continue;
      if (!first) first = found;
      if (found->head.synced >= wanted_)
        return go_on(first->segment, first->begin, first->head.use, first->head.sequence, Tree());
      at = found->end - 8;
    }
  }
  return std::nullopt;
}

}  // namespace fastagg::log
