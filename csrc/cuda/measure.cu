// Measures an update's norm, and how far the model has moved since the client's version (norms.cuh).
#include "norms.cuh"

namespace fastagg::cuda {

int64_t measure_scratch(int64_t size) {
  const int64_t groups = groups_of(size);
  return sums_of(groups) + (counters_of(groups) + 1) / 2;
}

int64_t measure_counters(int64_t size) { return sums_of(groups_of(size)); }

void measure(const Update& update, const DistanceBase& against, double* memory, double* out, const LaunchPlace& where) {
  const int64_t groups = groups_of(update.size);
  const NormScratch scratch{memory, memory + groups * kSums * kGroupStrands,
                            reinterpret_cast<unsigned*>(memory + sums_of(groups))};
  const LaunchShape shape(grid(groups * kParts, where.device, 32), kPartThreads);
  read_with(update, [&](auto with, const auto& source) {
    const auto run = [&](auto kernel) {
      launch("norms", where, shape, kernel, source, all_aligned(against.x, against.base), against.x, against.base,
             scratch, out);
    };
    using Reader = typename decltype(with)::Reader;
    if (against.x == nullptr)
      run(norms_kernel<false, false, Reader>);
    else if (against.inner)
      run(norms_kernel<true, true, Reader>);
    else
      run(norms_kernel<true, false, Reader>);
  });
}

}  // namespace fastagg::cuda
