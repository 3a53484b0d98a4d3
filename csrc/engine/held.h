// An update that is stored until its round ends, or until a buffer adds the update to a sum. The update keeps the form
// in which it came: its own type, or encoded.
#pragma once

#include <vector>

#include "../plan.h"
#include "../store/vector.h"

namespace fastagg::engine {

class Archive;
struct Contribution;

struct HeldUpdate {
  Update update;
  store::Owner owner;  // the owner of the update's memory, to which nobody writes any more
  float by = 1.0f;     // the number by which the update is multiplied in its round

  int64_t nbytes() const;
};

// An encoded update on a device: its bytes (`sent`), and the vector of the decoded elements (`made`; empty: none).
struct DeviceUpdate : DeviceWire {
  store::Vector sent, made;
  DeviceUpdate(const Wire& from, store::Vector bytes);
};

// Returns a copy of the update. `there`: true: in `memory`, which is a device's; false: in host memory.
HeldUpdate moved(const HeldUpdate& held, store::Memory& memory, bool there);

// Moves the update out of the contribution's answer, in the form in which it came. `by` is the update's factor.
HeldUpdate taken(const Contribution& contribution, float by) noexcept;

int64_t nbytes_of(const std::vector<HeldUpdate>& all);
// Saves or loads the stored updates of a direction. Loaded updates are in host memory.
void held_fields(Archive& archive, std::vector<HeldUpdate>& all, store::Memory& memory);

// Returns a bound on the magnitudes of `held`'s elements, multiplied by its factor. Throws std::invalid_argument if
// `held` is not a valid update of `size` elements.
double bound_of(const HeldUpdate& held, int64_t size);

}  // namespace fastagg::engine
