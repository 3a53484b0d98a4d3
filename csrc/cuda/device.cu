// What is here.
#include "launch.cuh"

namespace fastagg::cuda {

int runtime_version() { return CUDART_VERSION; }

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return count;
}

void compute_capability(int device, int* major, int* minor) {
  check(cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
  check(cudaDeviceGetAttribute(minor, cudaDevAttrComputeCapabilityMinor, device), "compute capability");
}

}  // namespace fastagg::cuda
