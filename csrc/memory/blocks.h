// Memory of vectors: huge pages on Linux from 2 MiB on, and reuse of returned blocks. A server that sends each version
// to a client writes the next one to a new vector (csrc/serving/road.cpp). New memory from the operating system would
// cost a page fault every 4 KiB, as much as the step itself.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastagg::memory {

// `nbytes` of memory that nobody has written to, at a multiple of 64 bytes. Throws std::bad_alloc.
void* take(size_t nbytes);
// From any thread. A block that is not kept for reuse goes back to the operating system.
void give_back(void* block, size_t nbytes, bool keep) noexcept;
// Whether `take` would ask the operating system for nothing, or for little.
bool lies_about(size_t nbytes);
// Blocks kept for reuse go back to the operating system.
void trim() noexcept;

// For tests: the allocation after `count` more of them fails, once; none, if it is negative. Counted are those of
// `take` and, in a build that emulates CUDA, everything that `operator new` gives to this library.
void fail_after(int64_t count) noexcept;
int64_t left_to_fail() noexcept;  // negative: it has failed, or none is to
bool fails_now() noexcept;

}  // namespace fastagg::memory
