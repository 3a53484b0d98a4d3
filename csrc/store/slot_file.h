// A file of slots of equal size, through the system's page cache. It is not mapped: a place of the disk that cannot be
// read is an error, and not the end of the process.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "../cpu/cpu.h"
#include "row_store.h"

namespace fastagg::store {

class SlotFile {
 public:
  static constexpr int64_t kPage = 4096;  // a slot begins with a page, and so do a row's scales

  SlotFile() = default;
  SlotFile(const SlotFile&) = delete;
  SlotFile& operator=(const SlotFile&) = delete;
  ~SlotFile() { close(); }

  enum Use { kMake, kKeep, kRead };  // makes the file if it is missing; it must be there; only reads, without the lock
  // Its lock says whose it is: RowsFailed if somebody else has it.
  void open(const std::string& path, int64_t stride, Use use);
  void close();
  bool is_open() const { return file_ >= 0; }

  int64_t slots() const { return slots_; }  // that have their place on the disk
  // Gives places to more slots, `least` or some more. RowsFailed if the disk is full; then nothing has changed.
  void grow(int64_t least);

  void ask_ahead(int64_t slot, int64_t offset, int64_t size) const noexcept;  // it is read soon
  void read(int64_t slot, int64_t offset, int64_t size, void* into) const;
  void write(int64_t slot, int64_t offset, int64_t size, const void* from) const;
  void sync() const;

 private:
  std::string path_;
  int file_ = -1;
  int64_t stride_ = 0, slots_ = 0;
};

// How a row lies in a slot, and where it is read to: its data and then its scales, each in whole pages. A row is
// checked and scrubbed in windows of 131,072 elements, and each window has a checksum.
struct Windows {
  static constexpr int64_t kSize = 131072;  // elements

  int format;
  int64_t size;  // elements of a row

  int64_t count() const { return (size + kSize - 1) / kSize; }
  int64_t elements(int64_t window) const { return std::min(kSize, size - window * kSize); }
  int64_t scales_at() const { return pages(data_bytes(size)); }
  int64_t stride() const { return scales_at() + pages(scales(size) * 4); }

  Row row_at(char* place) const {
    if (place == nullptr) return {};
    return {place, scaled() ? reinterpret_cast<float*>(place + scales_at()) : nullptr};
  }

  // A window of a row, from the row's begin.
  Row part(Row row, int64_t window) const {
    row.data = static_cast<char*>(row.data) + window * data_bytes(kSize);
    if (row.scales != nullptr) row.scales += window * (kSize / kScaleBlock);
    return row;
  }

  // Of a window, from its own begin: its checksum, CRC-32C of its data and then its scales.
  uint32_t sum(const Row& part, int64_t window) const {
    const uint32_t data = cpu::crc32c(part.data, data_bytes(elements(window)), 0, false);
    return part.scales == nullptr ? data : cpu::crc32c(part.scales, scales(elements(window)) * 4, data, false);
  }

  // A window alone, read into memory of so many bytes.
  int64_t read_bytes() const { return data_bytes(elements(0)) + scales(elements(0)) * 4; }
  Row read(const SlotFile& file, int64_t slot, int64_t window, char* into) const {
    float* const behind = scaled() ? reinterpret_cast<float*>(into + data_bytes(elements(window))) : nullptr;
    const Row alone{into, behind};
    read_to(file, slot, window, alone);
    return alone;
  }
  // To where its data and its scales are wanted.
  void read_to(const SlotFile& file, int64_t slot, int64_t window, const Row& into) const {
    const int64_t count = elements(window);
    file.read(slot, window * data_bytes(kSize), data_bytes(count), into.data);
    if (scaled()) file.read(slot, scales_at() + scales(window * kSize) * 4, scales(count) * 4, into.scales);
  }
  // From where it is in a whole row. Pages are written whole, and so the scales with the last window: a part of a page
  // that is not in the cache would be read first.
  void write(const SlotFile& file, int64_t slot, int64_t window, const Row& from) const {
    const int64_t begin = window * data_bytes(kSize), end = begin + data_bytes(kSize);
    file.write(slot, begin, (window + 1 < count() ? end : stride()) - begin, from.data);
  }
  void ask_ahead(const SlotFile& file, int64_t slot, int64_t window) const noexcept {
    file.ask_ahead(slot, window * data_bytes(kSize), data_bytes(elements(window)));
    if (scaled()) file.ask_ahead(slot, scales_at() + scales(window * kSize) * 4, scales(elements(window)) * 4);
  }

 private:
  static int64_t pages(int64_t bytes) { return (bytes + SlotFile::kPage - 1) / SlotFile::kPage * SlotFile::kPage; }
  bool scaled() const { return format_facts(format).scaled; }
  int64_t data_bytes(int64_t count) const { return padded(count) * format_facts(format).bits / 8; }
  int64_t scales(int64_t count) const { return scaled() ? padded(count) / kScaleBlock : 0; }
};

}  // namespace fastagg::store
