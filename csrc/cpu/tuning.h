// Settings that depend on the processor. The settings change the speed of loops, but never the results.
//
// The processor's vendor and family select the values (tuning.cpp). Python may set other values (FASTAGG_TUNE).
#pragma once

#include <algorithm>
#include <cstdint>

namespace fastagg::cpu {

struct Tuning {
  const char* name;
  int64_t prefetch;  // prefetch distance in elements; 0: no prefetch
  int64_t cache;     // bytes of the last cache, for `bypasses` and `adds_in_place`; 0: both return false
  int64_t width;     // bits of a vector in loops over more than `wide_below` bytes, if there are two widths
  // loops over at most this many bytes use the widest vectors; about the size of a core's own cache
  int64_t wide_below;
  int64_t spin;    // microseconds that idle workers stay awake after a call
  int64_t group;   // the most elements that a thread takes at a time; at most 65,536
  int64_t places;  // read-only passes read from this many places of a group in turn; a power of two, at most 32
};

// This processor's vendor ("GenuineIntel", "AuthenticAMD", "ARM", or "" if it is unknown), family and model.
struct Processor {
  char vendor[16];
  int family;
  int model;
  int64_t cache;  // bytes of the last cache; 0: unknown
};
const Processor& processor();

// default_tuning() returns the table's row for this processor. tuning() returns the tuning in use.
const Tuning& default_tuning();
const Tuning& tuning();
void set_tuning(const Tuning& tuning);  // values must be in range; applies from the next call on

// Returns whether a pass that touches this many bytes should store its outputs past the caches. This is faster if
// `bytes` is clearly more than the last cache holds. Callers never store outputs past the caches that are also inputs.
inline bool bypasses(int64_t bytes) { return tuning().cache > 0 && bytes / 5 * 4 > tuning().cache; }
// Returns the prefetch distance of stages on rows, which together touch this many bytes. Between two reads of a stream
// there is much arithmetic, so AMD's own prefetchers lose the stream. From the last cache, prefetching makes ACE with
// int8 rows a quarter faster on Zen 4. From memory, prefetching makes it slower.
inline int64_t prefetch_of_rows(int64_t bytes) {
  return tuning().cache == 0 || bypasses(bytes) ? tuning().prefetch : std::max(tuning().prefetch, int64_t{256});
}
// Whether the cache holds two vectors of `size` elements. A sum that an update is added to in place then stays there.
inline bool holds_two(int64_t size) { return 8 * size <= tuning().cache; }
// Returns whether an update of `size` elements should be copied and then added to the sum in place. Otherwise the
// update is added to a new sum while it is read. The copy is faster if the cache holds two such vectors, but not three.
inline bool adds_in_place(int64_t size) { return holds_two(size) && 12 * size > tuning().cache; }

}  // namespace fastagg::cpu
