// Reads updates, and computes their norms. One kind of inspector is for the CPU, and also copies updates. The other
// kind is for a device.
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
  // Returns an answer's numbers in host memory, for a log.
  virtual const Update& numbers(const Answer& answer) const = 0;
  // Rejects an answer early if it is certainly invalid.
  virtual void look_at(const Answer&) const {}
  // Reads the update once. If the record has room for the update's numbers, copies them there. `prepared`: whether the
  // extension will read the update, too.
  virtual void inspect(PendingAnswer& pending, bool prepared) const = 0;
};

// The inspector on the CPU.
std::unique_ptr<Inspector> inspector_here(const DirectionState& direction);

// Returns the norm for a sum of squares. Refuses an update that is not finite.
inline double norm_of(double squares) {
  if (!std::isfinite(squares)) throw Refusal(Why::kNotFinite, "update: NaN or infinity");
  return std::sqrt(squares);
}

}  // namespace fastagg::engine
