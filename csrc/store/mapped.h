// Memory that takes no room before it is written.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace fastagg::store {

class Mapped {
 public:
  Mapped() = default;
  explicit Mapped(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    void* found = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    madvise(found, bytes_, MADV_HUGEPAGE);
#endif
    data_ = static_cast<char*>(found);
  }
  Mapped(Mapped&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Mapped& operator=(Mapped&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapped() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace fastagg::store
