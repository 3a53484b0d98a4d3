// The format of a log's files: records one after the other, in segments that are used again.
//
//   head     a block of 4,096 bytes: magic, CRC of what follows, format, number, use, first, folder, base, peaks
//   record   magic, CRC of what follows, use, sequence, synced, length, kind, hashed, facts | body | zeros up to 8
//   bytes
//
// A head begins a segment, and every life of a server in it: `number` is the segment's place in the chain, `use` a
// random number that the records behind the head repeat, `first` the sequence number of the first of them. `folder` is
// a random number of the folder; `base` and `peaks` are the tree over all records before the head (tree.h), so that a
// segment of another folder or of another past is recognised. Format 2 has a weaker digest in place of the tree, which
// is not read. Format 1 has no folder and one head a file. `facts` says how many bytes of the body a record's leaf has
// as they are; `hashed`, whether it has the SHA-256 of the others.
//
// Records are written in groups. Each group begins on a new block, so no block is written again after it was synced. A
// torn write can therefore damage only records that were not acknowledged. A record also says up to which record all
// were on the disk when it was written. So a bad record that must have been there is told from one that need not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tree.h"

namespace fastagg::log {

constexpr size_t kBlock = 4096, kRecordHead = 48, kSegmentHead = 64;
constexpr uint32_t kFormat = 3;  // that is written; 1 and 2 are read, too

struct SegmentHead {
  uint32_t format = kFormat;
  uint64_t number = 0, use = 0, first = 0, folder = 0;
  Tree before;
};

struct RecordHead {
  uint64_t use = 0, sequence = 0, synced = 0, length = 0;
  uint8_t kind = 0;
  bool hashed = false;
  uint32_t facts = 0, crc = 0;  // crc: of all other fields and the body
};

constexpr size_t gap_of(size_t size) { return (8 - size % 8) % 8; }

// Writes a head into a block of zeros.
void put_head(const SegmentHead& head, uint8_t* block);
// The head at `at`, of any format, if its CRC is right.
std::optional<SegmentHead> head_at(const uint8_t* data, size_t size, size_t at);

// The head of a segment whose own is damaged, by the records in it. None: it has no good record beyond `sequence`, so
// it is a file that was about to be used again.
std::optional<SegmentHead> head_from_records(const uint8_t* data, size_t size, uint64_t number, uint64_t sequence);

// Writes a record's head. Its body lies behind it already.
void put_head(const RecordHead& head, uint8_t* record);

// What of a record its leaf is the hash of, behind 0x00: its head, its facts, and the hash of the rest or nothing.
std::vector<uint8_t> bound_of(const uint8_t* record);
// The same, hashed.
Digest leaf_of(const uint8_t* record);

struct Record {
  RecordHead head;
  const uint8_t* body;
  size_t segment;     // which of the reader's
  size_t begin, end;  // in it
};

// Reads the records of a chain of segments in order.
class Reader {
 public:
  struct Segment {
    const uint8_t* data;
    size_t size;
    std::string name;
    SegmentHead head;
  };
  // Wanted are the records after `sequence`. `root`: the digest of all up to it, if somebody has kept it.
  // Throws Refusal, kDamaged: the chain begins too late, or a segment belongs to another folder or another past.
  Reader(std::vector<Segment> segments, uint64_t sequence, uint64_t folder, std::optional<Digest> root = std::nullopt);

  // The next record. None: the log ends here, or records are lost: damaged although they were on the disk.
  std::optional<Record> next();
  // After `next` gave none: goes on behind lost records, if there are any. The log then goes on with `next`.
  struct Lost {
    uint64_t first, count;
    std::optional<Record> claimed;  // what the first of them says of itself, if that is plausible; it is not checked
  };
  std::optional<Lost> skip_lost();

  // Whether something that was a record or a head, and is none, lies where the log ends. A crash may leave it.
  bool is_torn() const;

  uint64_t last() const { return wanted_ - 1; }  // the number of the last record that was read
  const Tree& tree() const { return tree_; }     // over all records up to it
  uint64_t passed() const { return passed_; }    // bytes of the files between the checkpoint and here
  // Where the log ends, for a writer that goes on: the segment and the place in it.
  size_t segment() const { return segment_; }
  size_t place() const { return at_; }
  const std::vector<Segment>& segments() const { return segments_; }

 private:
  const Segment& here() const { return segments_[segment_]; }
  std::optional<Record> record_at(size_t segment, size_t at, bool checked = true) const;
  std::optional<SegmentHead> later_head(size_t segment, size_t at) const;
  bool pass_head(size_t at);
  void enter(size_t segment);
  void seek();
  void go_to(size_t at);
  Record take(const Record& record);

  std::vector<Segment> segments_;
  uint64_t folder_, wanted_;
  Tree tree_;
  size_t segment_ = 0, at_ = 0;
  uint64_t use_ = 0, passed_ = 0;
};

}  // namespace fastagg::log
