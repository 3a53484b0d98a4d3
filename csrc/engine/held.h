// An update that waits for its round as it came: in its own type, or encoded.
#pragma once

#include <vector>

#include "../plan.h"
#include "../store/vector.h"

namespace fastagg::engine {

class Archive;
struct Contribution;

struct HeldUpdate {
  Update update;
  store::Owner owner;  // of its numbers; nobody writes to them any more
  float by = 1.0f;     // what it is multiplied by

  int64_t nbytes() const;
};

// An encoded update on a device: its bytes, and where they are decoded, the numbers that it stands for.
struct DeviceUpdate : DeviceWire {
  store::Vector sent, made;
  DeviceUpdate(const Wire& from, store::Vector bytes);
};

// A copy of the update: in a device's memory, or from there in the host's.
HeldUpdate moved(const HeldUpdate& held, store::Memory& memory, bool there);

// Takes an answer's update over as it came. `by`: what it is multiplied by.
HeldUpdate taken(const Contribution& contribution, float by) noexcept;

int64_t nbytes_of(const std::vector<HeldUpdate>& all);
// Saves or loads those of a state. What is loaded is in the host's memory.
void held_fields(Archive& archive, std::vector<HeldUpdate>& all, store::Memory& memory);

// Bounds the magnitude of its elements, after they are multiplied. Throws std::invalid_argument for what is no update
// of `size` elements.
double bound_of(const HeldUpdate& held, int64_t size);

}  // namespace fastagg::engine
