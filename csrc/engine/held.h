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
  store::Owner owner;  // the owner of the numbers, which nobody writes to any more
  float by = 1.0f;     // the update's factor

  int64_t nbytes() const;
};

// An encoded update on a device: its bytes (`sent`), and the vector that the bytes are decoded into (`made`).
struct DeviceUpdate : DeviceWire {
  store::Vector sent, made;
  DeviceUpdate(const Wire& from, store::Vector bytes);
};

// Copies the update to the device's memory if `there`, otherwise from the device's memory to the host's.
HeldUpdate moved(const HeldUpdate& held, store::Memory& memory, bool there);

// Takes over an answer's update in the form in which it came. `by` is the update's factor.
HeldUpdate taken(const Contribution& contribution, float by) noexcept;

int64_t nbytes_of(const std::vector<HeldUpdate>& all);
// Saves or loads a state's waiting updates. Loaded updates are in host memory.
void held_fields(Archive& archive, std::vector<HeldUpdate>& all, store::Memory& memory);

// Returns a bound on the magnitudes of `held`'s elements, multiplied by its factor. Throws std::invalid_argument if
// `held` is not a valid update of `size` elements.
double bound_of(const HeldUpdate& held, int64_t size);

}  // namespace fastagg::engine
