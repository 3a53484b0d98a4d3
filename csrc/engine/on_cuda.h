// The Device of a server on CUDA. on_cuda.cpp collects the kernels of an answer, and launches the kernels in one call
// when their data is ready. inspect_on_cuda.cpp reads the updates.
#pragma once

#include <functional>

#include "../cuda/queue.h"
#include "device.h"

namespace fastagg::engine {

struct Card {
  int device;
  std::function<void*()> stream;  // returns the caller's current CUDA stream
  std::shared_ptr<cuda::Queue> queue;
  std::shared_ptr<store::Memory> memory;
  cuda::LaunchPlace where() const { return {device, stream()}; }
};

Place on_cuda(const Card& card);
std::unique_ptr<Inspector> inspector_on(const Card& card, const Settings& settings, const DirectionState& direction);

// Replaces an update by a copy in one vector on the device, and `owner` by the copy's owner. The copy has the update's
// own type, or fp32 if the update has several pieces.
void keep(const Card& card, Update& update, store::Owner& owner);

constexpr size_t kApart = 16;                 // the alignment of packed arrays, and of rows that kernels read, in bytes
constexpr size_t kFew = size_t{16} << 10;     // the most bytes that kernels read directly from pinned host memory
constexpr int64_t kShort = int64_t{1} << 18;  // the most elements that such a kernel may process

}  // namespace fastagg::engine
