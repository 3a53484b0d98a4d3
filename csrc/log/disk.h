// The file operations of a log, in one class. Tests replace it by a disk that loses power.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace fastagg::log {

// `final`: what was written may be lost although the system said otherwise, or will say so. Nothing may be acknowledged
// any more.
class DiskError : public std::exception {
 public:
  DiskError(const char* text, bool is_final) noexcept : final(is_final) {
    std::snprintf(text_, sizeof text_, "%s", text);
  }
  const char* what() const noexcept override { return text_; }
  bool final;

 private:
  char text_[256];  // of its own: without memory a final failure must not become another one
};

// The files of one folder, by name. Every method throws DiskFailed.
class Disk {
 public:
  virtual ~Disk() = default;
  // Opens a regular file for writing; it may be new.
  virtual int open(const std::string& name) = 0;
  // Only of files that `open` has returned: nobody else closes those, and this closes no other.
  virtual void close(int file) noexcept = 0;
  virtual uint64_t size(int file) = 0;
  // Reserves room for so many bytes, so that writing there does not fail and a sync need not write metadata. A file
  // that cannot have all of them is left as it was.
  virtual void allocate(int file, uint64_t nbytes) = 0;
  virtual void write(int file, std::vector<iovec>& buffers, uint64_t offset) = 0;
  // The same for memory and an offset that are multiples of 4,096, past the system's page cache if it can.
  virtual void write_block(int file, const void* data, size_t nbytes, uint64_t offset) = 0;
  // Waits until all that was written to the file, or the names in the folder, are on the disk.
  virtual void sync(int file) = 0;
  virtual void sync_folder() = 0;
  virtual void rename(const std::string& old_name, const std::string& new_name) = 0;
};

// The operating system's. `folder` is an open folder: names belong to it, wherever it is moved, and not to a folder
// that somebody makes with the same path. The disk does not own it.
class SystemDisk : public Disk {
 public:
  explicit SystemDisk(int folder) : folder_(folder) {}
  ~SystemDisk() override;
  int open(const std::string& name) override;
  void close(int file) noexcept override;
  uint64_t size(int file) override;
  void allocate(int file, uint64_t nbytes) override;
  void write(int file, std::vector<iovec>& buffers, uint64_t offset) override;
  void write_block(int file, const void* data, size_t nbytes, uint64_t offset) override;
  void sync(int file) override;
  void sync_folder() override;
  void rename(const std::string& old_name, const std::string& new_name) override;

 private:
  int folder_;
  int direct_ = -1, direct_of_ = -1;  // the last file, opened again for writes past the page cache
  // The file system has no such writes. A system without O_DIRECT never asks.
  [[maybe_unused]] bool refused_ = false;
};

}  // namespace fastagg::log
