// Memory of vectors: returned blocks are reused, and blocks from 2 MiB on have huge pages on Linux. If clients hold a
// server's version, the next version is written to a new vector (csrc/engine/step.cpp). New memory from the operating
// system would cost a page fault every 4 KiB, as much as the step itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace fastagg::store {

// Returns `nbytes` of uninitialised memory, aligned to 64 bytes. Throws std::bad_alloc.
void* take(size_t nbytes);
// Returns a block, on any thread. If `keep` is false, the block goes back to the operating system.
void give_back(void* block, size_t nbytes, bool keep) noexcept;
// Gives a block back when nobody holds it any more.
struct BlockReturn {
  size_t nbytes = 0;
  bool keep = true;
  void operator()(void* block) const noexcept { give_back(block, nbytes, keep); }
};
using Block = std::unique_ptr<void, BlockReturn>;
inline Block block_of(size_t nbytes) { return Block(take(nbytes), BlockReturn{nbytes, true}); }
// Gives all blocks kept for reuse back to the operating system.
void trim() noexcept;

// Keeps the blocks that a server needs in every round, as many as were in use at once. Blocks are freed with the shelf.
// A block returns to the shelf when nobody holds it any more, on any thread.
class Shelf : public std::enable_shared_from_this<Shelf> {
 public:
  // Returns a block of at least `nbytes`. Throws std::bad_alloc.
  std::shared_ptr<void> take(size_t nbytes);

 private:
  std::vector<Block> blocks_;  // with capacity for the blocks in use
  size_t all_ = 0;
};

// Torch and pybind11 abort the process if a small allocation fails in a function that may not throw, or while an
// exception is on its way. So some memory is kept in reserve. A failing `operator new` frees the reserve, and then
// tries again. Every call from Python first calls `keep_reserve`, which refills the reserve or throws std::bad_alloc.
void keep_reserve();
void use_reserve();  // frees the reserve; throws std::bad_alloc if it is used up

// For tests: one allocation fails after `count` more have succeeded. Negative: none fails. Only allocations by `take`
// are counted. In a build that emulates CUDA, every `operator new` of this library is counted, too.
void fail_after(int64_t count) noexcept;
int64_t left_to_fail() noexcept;  // how many will still succeed; negative: one has failed already, or none will fail
bool fails_now() noexcept;

}  // namespace fastagg::store
