// Kernels with errors that the emulation (tests/emulation) must notice: fastagg_planted mask | barrier | shuffle |
// shared | order. The first three end the process; the others return 0 if the error showed in the result. .ci/races.sh
// runs them.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "../../csrc/cuda/launch.cuh"

namespace {

using fastagg::cuda::kAll;

__global__ void half_a_mask(float* out) { *out = __shfl_down_sync(0xffffu, 1.0f, 1); }

__global__ void barrier_for_some(float* out) {
  if (threadIdx.x < 40) __syncthreads();
  *out = 1.0f;
}

__global__ void shuffle_for_some(float* out) {
  if (threadIdx.x != 5) *out = __shfl_xor_sync(kAll, 1.0f, 1);
}

__global__ void reads_before_it_writes(float* out) {
  __shared__ float kept;
  if (threadIdx.x == 0) {
    out[blockIdx.x] = kept;
    kept = 1.0f;
  }
}

__global__ void last_block_wins(float* out) { out[0] = static_cast<float>(blockIdx.x); }

void run(void (*kernel)(float*), float* out, unsigned blocks = 4) {
  fastagg::cuda::launch("planted", {0, nullptr}, blocks, kernel, out);
}

}  // namespace

int main(int count, char** given) {
  const char* wanted = count > 1 ? given[1] : "";
  float out[64] = {};
  const auto is = [&](const char* name) { return std::strcmp(wanted, name) == 0; };
  if (is("mask")) run(half_a_mask, out);
  if (is("barrier")) run(barrier_for_some, out);
  if (is("shuffle")) run(shuffle_for_some, out);
  if (is("shared")) {
    run(reads_before_it_writes, out);
    for (int block = 0; block < 4; ++block)
      if (!std::isnan(out[block])) return 1;
    return 0;
  }
  if (is("order")) {
    run(last_block_wins, out, 64);
    const float once = out[0];
    for (int again = 0; again < 8; ++again) {
      run(last_block_wins, out, 64);
      if (out[0] != once) return 0;
    }
  }
  return 1;
}
