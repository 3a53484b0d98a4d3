#include "past_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace fastagg::serving {
namespace {

constexpr uint64_t kBlock = 4096;
constexpr uint64_t kStage = uint64_t{8} << 20;  // smaller writes would leave the disk's queue empty

// Writes all bytes. Returns false if that fails; the ordinary way then reports the error.
bool all(int file, const uint8_t* from, uint64_t size, uint64_t offset) {
  for (uint64_t done = 0; done < size;) {
    const ssize_t count = pwrite(file, from + done, size - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0 || static_cast<uint64_t>(count) % kBlock != 0) return false;
    done += static_cast<uint64_t>(count);
  }
  return true;
}

}  // namespace

void PastCache::open([[maybe_unused]] int file) {
  close();
#if defined(__linux__) && defined(O_DIRECT)
  if (refused_) return;
  const std::string name = "/proc/self/fd/" + std::to_string(file);
  file_ = ::open(name.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC);
#endif
  refused_ = file_ < 0;
}

void PastCache::close() {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

bool PastCache::write(const std::vector<iovec>& buffers, uint64_t offset) {
  if (file_ < 0) return false;
  if (!stage_) stage_.reset(static_cast<uint8_t*>(std::aligned_alloc(kBlock, kStage)));
  if (!stage_) return false;
  uint64_t held = 0;
  const auto put = [&](uint64_t size) {
    refused_ = !all(file_, stage_.get(), size, offset);
    if (refused_) close();
    offset += size;
    held = 0;
    return !refused_;
  };
  for (const iovec& one : buffers) {
    const auto* from = static_cast<const uint8_t*>(one.iov_base);
    for (uint64_t left = one.iov_len; left > 0;) {
      const uint64_t count = std::min(left, kStage - held);
      std::memcpy(stage_.get() + held, from, count);
      held += count, from += count, left -= count;
      if (held == kStage && !put(kStage)) return false;
    }
  }
  const uint64_t whole = (held + kBlock - 1) / kBlock * kBlock;
  std::memset(stage_.get() + held, 0, whole - held);
  return whole == 0 || put(whole);
}

}  // namespace fastagg::serving
