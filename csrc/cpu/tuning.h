// Settings that depend on the processor. They change how loops run, never their results.
//
// When the extension is loaded, it chooses one row of the table by vendor and family. Python may set another one
// (FASTAGG_TUNE, `fastagg tune`).
#pragma once

#include <cstdint>

namespace fastagg::cpu {

struct Tuning {
  const char* name;
  int64_t prefetch;     // elements ahead of the arithmetic that memory is asked for; 0: never
  int64_t stream_from;  // elements from which outputs that are not inputs go past the caches; 0: never
  int64_t width;        // bits of a vector in loops over more than `wide_below` bytes, where there is a choice
  int64_t wide_below;   // bytes up to which such loops take the widest vectors: what a core's own cache holds
  int64_t spin;         // microseconds that idle workers stay awake after a call
  int64_t group;        // elements that a thread takes at a time, at most 65,536
  int64_t places;       // places of a group that passes which only read visit in turn: a power of two, at most 32
};

// This processor's vendor ("GenuineIntel", "AuthenticAMD", "ARM", "" where it does not say), family and model.
struct Processor {
  char vendor[16];
  int family;
  int model;
};
const Processor& processor();

// The table's row for this processor, and the one in use.
const Tuning& default_tuning();
const Tuning& tuning();
void set_tuning(const Tuning& tuning);  // in range; from the next call on

}  // namespace fastagg::cpu
