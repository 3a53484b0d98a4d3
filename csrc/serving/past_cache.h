// Large writes past the system's page cache: new pages in it take several times as long as the disk does.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

namespace fastagg::serving {

class PastCache {
 public:
  // From so many bytes on a write is worth the copy that its alignment needs.
  static constexpr uint64_t kLarge = uint64_t{1} << 20;

  PastCache() = default;
  PastCache(const PastCache&) = delete;
  PastCache& operator=(const PastCache&) = delete;
  ~PastCache() { close(); }

  // The same file once more. Systems and file systems that have no such writes are asked once.
  void open(int file);
  void close();

  // All of the buffers at `offset`, a multiple of 4,096, and zeros up to the next one. False: written in part or not at
  // all, as the system does not do it here. Nothing is on the disk before a sync of the file.
  bool write(const std::vector<iovec>& buffers, uint64_t offset);

 private:
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };

  int file_ = -1;
  bool refused_ = false;
  std::unique_ptr<uint8_t, Free> stage_;  // where buffers become aligned
};

}  // namespace fastagg::serving
