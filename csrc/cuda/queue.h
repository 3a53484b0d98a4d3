// The order of one server's work on its device, whatever streams its callers use. The queue also keeps memory until the
// device has used it: callers' tensors, and pinned memory that kernels read in place.
//
// An arrival's work begins after all earlier work has ended, whatever stream the earlier work was on.
#pragma once

#include <cstddef>
#include <memory>

#include "../store/vector.h"
#include "cuda.h"

namespace fastagg::cuda {

class Queue {
 public:
  virtual ~Queue() = default;  // waits for all launched work

  virtual void settle() noexcept = 0;  // waits for all launched work

  // From begin() to end(), all launches are on `stream`. A nested pair of calls has no effect.
  virtual void begin(void* stream) = 0;
  virtual void end() noexcept = 0;
  // Makes later work on another stream wait for all work so far. The server's own stream does not wait for that work.
  virtual void follow(void* stream) = 0;

  // hold() keeps an owner alive until the device has done the work since `begin`. pinned() returns host memory that the
  // device reads in place and that is valid for the same time.
  virtual void hold(store::Owner owner) = 0;
  virtual char* pinned(size_t bytes) = 0;
  virtual void wait() = 0;  // waits for all work so far
};

std::shared_ptr<Queue> queue_on(int device);

}  // namespace fastagg::cuda
