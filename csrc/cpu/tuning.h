// Settings that depend on the processor. They change how loops run, never their results.
//
// When the extension is loaded, it chooses one row of the table by vendor and family. Python may set another one
// (FASTAGG_TUNE).
#pragma once

#include <cstdint>

namespace fastagg::cpu {

struct Tuning {
  const char* name;
  int64_t prefetch;    // how many elements ahead memory is prefetched; 0: not at all
  int64_t cache;       // bytes of the last cache, from which `bypasses` and `adds_in_place` follow; 0: neither
  int64_t width;       // bits of a vector in loops over more than `wide_below` bytes, if there is a choice
  int64_t wide_below;  // up to so many bytes loops use the widest vectors: the size of a core's own cache
  int64_t spin;        // microseconds that idle workers stay awake after a call
  int64_t group;       // the elements that a thread takes at a time, at most 65,536
  int64_t places;      // in how many places of a group read-only passes read in turn: a power of two, at most 32
};

// This processor's family and model, and its vendor: "GenuineIntel", "AuthenticAMD", "ARM", or "" if it is unknown.
struct Processor {
  char vendor[16];
  int family;
  int model;
  int64_t cache;  // bytes of the last cache; 0: it does not tell
};
const Processor& processor();

// default_tuning() is the table's row for this processor; tuning() is the one in use.
const Tuning& default_tuning();
const Tuning& tuning();
void set_tuning(const Tuning& tuning);  // values must be in range; applies from the next call on

// Whether a pass that touches so many bytes writes outputs that are not inputs past the caches: if they hold clearly
// less.
inline bool bypasses(int64_t bytes) { return tuning().cache > 0 && bytes / 5 * 4 > tuning().cache; }
// Whether an update of `size` elements is better copied, and then added where the sum is, than added beside it while it
// is read: if the cache holds two such vectors, but not a third.
inline bool adds_in_place(int64_t size) { return 8 * size <= tuning().cache && 12 * size > tuning().cache; }

}  // namespace fastagg::cpu
