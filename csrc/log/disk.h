// The file operations of a log, in one class. Tests replace the class by a disk that loses power.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace fastagg::log {

// A failed file operation. `final`: written data may be lost, even if the system has reported or will report success.
// Nothing may be acknowledged any more.
class DiskError : public std::exception {
 public:
  DiskError(const char* text, bool is_final) noexcept : final(is_final) {
    std::snprintf(text_, sizeof text_, "%s", text);
  }
  const char* what() const noexcept override { return text_; }
  bool final;

 private:
  char text_[256];  // not a std::string: if its allocation failed, this error would be lost
};

// The files of one folder, by name. All methods but `close` throw DiskError.
class Disk {
 public:
  virtual ~Disk() = default;
  // Opens a regular file for writing, and creates it if there is none.
  virtual int open(const std::string& name) = 0;
  // Closes a file that `open` has returned. Nothing else closes such a file.
  virtual void close(int file) noexcept = 0;
  virtual uint64_t size(int file) = 0;
  // Reserves room for so many bytes, so that writing there does not fail and a sync need not write metadata. If there
  // is not room for all of them, the file is left as it was.
  virtual void allocate(int file, uint64_t nbytes) = 0;
  virtual void write(int file, std::vector<iovec>& buffers, uint64_t offset) = 0;
  // Like `write`, but past the system's page cache if possible. Memory, size and offset must be multiples of 4,096.
  virtual void write_block(int file, const void* data, size_t nbytes, uint64_t offset) = 0;
  // Waits until all data written to the file is on the disk. `sync_folder` waits for the names in the folder.
  virtual void sync(int file) = 0;
  virtual void sync_folder() = 0;
  virtual void rename(const std::string& old_name, const std::string& new_name) = 0;
};

// The operating system's disk. `folder` is the descriptor of an open folder, which stays the caller's. Names belong to
// that folder even after it is moved, and never to another folder at the same path.
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
  int direct_ = -1, direct_of_ = -1;  // the last file of write_block: opened past the page cache, and as usual
  // Whether the file system refuses such writes. Unused on a system without O_DIRECT.
  [[maybe_unused]] bool refused_ = false;
};

}  // namespace fastagg::log
