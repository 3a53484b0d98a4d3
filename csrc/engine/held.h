// An update that waits for its round in the form in which it came: in its own type, or encoded.
#pragma once

#include <vector>

#include "../plan.h"
#include "../store/vector.h"

namespace fastagg::engine {

class Archive;
struct Contribution;

struct HeldUpdate {
  Update update;
  store::Owner owner;  // of its numbers, which nobody writes to any more
  float by = 1.0f;     // its factor

  int64_t nbytes() const;
};

// An encoded update on a device: its bytes, and the vector that they are decoded into.
struct DeviceUpdate : DeviceWire {
  store::Vector sent, made;
  DeviceUpdate(const Wire& from, store::Vector bytes);
};

// Copies the update to the device's memory, or from there to the host's.
HeldUpdate moved(const HeldUpdate& held, store::Memory& memory, bool there);

// Takes over an answer's update in the form in which it came. `by` is its factor.
HeldUpdate taken(const Contribution& contribution, float by) noexcept;

int64_t nbytes_of(const std::vector<HeldUpdate>& all);
// Saves or loads a state's waiting updates. Loaded ones are in host memory.
void held_fields(Archive& archive, std::vector<HeldUpdate>& all, store::Memory& memory);

// A bound on the magnitude of its elements, times the factor. Throws std::invalid_argument if it is not a valid update
// of `size` elements.
double bound_of(const HeldUpdate& held, int64_t size);

}  // namespace fastagg::engine
