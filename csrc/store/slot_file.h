// A file of slots of equal size, read and written past the system's page cache where the file system can do that: rows
// that do not fit into memory would only push each other out of it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace fastagg::store {

// A file that cannot be read or written, and why. Becomes fastagg.errors.CacheError.
class SlotsFailed : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class SlotFile {
 public:
  static constexpr int64_t kPage = 4096;  // offsets, sizes and addresses are multiples of it

  SlotFile() = default;
  SlotFile(const SlotFile&) = delete;
  SlotFile& operator=(const SlotFile&) = delete;
  ~SlotFile() { close(); }

  enum Use { kMake, kKeep, kRead };  // makes the file if it is missing; it must be there; only reads, without the lock
  // Its lock says whose it is: SlotsFailed if somebody else has it.
  void open(const std::string& path, int64_t stride, Use use);
  void close();
  bool is_open() const { return file_ >= 0; }

  int64_t slots() const { return slots_; }  // that have their place on the disk
  // Gives places to more slots, `least` or some more. SlotsFailed if the disk is full; then nothing has changed.
  void grow(int64_t least);

  void read(int64_t slot, int64_t offset, int64_t size, void* into) const;
  void write(int64_t slot, const void* from) const;
  void sync() const;

 private:
  std::string path_;
  int file_ = -1;
  int64_t stride_ = 0, slots_ = 0;
};

}  // namespace fastagg::store
