// Memory of vectors: huge pages on Linux from 2 MiB on, and reuse of returned blocks. A server that sends each version
// to a client writes the next one to a new vector (csrc/engine/engine.cpp). New memory from the operating system would
// cost a page fault every 4 KiB, as much as the step itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace fastagg::store {

// Returns `nbytes` of memory that nobody has written to, aligned to 64 bytes. Throws std::bad_alloc.
void* take(size_t nbytes);
// Any thread may call it. If `keep` is false, the block goes back to the operating system.
void give_back(void* block, size_t nbytes, bool keep) noexcept;
// A block that is given back for reuse when nobody holds it any more.
struct BlockReturn {
  size_t nbytes = 0;
  bool keep = true;
  void operator()(void* block) const noexcept { give_back(block, nbytes, keep); }
};
using Block = std::unique_ptr<void, BlockReturn>;
inline Block block_of(size_t nbytes) { return Block(take(nbytes), BlockReturn{nbytes, true}); }
// Gives all blocks kept for reuse back to the operating system.
void trim() noexcept;

// Blocks that a server needs again in every round, however many they are. It keeps as many as were in use at once, and
// gives them back when it goes. A block comes back when nobody holds it any more, on any thread.
class Shelf : public std::enable_shared_from_this<Shelf> {
 public:
  // A block of at least `nbytes`. Throws std::bad_alloc.
  std::shared_ptr<void> take(size_t nbytes);

 private:
  std::vector<Block> blocks_;  // with room for those in use
  size_t all_ = 0;
};

// Torch and pybind11 end the process where a small allocation of theirs fails: in functions that may not throw, and on
// the way back from one that did. So some memory is kept, which a failing `operator new` gives back before it tries
// again. A call from Python begins by looking that it is there. Throws std::bad_alloc, when nothing has changed yet.
void keep_reserve();
void use_reserve();  // throws std::bad_alloc if it is used up

// For tests: one allocation fails, after `count` more have succeeded. Negative: none fails. Counted are allocations by
// `take`. In a build that emulates CUDA, every `operator new` of this library is counted, too.
void fail_after(int64_t count) noexcept;
int64_t left_to_fail() noexcept;  // how many will still succeed; negative: one has failed, or none is to fail
bool fails_now() noexcept;

}  // namespace fastagg::store
