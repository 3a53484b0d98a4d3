// The interface of inspectors, which read updates and compute their norms. The CPU's inspector also copies updates
// (inspector.cpp). A device's inspector copies updates to the device (inspect_on_cuda.cpp).
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
  // Returns the elements of an answer in host memory, for a log.
  virtual const Update& numbers(const Answer& answer) const = 0;
  // On the CPU, refuses an answer whose update is not finite. Changes nothing.
  virtual void look_at(const Answer&) const {}
  // Reads the update, and sets `pending.norm`. If the log record has room for the elements, copies the elements to the
  // record. `prepared`: whether the extension reads the update, too. On a device the extension then sets the norm.
  virtual void inspect(PendingAnswer& pending, bool prepared) const = 0;
};

// Makes the CPU's inspector.
std::unique_ptr<Inspector> inspector_here(const DirectionState& direction);

// Returns the norm that belongs to a sum of squares. Refuses an update that is not finite.
inline double norm_of(double squares) {
  if (!std::isfinite(squares)) throw Refusal(Why::kNotFinite, "update: NaN or infinity");
  return std::sqrt(squares);
}

}  // namespace fastagg::engine
