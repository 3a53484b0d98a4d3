// Reports this machine's CUDA devices and driver, and explains errors of the CUDA runtime.
#include "launch.cuh"

namespace fastagg::cuda {
namespace {

int driver_version() {
  int version = 0;
  (void)cudaDriverGetVersion(&version);
  return version;
}

std::string dotted(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

std::string advice_for(cudaError_t status) {
  switch (status) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return "this build has no code for this card: build it with CMAKE_ARGS=-DFASTAGG_CUDA_ARCHITECTURES=<its compute "
             "capability>";
    case cudaErrorInsufficientDriver:
      if (driver_version() == 0) return "there is no NVIDIA driver here: install one";
      return "the driver supports CUDA " + dotted(driver_version()) + " and this build needs " +
             dotted(runtime_version()) + ": update the driver, or install fastagg where an older nvcc is found";
    case cudaErrorNoDevice:
      return "the driver sees no card: there is none, CUDA_VISIBLE_DEVICES hides it, or it is cut up (MIG) and no part "
             "is given to this process";
    case cudaErrorSystemDriverMismatch:
      return "the driver's library and its kernel module are of two versions: restart the machine";
    case cudaErrorInitializationError:
      return "a process that was forked after its parent used CUDA cannot use it: start it by spawning";
    default: return "";
  }
}

}  // namespace

std::string words_for(cudaError_t status) {
  const std::string advice = advice_for(status);
  return std::string(cudaGetErrorName(status)) + " (" + cudaGetErrorString(status) + ")" +
         (advice.empty() ? "" : "; " + advice);
}

int runtime_version() { return CUDART_VERSION; }

int device_count() { return driver().devices; }

Driver driver() {
  Driver driver;
  driver.version = driver_version();
  const cudaError_t status = cudaGetDeviceCount(&driver.devices);
  if (status == cudaSuccess) return driver;
  (void)cudaGetLastError();  // clears the error, so that the next call does not report it again
  driver.devices = 0;
  driver.words = words_for(status);
  return driver;
}

void compute_capability(int device, int* major, int* minor) {
  check(cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
  check(cudaDeviceGetAttribute(minor, cudaDevAttrComputeCapabilityMinor, device), "compute capability");
}

}  // namespace fastagg::cuda
