// Waits until a file's data is on the disk, with the call of the operating system that guarantees this.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace fastagg::store {

// Returns the result of the system's call: negative after an error, which is in `errno`. On macOS, fsync leaves the
// data in the disk's own cache. F_FULLFSYNC also writes out this cache, but some file systems refuse F_FULLFSYNC.
inline int sync_data(int file) {
#if defined(__linux__)
  return fdatasync(file);
#elif defined(F_FULLFSYNC)
  const int failed = fcntl(file, F_FULLFSYNC);
  return failed != 0 && (errno == ENOTSUP || errno == EINVAL) ? fsync(file) : failed;
#else
  return fsync(file);
#endif
}

}  // namespace fastagg::store
