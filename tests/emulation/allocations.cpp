// In a build for tests, `operator new` of this library can be told to fail (csrc/store/blocks.h). So tests can check a
// server's state after a failed allocation at any place.
#include <cstdlib>
#include <new>

#include "../../csrc/store/blocks.h"

namespace {

void* counted(size_t nbytes) {
  void* found = fastagg::store::fails_now() ? nullptr : std::malloc(nbytes == 0 ? 1 : nbytes);
  if (found == nullptr) throw std::bad_alloc();
  return found;
}

}  // namespace

void* operator new(size_t nbytes) { return counted(nbytes); }
void* operator new[](size_t nbytes) { return counted(nbytes); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }
void operator delete[](void* block, size_t) noexcept { std::free(block); }
