// A file of slots of equal size, through the system's page cache. It is not mapped: a place of the disk that cannot be
// read is an error, and not the end of the process.
#pragma once

#include <cstdint>
#include <string>

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

}  // namespace fastagg::store
