#include "disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "../store/sync.h"

namespace fastagg::log {
namespace {

constexpr size_t kMostBuffers = 512;  // the most buffers in one system call; Linux allows at most 1,024

[[noreturn]] void fail(bool is_final = false) {
  char text[200];
  const int number = errno;
  std::snprintf(text, sizeof text, "OSError: [Errno %d] %s", number, std::strerror(number));
  throw DiskError(text, is_final);
}

template <typename Call>
auto retried(Call call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

}  // namespace

SystemDisk::~SystemDisk() {
  if (direct_ >= 0) ::close(direct_);
}

int SystemDisk::open(const std::string& name) {
  // O_NONBLOCK: opening a pipe or a device of this name must not wait. The check below rejects such a file.
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const int file = retried([&] { return openat(folder_, name.c_str(), flags, 0600); });
  if (file < 0) fail();
  struct stat status{};
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file);
    throw DiskError((name + ": it is there, and no regular file").c_str(), false);
  }
  return file;
}

void SystemDisk::close(int file) noexcept {
  if (file == direct_of_) {
    if (direct_ >= 0) ::close(direct_);
    direct_ = direct_of_ = -1;
  }
  ::close(file);
}

uint64_t SystemDisk::size(int file) {
  struct stat status{};
  if (fstat(file, &status) != 0) fail();
  return static_cast<uint64_t>(status.st_size);
}

void SystemDisk::allocate(int file, uint64_t nbytes) {
#if defined(__linux__)
  struct stat status{};
  if (fstat(file, &status) != 0) fail();
  const off_t begin = status.st_blocks * 512 < status.st_size ? 0 : status.st_size;
  if (begin >= static_cast<off_t>(nbytes)) return;  // a full XFS would fail to allocate even blocks that the file has
  if (const int failed = posix_fallocate(file, begin, static_cast<off_t>(nbytes) - begin); failed != 0) {
    [[maybe_unused]] const int done = ftruncate(file, status.st_size);  // frees the blocks that were allocated
    errno = failed;
    fail();
  }
#else
  static const std::vector<char> zeros(1 << 20);
  for (uint64_t at = size(file); at < nbytes;) {
    std::vector<iovec> more{
        {const_cast<char*>(zeros.data()), static_cast<size_t>(std::min<uint64_t>(nbytes - at, zeros.size()))}};
    const uint64_t count = more[0].iov_len;
    write(file, more, at);
    at += count;
  }
#endif
}

void SystemDisk::write(int file, std::vector<iovec>& buffers, uint64_t offset) {
  for (size_t i = 0; i < buffers.size();) {
    const auto count = static_cast<int>(std::min(buffers.size() - i, kMostBuffers));
    const ssize_t done = retried([&] { return pwritev(file, &buffers[i], count, static_cast<off_t>(offset)); });
    if (done < 0) fail();
    offset += static_cast<uint64_t>(done);
    auto left = static_cast<size_t>(done);
    while (i < buffers.size() && left >= buffers[i].iov_len) left -= buffers[i++].iov_len;
    if (left > 0) {
      buffers[i].iov_base = static_cast<char*>(buffers[i].iov_base) + left;
      buffers[i].iov_len -= left;
    }
  }
}

// Writes with O_DIRECT if possible, because filling new pages of the page cache takes longer than writing to the disk.
void SystemDisk::write_block(int file, const void* data, size_t nbytes, uint64_t offset) {
  size_t done = 0;
#if defined(__linux__) && defined(O_DIRECT)
  if (!refused_ && direct_of_ != file) {
    if (direct_ >= 0) ::close(direct_);
    const std::string name = "/proc/self/fd/" + std::to_string(file);
    direct_ = ::open(name.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC);
    direct_of_ = file;
    refused_ = direct_ < 0;
  }
  while (!refused_ && done < nbytes) {
    const ssize_t count = retried([&] {
      return pwrite(direct_, static_cast<const char*>(data) + done, nbytes - done, static_cast<off_t>(offset + done));
    });
    if (count <= 0 || count % 4096 != 0) {  // `write` below writes the rest, or reports the error
      refused_ = count < 0 && errno == EINVAL;
      break;
    }
    done += static_cast<size_t>(count);
  }
#endif
  if (done == nbytes) return;
  std::vector<iovec> rest{{static_cast<char*>(const_cast<void*>(data)) + done, nbytes - done}};
  write(file, rest, offset + done);
}

void SystemDisk::sync(int file) {
  // The failure of a sync is final. The system may have dropped the data, and a second sync would then falsely succeed.
  if (retried([&] { return store::sync_data(file); }) < 0) fail(true);
  struct stat status{};
  if (fstat(file, &status) == 0 && status.st_nlink == 0)
    throw DiskError("the file was removed while it was written to", true);
}

void SystemDisk::sync_folder() {
  if (retried([&] { return fsync(folder_); }) < 0) fail(true);
}

void SystemDisk::rename(const std::string& old_name, const std::string& new_name) {
  if (renameat(folder_, old_name.c_str(), folder_, new_name.c_str()) != 0) fail();
}

}  // namespace fastagg::log
