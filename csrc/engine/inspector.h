// How updates are read and judged: by the processor, which copies them, or by a device, which is asked for a verdict.
// A server asks once which of the two it has.
#pragma once

#include <memory>

#include "answer.h"
#include "direction.h"

namespace fastagg::engine {

struct Given;
struct Settings;

class Inspector {
 public:
  explicit Inspector(bool processor) : here(processor) {}
  virtual ~Inspector() = default;
  // Kernels are done when their calls return. Then a step may be in place, a kernel may be the one that reads a
  // sender's memory, and a log may keep the row that an update becomes.
  const bool here;
  // An answer's numbers in the host's memory, for a log.
  virtual const Update& numbers(const Answer& answer) const = 0;
  // Refuses what can be known to be unfit before anything is done for it.
  virtual void look_at(const Answer&) const {}
  // Reads the update, once. If the record has room for its numbers they are there then. `prepared`: the extension will
  // read it, too.
  virtual void inspect(Given& given, bool prepared) const = 0;
};

std::unique_ptr<Inspector> inspector_of(const Settings& settings, const DirectionState& direction, Runner& runner);

}  // namespace fastagg::engine
