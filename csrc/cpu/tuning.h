// Settings that depend on the processor. They change how loops run, never their results.
//
// When the extension is loaded, it chooses one row of the table of tunings by vendor and family. Python may set another
// tuning (FASTAGG_TUNE).
#pragma once

#include <cstdint>

namespace fastagg::cpu {

struct Tuning {
  const char* name;
  int64_t prefetch;  // prefetch distance in elements; 0: no prefetch
  int64_t cache;     // bytes of the last cache, for `bypasses` and `adds_in_place`; 0: both are off
  int64_t width;     // bits of a vector in loops over more than `wide_below` bytes, if there is a choice
  // loops over at most this many bytes use the widest vectors: about the size of a core's own cache
  int64_t wide_below;
  int64_t spin;    // microseconds that idle workers stay awake after a call
  int64_t group;   // the elements that a thread takes at a time, at most 65,536
  int64_t places;  // at how many places of a group read-only passes read in turn: a power of two, at most 32
};

// This processor's vendor ("GenuineIntel", "AuthenticAMD", "ARM", or "" if it is unknown), family and model.
struct Processor {
  char vendor[16];
  int family;
  int model;
  int64_t cache;  // bytes of the last cache; 0: unknown
};
const Processor& processor();

// default_tuning() is the table's row for this processor. tuning() is the tuning in use.
const Tuning& default_tuning();
const Tuning& tuning();
void set_tuning(const Tuning& tuning);  // values must be in range; applies from the next call on

// Whether a pass that touches this many bytes should store outputs that are not inputs past the caches. It should if
// the last cache is clearly smaller.
inline bool bypasses(int64_t bytes) { return tuning().cache > 0 && bytes / 5 * 4 > tuning().cache; }
// Whether an update of `size` elements should be read twice: first to measure it, then to add it to the sum in place.
// The alternative reads the update once, and writes a new sum. In place is better if the cache holds two such vectors.
inline bool adds_in_place(int64_t size) { return 8 * size <= tuning().cache; }

}  // namespace fastagg::cpu
