// Code that all launches share: the device guard, the error check and the grid.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <string>
#include <utility>

#include "cuda.h"

namespace fastagg::cuda {

// Returns the CUDA runtime's message for `status`. For some errors the text also says what to do.
std::string words_for(cudaError_t status);

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // clears the error, so that the next call does not report it again
  throw Error(std::string("CUDA, ") + what + ": " + words_for(status));
}

// Makes a device current while the object lives. Calls that use memory, streams, events or kernels may create a context
// on the current device, so these calls need a guard. Queries of devices need none. `launch`, rows.cu and queue.cu make
// guards.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&before_), "current device");
    changed_ = device != before_;
    if (changed_) check(cudaSetDevice(device), "select device");
  }
  // The guard selects the former device again only if the guard has changed the device, because selecting a device
  // creates a context on that device.
  ~DeviceGuard() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kAll = 0xFFFFFFFFu;

// Returns how many blocks of threads to launch: `wanted`, but at least 1, and at most `each` per multiprocessor.
// Kernels loop over the remaining work.
inline unsigned grid(int64_t wanted, int device, int64_t each = 16) {
  int processors = 1;
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "multiprocessor count");
  return static_cast<unsigned>(std::clamp<int64_t>(wanted, 1, processors * each));
}

// Returns how many blocks of threads to launch for one warp per item.
inline unsigned warps(int64_t items, int device) { return grid((items + kWarps - 1) / kWarps, device); }

struct LaunchShape {
  LaunchShape(unsigned blocks_, unsigned threads_ = kThreads) : blocks(blocks_), threads(threads_) {}
  unsigned blocks, threads;
};

// Launches kernel(arguments...) on `where`'s device and stream, or only loads the kernel if where.loads is true. A
// failed launch throws an Error that contains `what`.
template <typename... Expected, typename... Arguments>
void launch(const char* what, const LaunchPlace& where, LaunchShape shape, void (*kernel)(Expected...),
            Arguments&&... arguments) {
  static_assert((((sizeof(Expected) + 7) / 8 * 8) + ...) <= 4096, "before CUDA 12.1 a kernel takes no more");
  const DeviceGuard guard(where.device);
  if (where.loads) {
    cudaFuncAttributes attributes;
    return check(cudaFuncGetAttributes(&attributes, kernel), what);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.blocks);
  config.blockDim = dim3(shape.threads);
  config.stream = static_cast<cudaStream_t>(where.stream);
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), what);
}

}  // namespace fastagg::cuda
