// The order of one server's work on its device, whatever streams its callers use. It also keeps memory until the device
// has used it: callers' tensors, and pinned memory that kernels read in place.
//
// An arrival's work begins after all earlier work has ended, on whatever stream that was.
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

  // All launches until `end` are on this stream. A nested pair has no effect.
  virtual void begin(void* stream) = 0;
  virtual void end() noexcept = 0;
  // Makes another stream's later work wait for all work so far. The server's own stream does not wait.
  virtual void follow(void* stream) = 0;

  // Keeps an owner alive until the device has done the work since `begin`. `pinned`: host memory for the same time,
  // which the device reads in place.
  virtual void hold(store::Owner owner) = 0;
  virtual char* pinned(size_t bytes) = 0;
  virtual void wait() = 0;  // for all work so far
};

std::shared_ptr<Queue> queue_on(int device);

}  // namespace fastagg::cuda
