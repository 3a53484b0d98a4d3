// The queue of one server's work on its device. Work runs in the order of arrivals, whatever streams the callers use.
// The queue also keeps callers' tensors and pinned memory alive until the device has used them.
//
// An arrival's work begins after all earlier work of the server has ended, even if that work was on another stream.
#pragma once

#include <cstddef>
#include <memory>

#include "../store/vector.h"
#include "cuda.h"

namespace fastagg::cuda {

class Queue {
 public:
  virtual ~Queue() = default;  // an implementation's destructor waits for all launched work

  virtual void settle() noexcept = 0;  // waits for all launched work

  // Between begin() and end(), all launches must be on `stream`. A pair of calls inside another pair is ignored.
  virtual void begin(void* stream) = 0;
  virtual void end() noexcept = 0;
  // Makes later work on `stream` wait for the server's work so far. The server's work does not wait for that stream.
  virtual void follow(void* stream) = 0;

  // hold() keeps an owner alive until the device has finished the work between begin() and end(). pinned() returns
  // `bytes` bytes of host memory that the device can read. The memory is valid until the device has finished this work.
  virtual void hold(store::Owner owner) = 0;
  virtual char* pinned(size_t bytes) = 0;
  virtual void wait() = 0;  // waits for all launched work, also that of the current arrival
};

std::shared_ptr<Queue> queue_on(int device);

}  // namespace fastagg::cuda
