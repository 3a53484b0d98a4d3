#include "slot_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "sync.h"

namespace fastagg::store {
namespace {

constexpr int64_t kGrowth = int64_t{64} << 20;  // bytes: few enough that nobody notices the wait
#if defined(POSIX_FADV_WILLNEED)
constexpr int64_t kAskedAtOnce = int64_t{128} << 10;  // of more the system reads only the begin
#endif

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw RowsFailed(path + ": " + what + ": " + std::strerror(error));
}

}  // namespace

void SlotFile::open(const std::string& path, int64_t stride, Use use) {
  close();
  path_ = path;
  const int flags = (use == kRead ? O_RDONLY : O_RDWR) | (use == kMake ? O_CREAT : 0) | O_CLOEXEC;
  file_ = ::open(path.c_str(), flags, 0666);
  if (file_ < 0) fail(path_, "rows cannot be opened", errno);
  if (use != kRead && flock(file_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    close();
    if (error == EWOULDBLOCK) throw RowsFailed(path + ": its rows are in use, by another server or process");
    fail(path, "rows cannot be locked", error);
  }
  struct stat facts{};
  if (fstat(file_, &facts) != 0) fail(path_, "rows cannot be opened", errno);
  stride_ = stride;
  slots_ = facts.st_size / stride;
}

void SlotFile::close() {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

void SlotFile::grow(int64_t least) {
  if (least <= slots_) return;
  const int64_t wanted = std::max(least, slots_ + kGrowth / stride_);
  const auto reserve = [&](int64_t slots) {
#if defined(__linux__)
    const auto begin = static_cast<off_t>(slots_ * stride_), size = static_cast<off_t>((slots - slots_) * stride_);
    if (fallocate(file_, 0, begin, size) == 0) return 0;
    if (errno != EOPNOTSUPP) return errno;
#endif
    return ftruncate(file_, static_cast<off_t>(slots * stride_)) == 0 ? 0 : errno;
  };
  if (reserve(wanted) == 0) {
    slots_ = wanted;
    return;
  }
  if (const int error = reserve(least); error != 0) {  // there may be room for what is needed now
    [[maybe_unused]] const int back = ftruncate(file_, static_cast<off_t>(slots_ * stride_));
    fail(path_, "no room for another row", error);
  }
  slots_ = least;
}

void SlotFile::ask_ahead([[maybe_unused]] int64_t slot, [[maybe_unused]] int64_t offset,
                         [[maybe_unused]] int64_t size) const noexcept {
#if defined(POSIX_FADV_WILLNEED)
  const int64_t begin = slot * stride_ + offset;
  for (int64_t done = 0; done < size; done += kAskedAtOnce)
    posix_fadvise(file_, static_cast<off_t>(begin + done), static_cast<off_t>(std::min(kAskedAtOnce, size - done)),
                  POSIX_FADV_WILLNEED);
#endif
}

void SlotFile::read(int64_t slot, int64_t offset, int64_t size, void* into) const {
  for (int64_t done = 0; done < size;) {
    const ssize_t count = pread(file_, static_cast<char*>(into) + done, static_cast<size_t>(size - done),
                                static_cast<off_t>(slot * stride_ + offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path_, "a row cannot be read", errno);
    if (count == 0) throw RowsFailed(path_ + ": a row cannot be read: the file ends before it");
    done += count;
  }
}

void SlotFile::write(int64_t slot, int64_t offset, int64_t size, const void* from) const {
  for (int64_t done = 0; done < size;) {
    const ssize_t count = pwrite(file_, static_cast<const char*>(from) + done, static_cast<size_t>(size - done),
                                 static_cast<off_t>(slot * stride_ + offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail(path_, "a row cannot be written", count == 0 ? EIO : errno);
    done += count;
  }
}

void SlotFile::sync() const {
  if (sync_data(file_) != 0) fail(path_, "rows cannot be synced", errno);
}

}  // namespace fastagg::store
