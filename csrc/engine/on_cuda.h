// A server on a CUDA device: its kernels, which are collected and start in one call when all data that they need is
// where the device reads it (on_cuda.cpp), and how it reads updates (inspect_on_cuda.cpp).
#pragma once

#include <functional>

#include "../cuda/queue.h"
#include "device.h"

namespace fastagg::engine {

struct Card {
  int device;
  std::function<void*()> stream;  // the caller's current one
  std::shared_ptr<cuda::Queue> queue;
  std::shared_ptr<store::Memory> memory;
  cuda::LaunchPlace where() const { return {device, stream()}; }
};

Place on_cuda(const Card& card);
std::unique_ptr<Inspector> inspector_on(const Card& card, const Settings& settings, const DirectionState& direction);

// Copies an update to one vector of the device's: of its own type, or in fp32 if it comes in pieces.
void keep(const Card& card, Update& update, store::Owner& owner);

constexpr size_t kApart = 16;  // bytes: every vector begins at a multiple of this
// Bytes that kernels read in the host's memory, and for how many elements again and again. Copies of more, or for more,
// take less time.
constexpr size_t kFew = size_t{16} << 10;
constexpr int64_t kShort = int64_t{1} << 18;

}  // namespace fastagg::engine
