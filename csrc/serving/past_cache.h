// Large writes that go past the system's page cache, because allocating new pages in it takes several times as long as
// the disk does.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

namespace fastagg::serving {

class PastCache {
 public:
  // The smallest write for which this pays: the data must be copied to align it.
  static constexpr uint64_t kLarge = uint64_t{1} << 20;

  PastCache() = default;
  PastCache(const PastCache&) = delete;
  PastCache& operator=(const PastCache&) = delete;
  ~PastCache() { close(); }

  // Opens the same file again for such writes. If the system or file system has none, this is asked only once.
  void open(int file);
  void close();

  // Writes all buffers at `offset`, a multiple of 4,096, and zeros up to the next multiple. Returns false if the system
  // does not support it; then a part may be written. Nothing is safe on the disk before the file is synced.
  bool write(const std::vector<iovec>& buffers, uint64_t offset);

 private:
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };

  int file_ = -1;
  bool refused_ = false;
  std::unique_ptr<uint8_t, Free> stage_;  // the buffers are copied here to align them
};

}  // namespace fastagg::serving
