// Takes steps in which each tensor of the update is turned towards the optimizer's momentum. A first kernel computes
// sums over parts of the tensors. From these sums the host computes the turns. A second kernel takes the step.
#include "advance.cuh"
#include "norms.cuh"

namespace fastagg::cuda {
namespace {

// Computes the sums of parts (UpdateParts). Eight threads process a part, as they process a strand in norms.cuh.
__global__ void __launch_bounds__(kThreads)
    parts_kernel(const __grid_constant__ Source source, const __grid_constant__ UpdateParts parts) {
  constexpr int kAtOnce = kWarp / static_cast<int>(kQuads);
  const int quad = lane() % static_cast<int>(kQuads);
  for (int64_t first = warp_of_grid() * kAtOnce; first < parts.count; first += warps_of_grid() * kAtOnce) {
    const int64_t part = first + lane() / kQuads;
    Lanes lanes{};
    if (part < parts.count) {
      const int64_t begin = parts.begins[part], end = parts.begins[part + 1];
      Cursor reader(source, begin);
#pragma unroll 1
      for (int64_t at = begin + quad * kFour; at < end; at += kLanes) {
        const Quad input = reader.read<false>(at, end - at), m = load<false>(parts.m + at, end - at);
#pragma unroll
        for (int e = 0; e < kFour; ++e) {
          const double u = at + e < end ? static_cast<double>(input.v[e]) : 0.0, v = static_cast<double>(m.v[e]);
          lanes.of[0][e] = __fma_rn(u, u, lanes.of[0][e]);
          lanes.of[1][e] = __fma_rn(v, v, lanes.of[1][e]);
          lanes.of[2][e] = __fma_rn(v, u, lanes.of[2][e]);
        }
      }
    }
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      const double sum = fold(fold_quad(lanes.of[s][0], lanes.of[s][1], lanes.of[s][2], lanes.of[s][3]));
      if (quad == 0 && part < parts.count) parts.sums[part * kSums + s] = sum;
    }
  }
}

// Returns the number of the tensor that contains element `at`.
__device__ __forceinline__ int64_t tensor_of(const Turns& turns, int64_t at) {
  int64_t low = 0;
  for (int64_t high = turns.count - 1; low < high;) {
    const int64_t middle = (low + high) / 2;
    if (turns.of[middle].end > at)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

__global__ void __launch_bounds__(kThreads, 2)
    turned_kernel(const __grid_constant__ Source source, bool aligned, float gain, const __grid_constant__ Turns turns,
                  const __grid_constant__ Optimizer optimizer) {
  for_each_scale_block<Cursor>(
      source, aligned, [](int64_t) {},
      [&](bool whole, Cursor& reader, int64_t begin, int) {
        const int64_t size = source.size;
        PlainMoments held{};
        Halves x{}, d{};
        loading(whole, [&](auto w) {
          constexpr bool kWhole = decltype(w)::value;
          load_block<kWhole>(held, optimizer.moments, begin, size);
          x = load_halves<kWhole>(optimizer.x, begin, size);
          d = read_halves<kWhole>(reader, begin, size);
        });
        each_half(begin, size, [&](int h, int64_t at, int64_t) {
          int64_t tensor = tensor_of(turns, at);
#pragma unroll
          for (int e = 0; e < kFour; ++e) {
            while (turns.of[tensor].end <= at + e && tensor + 1 < turns.count) ++tensor;
            const Turn turn = turns.of[tensor];
            float& to = d.half[h].v[e];
            const float by = gain * turn.weight;
            to = turn.along == 0.0f ? by * to : turned_of(to, by, held.half[h].m.v[e], turn.along);
          }
        });
        advance(optimizer, held, whole, begin, size, d, x);
      });
}

}  // namespace

void sum_parts(const Update& update, const UpdateParts& parts, const LaunchPlace& where) {
  launch("sums of tensors", where, warps((parts.count + 3) / 4, where.device), parts_kernel, source_of(update), parts);
}

void turned_step(const Update& update, double gain, const Turns& turns, const Optimizer& optimizer,
                 const LaunchPlace& where) {
  const bool aligned = all_aligned(optimizer.x, optimizer.x_out) && moments_aligned(optimizer.moments);
  launch("a step of turned tensors", where, warps(blocks_of(update.size), where.device), turned_kernel,
         source_of(update), aligned, static_cast<float>(gain), turns, optimizer);
}

}  // namespace fastagg::cuda
