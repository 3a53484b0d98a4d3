// The file operations with which a journal writes a log. Tests replace SystemDisk by a disk that loses power.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace fastagg::log {

// A failed file operation. `final`: whether written data may be lost, even if the system has reported or will report
// success. After a final error, no record may be acknowledged.
class DiskError : public std::exception {
 public:
  DiskError(const char* text, bool is_final) noexcept : final(is_final) {
    std::snprintf(text_, sizeof text_, "%s", text);
  }
  const char* what() const noexcept override { return text_; }
  bool final;

 private:
  char text_[256];  // not a std::string, whose allocation may fail
};

// Opens and writes the files of one folder. All methods except `close` may throw DiskError.
class Disk {
 public:
  virtual ~Disk() = default;
  // Opens a regular file for writing, and creates it if there is none.
  virtual int open(const std::string& name) = 0;
  // Closes a file that `open` has returned. Nothing else closes such a file.
  virtual void close(int file) noexcept = 0;
  virtual uint64_t size(int file) = 0;
  // Reserves disk space for the file's first `nbytes` bytes. Writing these bytes then does not fail for lack of space,
  // and a sync need not write metadata. Throws DiskError if there is not enough space. On Linux the file then keeps its
  // old size. On other systems zeros may have been appended.
  virtual void allocate(int file, uint64_t nbytes) = 0;
  virtual void write(int file, std::vector<iovec>& buffers, uint64_t offset) = 0;
  // Like `write`, but bypasses the page cache if possible. Address, size and offset must be multiples of 4,096.
  virtual void write_block(int file, const void* data, size_t nbytes, uint64_t offset) = 0;
  // Waits until all data written to the file is on the disk. `sync_folder` waits for the folder's list of files.
  virtual void sync(int file) = 0;
  virtual void sync_folder() = 0;
  virtual void rename(const std::string& old_name, const std::string& new_name) = 0;
};

// Files of the operating system. `folder` is the descriptor of an open folder, which the caller closes. File names are
// looked up in that folder, even if the folder was moved and another folder has its path.
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
  int direct_ = -1, direct_of_ = -1;  // descriptors of write_block's last file, with and without O_DIRECT
  // Whether the file system refuses writes with O_DIRECT. Unused on a system without O_DIRECT.
  [[maybe_unused]] bool refused_ = false;
};

}  // namespace fastagg::log
