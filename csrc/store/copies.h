// Copies between host memory and a device, beside its kernels (csrc/cuda/copies.cu). One stream of copies goes each
// way.
//
// Memory that copies and kernels use in turn has a mark: when it was last used. Whoever uses it next waits for that, on
// its own stream, so the host waits only where it asks to.
#pragma once

#include <cstddef>
#include <vector>

namespace fastagg::store {

class Copies {
 public:
  typedef void* Mark;  // belongs to the copies; never passed so far

  virtual ~Copies() = default;  // waits for all that the device was asked for
  virtual Mark mark() = 0;

  // Host memory that the device reads and writes by itself. False: it is copied by the host, and the caller waits.
  virtual bool pin(void* begin, size_t bytes) noexcept = 0;
  virtual void unpin(void* begin) noexcept = 0;

  // Each begins when both marks have passed, and marks both anew.
  virtual void up(void* device, Mark there, const void* host, Mark here, size_t bytes) = 0;
  virtual void down(void* host, Mark here, const void* device, Mark there, size_t bytes) = 0;
  // Kernels that are launched on the stream between the two calls: they begin when the marks have passed, and mark them
  // anew.
  virtual void before(void* stream, const std::vector<Mark>& marks) = 0;
  virtual void after(void* stream, const std::vector<Mark>& marks) = 0;
  // The host waits.
  virtual void wait(Mark mark) = 0;

  // These wait for all that the device was asked for, and are over when they return.
  virtual void put(void* device, const void* host, size_t bytes) = 0;
  virtual void get(void* host, const void* device, size_t bytes) = 0;
  virtual void settle() = 0;
};

}  // namespace fastagg::store
