// What is here.
#include "launch.cuh"

namespace fastagg::cuda {

int runtime_version() { return CUDART_VERSION; }

int device_count() { return answer().devices; }

Answer answer() {
  Answer found;
  (void)cudaDriverGetVersion(&found.driver);
  const cudaError_t status = cudaGetDeviceCount(&found.devices);
  if (status == cudaSuccess) return found;
  (void)cudaGetLastError();  // clear it: the next call must not report this one's failure
  found.devices = 0;
  found.error = cudaGetErrorName(status);
  found.words = cudaGetErrorString(status);
  return found;
}

void compute_capability(int device, int* major, int* minor) {
  check(cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
  check(cudaDeviceGetAttribute(minor, cudaDevAttrComputeCapabilityMinor, device), "compute capability");
}

}  // namespace fastagg::cuda
