// Allocates the memory of vectors. Keeps some returned blocks for reuse. On Linux, blocks of 2 MiB or more have huge
// pages if the system allows them. If clients hold a server's version, the next version is written to a new vector
// (csrc/engine/step.cpp). With new memory from the operating system, page faults would take as long as the step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace fastagg::store {

// Returns `nbytes` of uninitialised memory, aligned to 64 bytes. Throws std::bad_alloc.
void* take(size_t nbytes);
// Gives back a block of `take(nbytes)`, on any thread. If `keep` is false, the block is freed and not kept for reuse.
void give_back(void* block, size_t nbytes, bool keep) noexcept;
// The deleter of a Block.
struct BlockReturn {
  size_t nbytes = 0;
  bool keep = true;
  void operator()(void* block) const noexcept { give_back(block, nbytes, keep); }
};
using Block = std::unique_ptr<void, BlockReturn>;
inline Block block_of(size_t nbytes) { return Block(take(nbytes), BlockReturn{nbytes, true}); }
// Gives all blocks that are kept for reuse back to the operating system.
void trim() noexcept;

// Keeps the blocks that a server needs in every round. A block returns to the shelf when its last owner is gone, on any
// thread. The shelf has as many blocks as were ever in use at the same time. The shelf's destructor frees them.
class Shelf : public std::enable_shared_from_this<Shelf> {
 public:
  // Returns a block of at least `nbytes`. Throws std::bad_alloc.
  std::shared_ptr<void> take(size_t nbytes);

 private:
  std::vector<Block> blocks_;  // the free blocks; its capacity is at least `all_`, so that a return allocates nothing
  size_t all_ = 0;             // number of blocks, free or in use
};

// Torch and pybind11 abort the process if a small allocation fails in a function that may not throw, or while an
// exception is being thrown. So 1 MiB of memory is kept in reserve. A failing `operator new` frees the reserve, and
// then tries again. A call from Python first calls `keep_reserve`, which refills the reserve or throws std::bad_alloc.
void keep_reserve();
void use_reserve();  // frees the reserve; if it is empty, calls the earlier new-handler, or throws std::bad_alloc

// For tests: makes one allocation fail, after `count` allocations that succeed. A negative `count` makes none fail.
// Only allocations by `take` count. In a build that emulates CUDA, each `operator new` of this library counts, too.
void fail_after(int64_t count) noexcept;
int64_t left_to_fail() noexcept;  // how many allocations succeed before one fails; negative: none will fail
bool fails_now() noexcept;        // counts an allocation, and returns whether it must fail

}  // namespace fastagg::store
