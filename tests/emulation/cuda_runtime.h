// Runs CUDA code on a CPU, for tests. It has just enough of the language and the runtime for the files in csrc/cuda to
// compile as C++ and run. Every thread is a fiber that stops at barriers and shuffles. It is slow, and it is not in the
// package. It shows on a machine without a GPU that a kernel computes the same as the CPU code, and sanitizers can
// watch it.
//
// Blocks of threads run in a random order. Their shared memory holds NaN at first. The process ends at a shuffle whose
// mask is not the whole warp, or that some threads of the warp do not reach. It also ends at a barrier that some
// threads do not reach.
//
// With FASTAGG_RACES, blocks run at the same time, each with its own shared memory. ThreadSanitizer is told what orders
// one thread's memory accesses with another's (race_detector.h).
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#if defined(FASTAGG_RACES)
#define FASTAGG_PER_BLOCK thread_local
#define __shared__ static thread_local
#else
#define FASTAGG_PER_BLOCK
#define __shared__ static __attribute__((section("fastagg_shared")))
#endif
#define CUDART_VERSION 13000

using std::isfinite;
using std::max;

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

extern FASTAGG_PER_BLOCK dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {
// The source line of a barrier or a fence.
struct Place {
  const char* file;
  int line;
};
// Every lane of the warp publishes `bytes` bytes, and then reads those of lane `from`.
void exchange(unsigned mask, void* value, size_t bytes, int from);
int lane();
void run(unsigned blocks, unsigned threads, const std::function<void()>& kernel);
// A kernel's argument, as a launch passes it.
struct Argument {
  const void* value;
  size_t size, alignment;
};
// Lets the library that FASTAGG_SIMULATOR names (gpgpusim.cpp) execute a launch. Returns false if none is named.
bool simulate(const void* kernel, unsigned blocks, unsigned threads, const Argument* arguments, size_t count);
void sync_block(Place place);
void sync_warp(Place place);
void fence(Place place);
unsigned add(unsigned* address, unsigned value);

template <typename T>
T from_lane(unsigned mask, T value, int from) {
  exchange(mask, &value, sizeof value, from >= 0 && from < 32 ? from : lane());
  return value;
}
}  // namespace emulation

#define __syncthreads() emulation::sync_block({__FILE__, __LINE__})
#define __syncwarp() emulation::sync_warp({__FILE__, __LINE__})
#define __threadfence() emulation::fence({__FILE__, __LINE__})

template <typename T>
T __ldcg(const T* address) {
  return *address;
}
template <typename T>
void __stwb(T* address, T value) {
  *address = value;
}
inline unsigned atomicAdd(unsigned* address, unsigned value) { return emulation::add(address, value); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }

template <typename T>
T __shfl_down_sync(unsigned mask, T value, int delta) {
  return emulation::from_lane(mask, value, emulation::lane() + delta);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return emulation::from_lane(mask, value, emulation::lane() ^ bits);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int from) {
  return emulation::from_lane(mask, value, from);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  for (int half = 16; half > 0; half /= 2) value = max(value, __shfl_xor_sync(mask, value, half));
  return value;
}
inline unsigned __ballot_sync(unsigned mask, bool holds) {
  unsigned found = holds ? 1u << emulation::lane() : 0u;
  for (int half = 16; half > 0; half /= 2) found |= __shfl_xor_sync(mask, found, half);
  return found;
}

enum cudaError_t {
  cudaSuccess,
  cudaErrorNoKernelImageForDevice,
  cudaErrorUnsupportedPtxVersion,
  cudaErrorInsufficientDriver,
  cudaErrorNoDevice,
  cudaErrorSystemDriverMismatch,
  cudaErrorInitializationError,
  cudaErrorNotReady,
  cudaErrorLaunchFailure
};
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor
};
enum cudaMemcpyKind { cudaMemcpyDefault };
enum { cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };
enum { cudaEventDisableTiming = 2 };

