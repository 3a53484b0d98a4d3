// Defines the bytes of a log's files, and reads a log. docs/log-format.md describes the format. The structs of this
// file are the tables of that page, and `Reader` follows the rules of that page. A file with records is a segment.
//
// Records are written in groups. Each group begins on a new block of 4,096 bytes. A running server never writes to a
// block again after its sync. A torn write can therefore damage only records that were not acknowledged. A record also
// states up to which number all records were on the disk (`synced`). With this number, a reader distinguishes a damaged
// record from a torn write.
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

constexpr size_t kBlock = 4096;  // in bytes
constexpr uint32_t kFormat = 1;

// Returns the digest of all records up to `record`. `before` is the digest of the earlier records. The result is the
// SHA-256 of `before`, the record's head, and the first `facts` bytes of the body. The head has a CRC of the body.
Digest chained(const Digest& before, const uint8_t* record) noexcept;

// A head lies where a segment begins, where a process begins to write, and where a process has ended in order. A mark
// is a head that names the segment in which the log continues. Zeros fill the rest of the block. Numbers are little
// endian, as on all supported processors.
struct BlockHead {
  char magic[8];
  uint32_t crc;  // CRC-32C of the block's bytes behind this field
  uint32_t format;
  uint64_t number;  // the segment's number
  uint64_t use;     // a random number, which records behind the head repeat; in a mark: the next segment's `use`
  uint64_t first;   // the number of the first record behind the head or mark
  uint64_t folder;  // the folder's random number
  uint64_t size;    // the file's size in bytes
  Digest digest;    // the digest of all records before `first`
  uint64_t next;    // in a mark: the number of the segment in which the log continues; 0: the head is no mark
};
static_assert(sizeof(BlockHead) == 96);

struct RecordHead {
  char magic[4];
  uint32_t crc;  // CRC-32C of the head's bytes behind this field, and of the body
  uint64_t use, sequence;
  uint64_t synced;  // records up to this number were certainly on the disk when this record was written
  uint64_t length;  // the body's length in bytes
  uint8_t kind;
  uint8_t zeros[3];
  uint32_t facts;  // how many bytes of the body the digest covers; at most `length`
};
static_assert(sizeof(RecordHead) == 48);
constexpr size_t kRecordHead = sizeof(RecordHead);

constexpr size_t gap_of(size_t size) { return (8 - size % 8) % 8; }  // the bytes from `size` to a multiple of 8
constexpr uint64_t next_block(uint64_t at) { return (at + kBlock - 1) / kBlock * kBlock; }

// Writes a head or mark, and zeros up to the end of its block. Sets the head's magic, CRC and format.
void put_head(BlockHead head, uint8_t* block);
// Returns the head or mark at byte `at`, even of another format. Returns nullopt if its magic or CRC is wrong.
std::optional<BlockHead> head_at(const uint8_t* data, size_t size, size_t at);
// Writes a record's head. Sets the head's magic and CRC. The body must already be in memory behind the head.
void put_head(RecordHead head, uint8_t* record);

struct Bytes {
  const uint8_t* data = nullptr;
  size_t size = 0;
  std::shared_ptr<void> owner;
};

struct Record {
  RecordHead head;
  const uint8_t* body;
  size_t segment;     // the index of the record's segment in Reader::segments()
  size_t begin, end;  // the record's first byte in the segment, and the byte behind the record
  std::shared_ptr<void> owner;
};

// Returns all records in a file's bytes with a right magic and CRC, whatever their `use`, even between invalid bytes.
std::vector<Record> records_in(const Bytes& bytes);

// Reads the records of a log in order. At most two segments are in memory at a time.
class Reader {
 public:
  struct File {
    std::string name;  // the file's name, for messages
    uint64_t number, size;
    std::vector<uint8_t> block;  // the file's first block
  };
  // Facts about the log that the checkpoint and its folder state.
  struct ExpectedEnd {
    uint64_t sequence = 0;  // the number of the checkpoint's last record; reading begins with the next record
    uint64_t folder = 0;    // the folder's random number
    Digest digest{};        // the digest of all records up to `sequence`
    uint64_t end = 0;       // the log must have all records up to this number
  };
  struct Segment {
    std::string name;
    uint64_t number, size;
    size_t file;  // the segment's index in the constructor's `files`
    BlockHead head;
  };
  using Load = std::function<Bytes(size_t file)>;  // returns all bytes of a file

  // `files` must be in the order of their numbers. Throws Refusal, kDamaged, and the exceptions of `load`.
  Reader(const std::vector<File>& files, Load load, const ExpectedEnd& after);

  // Returns the next record, or none at the log's end. Throws Refusal, kDamaged, if a record or a segment was on the
  // disk and is now damaged or missing, or if the log ends too early.
  std::optional<Record> next();

  // Whether the log ends with a damaged record or head, as after a crash. To be called when `next` has returned none.
  bool is_torn();

  uint64_t last() const { return wanted_ - 1; }     // the number of the last record that was read
  const Digest& digest() const { return digest_; }  // the digest of all records up to `last`
  uint64_t passed() const { return passed_; }  // how many bytes of the log were read behind the checkpoint's records
  // The reader's position: the segment's index in `segments`, and the byte in the segment. When `next` has returned
  // none, this is the end of the log, where a writer continues.
  size_t segment() const { return segment_; }
  size_t place() const { return at_; }
  // After a crash, only two parts of the log may be in the system's cache and not on the disk. One is the last group of
  // records, or the heads behind that group (bytes `tail` to `place`). The other is the last mark that the reader has
  // followed (`mark`: its segment's index and its byte).
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
  Bytes held_;  // the bytes of segment `segment_`; empty until they are needed
};

}  // namespace fastagg::log
