// The interface of the device on which a server's kernels run. A server on the CPU has no Device.
//
// All work for an answer, including the host language's work, is issued between `begin` and `end`, and runs after all
// earlier work. The runner collects kernels, and `launch` starts them. Only Runner::pair_sums runs when it is called.
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
  virtual void end() noexcept = 0;                   // drops kernels that were not launched
  virtual void follow() = 0;                         // makes later work on the caller's stream wait for all work so far
  virtual void settle() noexcept = 0;                // waits for all work
  virtual void hold(const store::Owner& owner) = 0;  // keeps memory alive until the work since `begin` is done
  // Makes the kernels' data readable for the device, and starts all collected kernels. If the first kernel does not
  // start, nothing has changed. If a later kernel does not start, the server's state is lost.
  virtual void launch() = 0;
  // Loads the code of all kernels that this optimizer and direction use, so that the first answer is not slow.
  virtual void load(const Optimizer& optimizer, const DirectionState& direction) = 0;
  virtual std::unique_ptr<Inspector> inspector(const Settings& settings, const DirectionState& direction) = 0;
};

// Where a server runs: the memory of its vectors, and the runner of its kernels.
struct Place {
  std::shared_ptr<store::Memory> memory;
  std::shared_ptr<Runner> runner;
  std::shared_ptr<Device> device;  // null: the server is on the CPU
};

// A scope that calls Device::begin and Device::end. On the CPU the scope does nothing.
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