namespace emulation {  // streams.cpp
struct Stream;
struct Event;
// What the program has asked of CUDA so far, for tests.
struct Counts {
  std::atomic<int64_t> launches{0}, copies{0}, memsets{0}, records{0}, orders{0}, waits{0}, loads{0};
};
extern Counts counts;
// The stream that stands in for torch's current one, of this thread; null: the one whose work is done at once.
extern thread_local Stream* current;
// For tests: launches do nothing (the host's time alone), or the launch after so many more fails; negative: none.
extern std::atomic<bool> empty;
extern std::atomic<int64_t> fails_after;
cudaError_t launch(Stream* stream, const void* kernel, std::function<void()> run);
cudaError_t load(const void* kernel);  // counts it, unless it was loaded before
cudaError_t query(Event* event);
cudaError_t settle(Stream* stream);
cudaError_t make(Event** event);
cudaError_t end(Event* event);
cudaError_t record(Event* event, Stream* stream);
cudaError_t wait(Stream* stream, Event* event);
cudaError_t wait(Event* event);
cudaError_t copy(void* to, const void* from, size_t bytes, Stream* stream);
cudaError_t set(void* to, int value, size_t bytes, Stream* stream);
// The current device, of this thread: at first the second of two, for which nobody asks. Whatever makes CUDA use a
// device, and would make a context there, ends the process if it is not the first.
extern thread_local int device;
void check_device();
}  // namespace emulation

using cudaStream_t = emulation::Stream*;
using cudaEvent_t = emulation::Event*;
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  cudaStream_t stream;
};
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorName(cudaError_t) { return "an emulated error"; }
inline const char* cudaGetErrorString(cudaError_t) { return "an emulated error"; }
inline cudaError_t cudaGetDevice(int* device) { return *device = emulation::device, cudaSuccess; }
inline cudaError_t cudaSetDevice(int device) { return emulation::device = device, cudaSuccess; }
inline cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 2, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int) {
  *value = what == cudaDevAttrMultiProcessorCount ? 1 : 9;
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return emulation::check_device(), emulation::set(to, value, bytes, stream);
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return emulation::check_device(), emulation::settle(stream);
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return emulation::check_device(), emulation::wait(stream, event);
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return emulation::check_device(), emulation::make(event);
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return emulation::check_device(), emulation::end(event); }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return emulation::check_device(), emulation::record(event, stream);
}
inline cudaError_t cudaEventQuery(cudaEvent_t event) { return emulation::check_device(), emulation::query(event); }
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) { return emulation::check_device(), emulation::wait(event); }
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return emulation::check_device(), emulation::copy(to, from, bytes, stream);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return emulation::check_device(), emulation::copy(to, from, bytes, nullptr);
}
inline cudaError_t cudaHostAlloc(void** made, size_t bytes, unsigned) {
  emulation::check_device();
  return *made = aligned_alloc(64, (bytes + 63) / 64 * 64), cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* memory) {
  emulation::check_device();
  return free(memory), cudaSuccess;
}
struct cudaFuncAttributes {};
template <typename... Expected>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, void (*kernel)(Expected...)) {
  return emulation::check_device(), emulation::load(reinterpret_cast<const void*>(kernel));
}
template <typename... Expected, typename... Given>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Expected...), Given&&... arguments) {
  const auto taken = std::make_shared<std::tuple<std::decay_t<Expected>...> >(std::forward<Given>(arguments)...);
  const void* const which = reinterpret_cast<const void*>(kernel);
  return emulation::check_device(),
         emulation::launch(config->stream, which, [=, blocks = config->gridDim.x, threads = config->blockDim.x] {
           std::apply(
               [&](auto&... values) {
                 const emulation::Argument arguments[] = {{&values, sizeof values, alignof(std::decay_t<Expected>)}...};
                 if (!emulation::simulate(which, blocks, threads, arguments, sizeof...(values)))
                   emulation::run(blocks, threads, [&] { kernel(values...); });
               },
               *taken);
         });
}
