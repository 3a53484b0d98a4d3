// A server on a CUDA device. Its kernels are collected, and start in one call once the device can read all their data
// (on_cuda.cpp). inspect_on_cuda.cpp reads the updates.
#pragma once

#include <functional>

#include "../cuda/queue.h"
#include "device.h"

namespace fastagg::engine {

struct Card {
  int device;
  std::function<void*()> stream;  // returns the caller's current stream
  std::shared_ptr<cuda::Queue> queue;
  std::shared_ptr<store::Memory> memory;
  cuda::LaunchPlace where() const { return {device, stream()}; }
};

Place on_cuda(const Card& card);
std::unique_ptr<Inspector> inspector_on(const Card& card, const Settings& settings, const DirectionState& direction);

// Copies an update to one vector on the device: in its own type, or in fp32 if it has several pieces.
void keep(const Card& card, Update& update, store::Owner& owner);

constexpr size_t kApart = 16;  // the alignment of every vector, in bytes
constexpr size_t kFew = size_t{16} << 10;
constexpr int64_t kShort = int64_t{1} << 18;

}  // namespace fastagg::engine
