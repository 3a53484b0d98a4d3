// The file operations with which a journal (journal.h) writes a log. Tests use a disk that simulates power losses.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace fastagg::log {

// The error of a file operation. `final`: whether data that was already written may be lost. A later successful
// operation does not make a final error harmless. So after a final error, no record may be acknowledged.
class DiskError : public std::exception {
 public:
  DiskError(const char* text, bool is_final) noexcept : final(is_final) {
    std::snprintf(text_, sizeof text_, "%s", text);
  }
  const char* what() const noexcept override { return text_; }
  bool final;

 private:
  char text_[256];  // an array, because the allocation of a std::string may fail
};

// Operations on the files of one folder. All methods except `close` may throw DiskError.
class Disk {
 public:
  virtual ~Disk() = default;
  // Opens a regular file for writing, and creates the file if it does not exist. Returns the file's descriptor.
  virtual int open(const std::string& name) = 0;
  // Closes a descriptor that `open` has returned. Callers must not close such a descriptor in another way.
  virtual void close(int file) noexcept = 0;
  virtual uint64_t size(int file) = 0;
  // Makes the file at least `nbytes` bytes long, and reserves disk space for these bytes. Writing these bytes then does
  // not fail for lack of space, and does not change the file's size. Throws DiskError if there is not enough space. The
  // file then keeps its old size on Linux. On other systems zeros may have been appended.
  virtual void allocate(int file, uint64_t nbytes) = 0;
  virtual void write(int file, std::vector<iovec>& buffers, uint64_t offset) = 0;
  // Like `write`, but bypasses the page cache if possible. `data`, `nbytes` and `offset` must be multiples of 4,096.
  virtual void write_block(int file, const void* data, size_t nbytes, uint64_t offset) = 0;
  // Waits until all data written to the file is on the disk. `sync_folder` waits until new file names are on the disk.
  virtual void sync(int file) = 0;
  virtual void sync_folder() = 0;
  virtual void rename(const std::string& old_name, const std::string& new_name) = 0;
};

// Files of the operating system. `folder` is the descriptor of an open folder. The caller must close that descriptor.
// File names are looked up in that folder, even if the folder was moved and another folder now has the old path.
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
  int direct_ = -1, direct_of_ = -1;  // descriptors of write_block's last file, with and without O_DIRECT; -1: none
  // Whether the system has refused to open or write a file with O_DIRECT. Unused on a system without O_DIRECT.
  [[maybe_unused]] bool refused_ = false;
};

}  // namespace fastagg::log
