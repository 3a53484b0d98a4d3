// The device on which a server's kernels run. A server on the CPU has no Device.
//
// All work for an arrival, including the host language's work, is issued between `begin` and `end`, and runs after all
// earlier work. Kernels are only collected until `launch` starts them.
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
  virtual void end() noexcept = 0;  // drops kernels that were not launched
  virtual void follow() = 0;
  virtual void settle() noexcept = 0;  // waits for all work
  virtual void hold(const store::Owner& owner) = 0;
  // Prepares the data that the collected kernels need, and starts all of them. If the first kernel does not start,
  // nothing has changed.
  virtual void launch() = 0;
  // Loads the kernels of an optimizer and a direction in advance, so that the first arrival is not slow.
  virtual void load(const Optimizer& optimizer, const DirectionState& direction) = 0;
  virtual std::unique_ptr<Inspector> inspector(const Settings& settings, const DirectionState& direction) = 0;
};

// The memory of a server's vectors, and the runner of its kernels.
struct Place {
  std::shared_ptr<store::Memory> memory;
  std::shared_ptr<Runner> runner;
  std::shared_ptr<Device> device;  // null: the CPU
};

// A scope for work on a device: the work between Device::begin and Device::end. On the CPU the scope does nothing.
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
