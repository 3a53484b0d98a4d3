// Settings that depend on the processor. They change how loops run, never their results.
//
// When the extension is loaded, it chooses one row of the table by vendor and family. Python may set another one
// (FASTAGG_TUNE).
#pragma once

#include <cstdint>

namespace fastagg::cpu {

struct Tuning {
  const char* name;
  int64_t prefetch;     // how many elements ahead memory is prefetched; 0: not at all
  int64_t stream_from;  // from this many elements on, outputs that are not inputs bypass the caches; 0: never
  int64_t width;        // bits of a vector in loops over more than `wide_below` bytes, if there is a choice
  int64_t wide_below;   // up to so many bytes loops use the widest vectors: the size of a core's own cache
  int64_t spin;         // microseconds that idle workers stay awake after a call
  int64_t group;        // the elements that a thread takes at a time, at most 65,536
  int64_t places;       // in how many places of a group read-only passes read in turn: a power of two, at most 32
};

// This processor's family and model, and its vendor: "GenuineIntel", "AuthenticAMD", "ARM", or "" if it is unknown.
struct Processor {
  char vendor[16];
  int family;
  int model;
};
const Processor& processor();

// default_tuning() is the table's row for this processor; tuning() is the one in use.
const Tuning& default_tuning();
const Tuning& tuning();
void set_tuning(const Tuning& tuning);  // values must be in range; applies from the next call on

}  // namespace fastagg::cpu
