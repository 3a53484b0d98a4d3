#include "vector.h"

#include <cstring>

namespace fastagg::store {
namespace {

class HostMemory : public Memory {
 public:
  Vector bytes(int64_t nbytes) override {
    Owner owner = new_memory(nbytes);
    auto* data = static_cast<float*>(owner.get());
    return {std::move(owner), data};
  }
  void zero(void* at, int64_t nbytes) override { std::memset(at, 0, static_cast<size_t>(nbytes)); }
  void copy(void* to, const void* from, int64_t nbytes) override { std::memcpy(to, from, static_cast<size_t>(nbytes)); }
  void put(void* to, const void* host, int64_t nbytes) override { copy(to, host, nbytes); }
  void get(void* host, const void* from, int64_t nbytes) override { copy(host, from, nbytes); }
};

}  // namespace

Owner new_memory(int64_t nbytes, bool keep) {
  const auto size = static_cast<size_t>(nbytes);
  return Owner(take(size), GivesBack{size, keep});
}

std::shared_ptr<Memory> host_memory() { return std::make_shared<HostMemory>(); }

}  // namespace fastagg::store
