// A device that a server's kernels run on. A server on the processor has none.
//
// All that an arrival asks for comes between `begin` and `end`, also what the host language asks for itself: it is done
// when all before it is done. Kernels are written down until `launch`.
#pragma once

#include <memory>

#include "../runner.h"
#include "../store/vector.h"

namespace fastagg::engine {

class DirectionState;
class Inspector;
struct Settings;

class Device {
 public:
  virtual ~Device() = default;
  virtual void begin() = 0;
  virtual void end() noexcept = 0;  // what was not launched is dropped
  // Makes the caller's stream wait until the current version is complete.
  virtual void follow() = 0;
  virtual void settle() noexcept = 0;  // waits for all
  // Keeps memory until the arrival's work is done.
  virtual void hold(const store::Owner& owner) = 0;
  // Gets ready what kernels need, and starts all of them. If the first one does not start, nothing has been done.
  virtual void launch() = 0;
  // Gets the kernels of an optimizer and a direction ready, so that the first arrival need not.
  virtual void load(const Optimizer& optimizer, const DirectionState& direction) = 0;
  virtual std::unique_ptr<Inspector> inspector(const Settings& settings, const DirectionState& direction) = 0;
};

// The memory of a server's vectors, and the runner of its kernels.
struct Place {
  std::shared_ptr<store::Memory> memory;
  std::shared_ptr<Runner> runner;
  std::shared_ptr<Device> device;  // null: the processor
};

// A scope: work that a device gets within it comes after all earlier work, and its end is marked.
class InOrder {
 public:
  explicit InOrder(const Place& place) : device_(place.device.get()) {
    if (device_ != nullptr) device_->begin();
  }
  InOrder(const InOrder&) = delete;
  InOrder& operator=(const InOrder&) = delete;
  ~InOrder() {
    if (device_ != nullptr) device_->end();
  }

 private:
  Device* const device_;
};

}  // namespace fastagg::engine
