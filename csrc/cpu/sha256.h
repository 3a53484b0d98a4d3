// SHA-256 of bytes that are added in parts. in_software: whether to use no SHA instructions of the processor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fastagg {

using Digest = std::array<uint8_t, 32>;

namespace cpu {

class Sha256 {
 public:
  explicit Sha256(bool in_software = false) : in_software_(in_software) {}
  Sha256& add(const void* data, size_t size);
  Digest digest();  // must be called only once, after all calls of add()

 private:
  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint64_t size_ = 0;
  uint8_t rest_[64];
  bool in_software_;
};

}  // namespace cpu
}  // namespace fastagg
