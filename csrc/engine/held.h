// An update that waits for its round as it came: in its own type, or encoded.
#pragma once

#include "../plan.h"
#include "../store/vector.h"

namespace fastagg::engine {

struct HeldUpdate {
  Update update;
  store::Owner owner;  // of its numbers; nobody writes to them any more
  float by = 1.0f;     // what it is multiplied by

  int64_t nbytes() const;
};

// An encoded update on a device: its bytes, and where they are decoded, the numbers that it stands for.
struct EncodedThere : WireThere {
  store::Vector sent, made;
  EncodedThere(const Wire& from, store::Vector bytes);
};

// The same in a device's memory, or from there in the host's again.
HeldUpdate moved(const HeldUpdate& one, store::Memory& memory, bool there);

// Bounds the magnitude of its elements, after they are multiplied. Throws std::invalid_argument for what is no update
// of `size` elements.
double bound_of(const HeldUpdate& one, int64_t size);

}  // namespace fastagg::engine
