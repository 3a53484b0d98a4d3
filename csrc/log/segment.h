// The bytes of a log's files, and their reader. docs/log-format.md describes the format. Its tables are the structs of
// this file, and its rules are those of `Reader`.
//
// Records are written in groups. Each group begins on a new block, and no block is written again after it was synced. A
// torn write can therefore damage only records that were not acknowledged. A record also has the number up to which all
// records were on the disk before (`synced`). That number tells a damaged record from an unfinished write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../cpu/sha256.h"

namespace fastagg::log {

constexpr size_t kBlock = 4096;
constexpr uint32_t kFormat = 1;

// Returns the digest of all records up to this one: SHA-256 of the digest `before`, the record's head, and the first
// `facts` bytes of its body, which say what happened. The CRC in the head covers the update's numbers behind them.
Digest chained(const Digest& before, const uint8_t* record) noexcept;

// A head or a mark. Zeros fill the rest of its block. Numbers are little endian, as on all supported processors.
struct BlockHead {
  char magic[8];
  uint32_t crc;  // of the block's bytes behind this field
  uint32_t format;
  uint64_t number;  // of this segment
  uint64_t use;     // random, as in the records behind the head; a mark has the next segment's `use`
  uint64_t first;   // the number of the first record behind the head or mark
  uint64_t folder;  // the folder's random number
  uint64_t size;    // of the file, in bytes
  Digest digest;    // of all records before `first`
  uint64_t next;    // 0: this is a head; otherwise it is a mark, and the log continues in the segment of this number
};
static_assert(sizeof(BlockHead) == 96);

struct RecordHead {
  char magic[4];
  uint32_t crc;  // of the head's bytes behind this field, and of the body
  uint64_t use, sequence;
  uint64_t synced;  // all records up to this number were on the disk before
  uint64_t length;  // of the body, in bytes
  uint8_t kind;
  uint8_t zeros[3];
  uint32_t facts;  // how many bytes of the body the digest covers; at most `length`
};
static_assert(sizeof(RecordHead) == 48);
constexpr size_t kRecordHead = sizeof(RecordHead);

constexpr size_t gap_of(size_t size) { return (8 - size % 8) % 8; }
constexpr uint64_t next_block(uint64_t at) { return (at + kBlock - 1) / kBlock * kBlock; }

// Writes a whole block. Sets the head's magic, CRC and format.
void put_head(BlockHead head, uint8_t* block);
// Returns the head or mark at byte `at`, of any format, if its CRC is right.
std::optional<BlockHead> head_at(const uint8_t* data, size_t size, size_t at);
// Writes a record's head. Sets its magic and CRC. The body must lie behind the head already.
void put_head(RecordHead head, uint8_t* record);

struct Bytes {
  const uint8_t* data = nullptr;
  size_t size = 0;
  std::shared_ptr<void> owner;
};

struct Record {
  RecordHead head;
  const uint8_t* body;
  size_t segment;     // the place of the record's segment in Reader::segments()
  size_t begin, end;  // the record's bytes in the segment
  std::shared_ptr<void> owner;
};

// Returns all valid records in a file, of any use, even if other bytes lie between them.
std::vector<Record> records_in(const Bytes& bytes);

// Reads the records of a log in order. One segment is in memory at a time.
class Reader {
 public:
  struct File {
    std::string name;  // for messages
    uint64_t number, size;
    std::vector<uint8_t> block;  // the file's first block
  };
  // What the checkpoint and the folder say of the log.
  struct ExpectedEnd {
    uint64_t sequence = 0;  // the checkpoint's last record; reading begins behind it
    uint64_t folder = 0;    // the folder's random number
    Digest digest{};        // of all records up to `sequence`
    uint64_t end = 0;       // the log has all records up to this one, at least
  };
  struct Segment {
    std::string name;
    uint64_t number, size;
    size_t file;  // its place in the constructor's `files`
    BlockHead head;
  };
  using Load = std::function<Bytes(size_t file)>;  // returns all bytes of a file

  // `files` must be in the order of their numbers. Throws Refusal, kDamaged, and the exceptions of `load`.
  Reader(const std::vector<File>& files, Load load, const ExpectedEnd& after);

  // Returns the next record, or none at the log's end. Throws Refusal, kDamaged, if a record or a segment was on the
  // disk and is now damaged or missing, or if the log ends too early.
  std::optional<Record> next();

  // Whether a damaged record or head lies where the log ends. A crash may leave one there.
  bool is_torn();

  uint64_t last() const { return wanted_ - 1; }     // the number of the last record that was read
  const Digest& digest() const { return digest_; }  // of all records up to `last`
  uint64_t passed() const { return passed_; }       // the bytes that were read behind the checkpoint
  // Where the log ends, and a writer may continue it: the segment's place in `segments`, and the byte in the segment.
  size_t segment() const { return segment_; }
  size_t place() const { return at_; }
  // Only these parts of the log may still be in the system's cache. From `tail` to `place`: the last group of records,
  // or the heads behind the group. At `mark`: the last mark that was followed, as its segment and byte.
  size_t tail() const { return tail_ == 0 ? at_ : tail_; }
  const std::optional<std::pair<size_t, size_t>>& mark() const { return mark_; }
  const std::vector<Segment>& segments() const { return segments_; }

 private:
  const Segment& here() const { return segments_[segment_]; }
  Bytes& held();
  std::string where(size_t at) const;
  void take_files(const std::vector<File>& files);
  std::optional<Record> record_at(size_t at);
  std::optional<BlockHead> own_head(const Bytes& bytes, const Segment& segment, size_t at) const;
  bool pass_head(size_t at);
  void enter(size_t segment);
  void follow(const BlockHead& mark);
  void seek();
  void go_to(size_t at);
  Record take(const Record& record);
  void check_end();

  Load load_;
  ExpectedEnd after_;
  std::vector<Segment> segments_;
  uint64_t wanted_;
  Digest digest_;
  size_t segment_ = 0, at_ = 0, tail_ = 0;
  uint64_t use_ = 0, synced_ = 0, passed_ = 0;
  bool is_head_ = false;  // whether a head is at `tail_`
  std::optional<std::pair<size_t, size_t>> mark_;
  Bytes held_;  // the bytes of segment `segment_`
};

}  // namespace fastagg::log
