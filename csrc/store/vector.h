// A Vector is the address of a vector's elements and an owner of their memory. Every copy of a Vector keeps the memory
// alive, and may be destroyed on any thread. This file also allocates vectors.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "../plan.h"
#include "blocks.h"

namespace fastagg::store {

using Owner = std::shared_ptr<void>;

// Whether the memory is a block of this library. Then every holder of the memory has a copy of the owner.
inline bool is_block(const Owner& owner) { return std::get_deleter<BlockReturn>(owner) != nullptr; }

struct Vector {
  Owner owner;
  float* data = nullptr;
  Dtype dtype = kFloat32;  // kBFloat16 only for a model; its elements are then at `halves()`

  explicit operator bool() const { return data != nullptr; }
  uint16_t* halves() const { return static_cast<uint16_t*>(static_cast<void*>(data)); }
};

inline Update update_of(const Vector& vector, int64_t size) {
  Update whole;
  whole.add(vector.data, size, vector.dtype);
  return whole;
}

// Returns `nbytes` of uninitialised host memory. If `keep` is false, the memory is freed when its last owner is gone,
// and not kept for reuse. Throws std::bad_alloc.
inline Owner new_memory(int64_t nbytes, bool keep = true) {
  const auto size = static_cast<size_t>(nbytes);
  return Owner(take(size), BlockReturn{size, keep});
}

inline Vector new_bytes(int64_t nbytes) {
  Owner owner = new_memory(nbytes);
  auto* const data = static_cast<float*>(owner.get());
  return {std::move(owner), data};
}
inline Vector new_vector(int64_t count) { return new_bytes(count * static_cast<int64_t>(sizeof(float))); }

// Allocates and copies a server's vectors, in host memory or on a device. Every method may throw std::bad_alloc or a
// device's error. The parameters `host` are addresses in host memory. All other addresses are in this Memory.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual Vector bytes(int64_t nbytes) = 0;
  Vector vector(int64_t count, Dtype dtype = kFloat32) {
    Vector made = bytes(count * static_cast<int64_t>(dtype == kFloat32 ? sizeof(float) : sizeof(uint16_t)));
    made.dtype = dtype;
    return made;
  }
  virtual void zero(void* at, int64_t nbytes) = 0;
  virtual void copy(void* to, const void* from, int64_t nbytes) = 0;
  virtual void put(void* to, const void* host, int64_t nbytes) = 0;
  virtual void get(void* host, const void* from, int64_t nbytes) = 0;
  virtual bool is_host() const { return true; }  // whether the CPU can read this memory
};

class HostMemory : public Memory {
 public:
  Vector bytes(int64_t nbytes) override { return new_bytes(nbytes); }
  void zero(void* at, int64_t nbytes) override { std::memset(at, 0, static_cast<size_t>(nbytes)); }
  void copy(void* to, const void* from, int64_t nbytes) override { std::memcpy(to, from, static_cast<size_t>(nbytes)); }
  void put(void* to, const void* host, int64_t nbytes) override { copy(to, host, nbytes); }
  void get(void* host, const void* from, int64_t nbytes) override { copy(host, from, nbytes); }
};

inline std::shared_ptr<Memory> host_memory() { return std::make_shared<HostMemory>(); }

}  // namespace fastagg::store
