// How updates are read: by the processor, which copies them, or by a device, which is asked for their norms.
// A server asks once which of the two it has.
#pragma once

#include <cmath>
#include <memory>

#include "answer.h"
#include "direction.h"

namespace fastagg::engine {

struct PendingAnswer;
struct Settings;

class Inspector {
 public:
  virtual ~Inspector() = default;
  // An answer's numbers in the host's memory, for a log.
  virtual const Update& numbers(const Answer& answer) const = 0;
  // Refuses what can be known to be unfit before anything is done for it.
  virtual void look_at(const Answer&) const {}
  // Reads the update, once. If the record has room for its numbers they are there then. `prepared`: the extension will
  // read it, too.
  virtual void inspect(PendingAnswer& pending, bool prepared) const = 0;
};

// The processor's.
std::unique_ptr<Inspector> inspector_here(const DirectionState& direction);

// Refuses what is not finite.
inline double norm_of(double squares) {
  if (!std::isfinite(squares)) throw Refusal(Why::kNotFinite, "update: NaN or infinity");
  return std::sqrt(squares);
}

}  // namespace fastagg::engine
