// The order of what one server asks of its device, whatever streams its callers use; and what must stay until the
// device has done it: callers' tensors, and pinned memory that kernels read in place.
//
// Nobody waits here: an arrival's work begins when all work before it has ended, on whichever stream that was.
#pragma once

#include <cstddef>
#include <memory>

#include "../store/vector.h"
#include "cuda.h"

namespace fastagg::cuda {

class Coming : public Judgement {
 public:
  virtual Verdict* place() = 0;  // pinned memory, for `judge`
};

class Queue {
 public:
  virtual ~Queue() = default;  // waits for all that was launched

  virtual void settle() noexcept = 0;  // waits for it

  // What is launched from here to `end` is on this stream. A pair within a pair does nothing.
  virtual void begin(void* stream) = 0;
  virtual void end() noexcept = 0;
  // Lets work on a stream of somebody else's wait for all before. Nothing comes in between on ours.
  virtual void follow(void* stream) = 0;

  // Of what was begun; until the device has done it. `pinned`: memory of the host that the device reads in place.
  virtual void hold(store::Owner owner) = 0;
  virtual char* pinned(size_t bytes) = 0;
  // It comes with what is launched up to `mark`, or with the whole arrival.
  virtual std::shared_ptr<Coming> coming() = 0;
  virtual void mark(Coming& coming) = 0;
};

std::shared_ptr<Queue> queue_on(int device);

}  // namespace fastagg::cuda
