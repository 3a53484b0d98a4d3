// The bytes of a log's files, and what reads them. docs/log-format.md is the format: its tables are the structs of this
// file, and its rules are what `Reader` does.
//
// Records are written in groups. Each group begins on a new block, and no block is written again after it was synced. A
// torn write can therefore damage only records that were not acknowledged. A record also says up to which record all
// were on the disk when it was written. So a bad record that must have been there is told from one that need not.
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

// The digest of a history with one more record: SHA-256 of the digest before it, the record's head, and the body's
// first bytes, which say what happened. The numbers behind them are bound by the CRC in the head.
Digest chained(const Digest& before, const uint8_t* record) noexcept;

// The beginning of a block; zeros fill the rest. All numbers are little endian, as on all supported processors.
struct BlockHead {
  char magic[8];
  uint32_t crc;  // of all that follows in the block
  uint32_t format;
  uint64_t number;  // the segment's
  uint64_t use;     // random, of the records behind it; of a mark: that of the segment in which the log goes on
  uint64_t first;   // the number of the first of these records
  uint64_t folder;  // random, the folder's
  uint64_t size;    // of the file
  Digest digest;    // of the records before `first`
  uint64_t next;    // 0: a life of a server begins here; otherwise the log goes on in the segment of this number
};
static_assert(sizeof(BlockHead) == 96);

struct RecordHead {
  char magic[4];
  uint32_t crc;  // of all that follows in the head, and the body
  uint64_t use, sequence;
  uint64_t synced;  // all records up to it were on the disk
  uint64_t length;  // of the body
  uint8_t kind;
  uint8_t zeros[3];
  uint32_t facts;  // so many bytes of the body are in the chain; at most its length
};
static_assert(sizeof(RecordHead) == 48);
constexpr size_t kRecordHead = sizeof(RecordHead);

constexpr size_t gap_of(size_t size) { return (8 - size % 8) % 8; }
constexpr uint64_t next_block(uint64_t at) { return (at + kBlock - 1) / kBlock * kBlock; }

// Writes a whole block: sets magic, CRC and format.
void put_head(BlockHead head, uint8_t* block);
// The head at `at`, of any format, if its CRC is right.
std::optional<BlockHead> head_at(const uint8_t* data, size_t size, size_t at);
// Writes a record's head: sets magic and CRC. Its body lies behind it already.
void put_head(RecordHead head, uint8_t* record);

struct Bytes {
  const uint8_t* data = nullptr;
  size_t size = 0;
  std::shared_ptr<void> owner;
};

struct Record {
  RecordHead head;
  const uint8_t* body;
  size_t segment;     // which of the reader's
  size_t begin, end;  // in it
  std::shared_ptr<void> owner;
};

// All good records in a file, of any use, whatever lies between them.
std::vector<Record> records_in(const Bytes& bytes);

// Reads the records of a log in order. One segment is in memory at a time.
class Reader {
 public:
  struct File {
    std::string name;  // for messages
    uint64_t number, size;
    std::vector<uint8_t> block;  // the first one
  };
  // Where the log must end, from the journal's marks and the checkpoint.
  struct ExpectedEnd {
    uint64_t sequence = 0;  // wanted are the records after this one
    uint64_t folder = 0;    // its number
    Digest digest{};        // of all records up to it
    uint64_t end = 0;       // the log had come to this record, at least
  };
  struct Segment {
    std::string name;
    uint64_t number, size;
    size_t file;  // which of those that were given
    BlockHead head;
  };
  using Load = std::function<Bytes(size_t file)>;  // all of a file

  // The files are in the order of their numbers. Throws Refusal, kDamaged, and what `load` throws.
  Reader(const std::vector<File>& files, Load load, const ExpectedEnd& after);

  // The next record. None: the log ends here. Throws Refusal, kDamaged: a record or a segment was on the disk, and is
  // damaged or missing; or the log ends too early.
  std::optional<Record> next();

  // Whether something that was a record or a head, and is none, lies where the log ends. A crash may leave it.
  bool is_torn();

  uint64_t last() const { return wanted_ - 1; }     // the number of the last record that was read
  const Digest& digest() const { return digest_; }  // of all records up to it
  uint64_t passed() const { return passed_; }       // bytes of the files between the checkpoint and here
  // Where the log ends, for a writer that goes on: the segment and the place in it.
  size_t segment() const { return segment_; }
  size_t place() const { return at_; }
  // What alone may not be on the disk yet: the last group of records, or the heads behind it, begin at `tail` (`place`:
  // there is none); and the last mark that was followed, in this segment, and its place there.
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
  bool is_head_ = false;  // at `tail_`
  std::optional<std::pair<size_t, size_t>> mark_;
  Bytes held_;  // of `segment_`
};

}  // namespace fastagg::log
