// Prints what a user reads about a driver: csrc/cuda/device.cu with the real CUDA runtime. .ci/cuda.sh runs it.
#include <cstdio>

#include "../../csrc/cuda/cuda.h"

int main() {
  const fastagg::cuda::Driver found = fastagg::cuda::driver();
  std::printf("%d devices, driver %d: %s\n", found.devices, found.version, found.words.c_str());
  try {
    int major = 0, minor = 0;
    fastagg::cuda::compute_capability(0, &major, &minor);
  } catch (const fastagg::cuda::Error& error) {
    std::printf("%s\n", error.what());
  }
}
