// What every launch shares: the device guard, the error check, the grid.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace fastagg::cuda {

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // clear it: the next call must not report this one's failure
  throw std::runtime_error(std::string("fastagg CUDA ") + what + ": " + cudaGetErrorName(status) + " (" +
                           cudaGetErrorString(status) + ")");
}

class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&before_), "current device");
    if (device != before_) check(cudaSetDevice(device), "select device");
  }
  ~DeviceGuard() { (void)cudaSetDevice(before_); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
};

constexpr int kThreads = 256;

// Enough blocks to fill every multiprocessor several times; the kernels stride over the rest.
inline unsigned grid(int64_t items, int device) {
  int processors = 1;
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "multiprocessor count");
  const int64_t wanted = (items + kThreads - 1) / kThreads;
  const int64_t most = static_cast<int64_t>(processors) * 16;
  return static_cast<unsigned>(wanted < most ? (wanted > 0 ? wanted : 1) : most);
}

}  // namespace fastagg::cuda
