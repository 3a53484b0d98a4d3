// The order of what one server asks of its device, whatever streams its callers use; and what must stay until the
// device has done it: callers' tensors, and pinned memory that kernels read in place.
//
// An arrival's work begins when all work before it has ended, on whichever stream that was.
#pragma once

#include <cstddef>
#include <memory>

#include "../store/vector.h"
#include "cuda.h"

namespace fastagg::cuda {

class Queue {
 public:
  virtual ~Queue() = default;  // waits for all that was launched

  virtual void settle() noexcept = 0;  // waits for it

  // From here to `end` all launches are on this stream. A pair within a pair does nothing.
  virtual void begin(void* stream) = 0;
  virtual void end() noexcept = 0;
  // Lets work on a stream of somebody else's wait for all before. Nothing comes in between on ours.
  virtual void follow(void* stream) = 0;

  // Of what was begun; until the device has done it. `pinned`: memory of the host that the device reads in place.
  virtual void hold(store::Owner owner) = 0;
  virtual char* pinned(size_t bytes) = 0;
  virtual void wait() = 0;  // for what was launched since `begin`, and all before
};

std::shared_ptr<Queue> queue_on(int device);

}  // namespace fastagg::cuda
