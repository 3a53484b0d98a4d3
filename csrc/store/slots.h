// The rows of all clients in a file of slots, through the system's page cache. It is not mapped: a place of the disk
// that cannot be read is an error, and not the end of the process.
//
// A row that changes goes to another slot. Its old slot is free at once, unless a checkpoint refers to it: then it is
// free when that checkpoint is given up. A checkpoint is the list of slots with their checksums.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "../cpu/cpu.h"
#include "blocks.h"
#include "row_store.h"

namespace fastagg::store {

// How a row lies in a slot, and in memory: its data and then its scales, each in whole pages. It is scrubbed window by
// window, so each window has a checksum.
struct RowShape {
  static constexpr int64_t kWindow = 131072;  // elements

  int format;
  int64_t size;  // elements of a row

  int64_t windows() const { return (size + kWindow - 1) / kWindow; }
  int64_t elements(int64_t window) const { return std::min(kWindow, size - window * kWindow); }
  int64_t data_bytes(int64_t count) const { return padded(count) * format_facts(format).bits / 8; }
  int64_t scale_bytes(int64_t count) const { return is_scaled() ? padded(count) / kScaleBlock * 4 : 0; }
  // Where a window's data begins in its row, and where its scales.
  int64_t data_at(int64_t window) const { return data_bytes(window * kWindow); }
  int64_t scales_at(int64_t window) const { return pages(data_bytes(size)) + scale_bytes(window * kWindow); }
  int64_t stride() const { return scales_at(0) + pages(scale_bytes(size)); }

  Row row_at(void* place) const { return row_at(static_cast<char*>(place), scales_at(0)); }
  // A window of a row, from the row's begin.
  Row part(Row row, int64_t window) const {
    row.data = static_cast<char*>(row.data) + data_at(window);
    if (row.scales != nullptr) row.scales += window * (kWindow / kScaleBlock);
    return row;
  }
  // A window alone, in memory of so many bytes: its data and right behind it its scales.
  int64_t part_bytes() const { return data_bytes(elements(0)) + scale_bytes(elements(0)); }
  Row part_at(char* place, int64_t window) const { return row_at(place, data_bytes(elements(window))); }
  // Its checksum: CRC-32C of its data and then its scales.
  uint32_t sum(const Row& part, int64_t window) const {
    const uint32_t data = cpu::crc32c(part.data, data_bytes(elements(window)), 0, false);
    return is_scaled() ? cpu::crc32c(part.scales, scale_bytes(elements(window)), data, false) : data;
  }
  void sums(const Row& row, uint32_t* found) const;  // of all windows, in several threads

 private:
  static int64_t pages(int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }
  bool is_scaled() const { return format_facts(format).scaled; }
  Row row_at(char* data, int64_t scales) const {
    return {data, is_scaled() ? reinterpret_cast<float*>(data + scales) : nullptr};
  }
};

class Slots {
 public:
  using Places = std::vector<int64_t>;  // a slot for each client; negative: it has no row
  struct Cut {
    Places places;
    std::vector<uint32_t> sums;  // of the rows that are there, in order
  };

  Slots(const RowShape& of_rows, int64_t clients, std::string path);
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;
  ~Slots() { close(); }
  const RowShape shape;
  const std::string path;  // for messages

  // The file, which whoever calls this has opened and locked. Its lock stays until `close`.
  void take(int file);
  void close() noexcept;
  bool is_open() const { return file_ >= 0; }

  int64_t clients() const { return static_cast<int64_t>(places_.size()); }
  const Places& places() const { return places_; }
  bool has(int64_t client) const { return of(client) >= 0; }
  // So many bytes of a client's row will be read soon, if it has one.
  void ask_ahead(int64_t client, int64_t offset, int64_t size) const noexcept;
  // A client's row, or a window of it alone. Throws RowsFailed, RowDamaged.
  Row read(int64_t client, const Block& into);
  Row read(int64_t client, int64_t window, char* into);

  // There is a free slot then. RowsFailed if the disk is full, and nothing has changed.
  void reserve();
  void move(int64_t client) noexcept;  // to the free slot, where `write` puts its row
  void write(int64_t client, const Block& row);
  void drop(int64_t client) noexcept;  // it has no row any more

  // Waits for the disk, while others go on. Any thread may call it.
  void sync();
  // A checkpoint begins: when this returns, everything is on the disk.
  Cut cut();
  // The slots of these checkpoints stay, and of all others only those of the rows as they are now.
  void keep(const std::vector<Places>& cuts);
  // The rows are those of a cut. Throws std::invalid_argument, and nothing has changed.
  void load(const Cut& cut, const std::vector<Places>& kept);

  int64_t bytes_read = 0, bytes_written = 0;
  int64_t nbytes() const;
  int64_t nbytes_on_disk() const { return static_cast<int64_t>(kept_.size()) * shape.stride(); }

 private:
  int64_t of(int64_t client) const { return places_[static_cast<size_t>(client)]; }
  uint32_t* sums(int64_t slot) { return sums_.data() + slot * shape.windows(); }
  template <typename Call>
  void transfer(Call call, const char* what, int64_t at, int64_t size, void* memory) const;
  [[noreturn]] void refuse_damaged(int64_t client) const;
  void put(int64_t client, const Block& row);
  [[noreturn]] void fail(const char* what, int error) const;

  int file_ = -1;
  Places places_;
  std::vector<uint32_t> sums_;  // by slot
  std::vector<bool> kept_;      // by slot: a checkpoint has it
  Places free_;                 // with room for all slots
  std::recursive_mutex syncs_;
  bool synced_ = true;  // no sync has failed since the last one that did not
};

}  // namespace fastagg::store
