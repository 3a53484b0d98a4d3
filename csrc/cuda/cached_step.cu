// Directions through rows, mean and calibrated: the client's row, the sum over clients and the model in one pass.
#include "optimizer.cuh"
#include "rows.cuh"
#include "source.cuh"

namespace fastagg::cuda {
namespace {

constexpr int kMostTerms = 256;

struct Terms {
  int count;
  Term term[kMostTerms];
};

// Direction's part that the kernel reads.
struct Along {
  DirectionKind kind;
  bool takes_update;  // false: terms alone
  double gain;
  Row read, write;
  RandomKey key;
  int64_t first_block;  // in the whole model, for the rounding
  float* sum;
  float entering, leaving, dither, sum_scale;
  const float* acc;
  float* out;  // of a calibrated direction without a step
  float weight, acc_scale;
};

template <bool Whole>
__device__ __forceinline__ void optimize_halves(const Optimizer& optimizer, int64_t begin, int64_t size,
                                                const Halves& d, const Halves& x) {
  visit_at(optimizer.kind, Optimizers{}, [&](auto one) {
    using Kind = decltype(one);
    Held held[2];
    each_half(begin, size, [&](int h, int64_t at, int64_t left) {
      held[h] = load_moments<Kind, Whole>(optimizer.moments, at, left);
    });
    each_half(begin, size, [&](int h, int64_t at, int64_t left) {
      optimize<Kind, Whole>(optimizer, at, left, d.half[h], x.half[h], held[h]);
    });
  });
}

// One scale block, the j-th of its block, by one warp.
template <typename Format, bool Whole, typename Reader>
__device__ __forceinline__ void cached_block(Reader& reader, const Dice& dice, int64_t size, int64_t begin, int j,
                                             const Along& c, const Terms& terms, const Optimizer& optimizer, float gain,
                                             bool keep) {
  const int64_t index = begin / kScaleBlock;
  const bool reads = c.read.data != nullptr, steps = optimizer.kind >= 0;
  // Everything is asked for before anything is computed: what is in flight is what fills the memory.
  Halves given{}, old{}, x{}, acc{}, sum{};
  if (steps) x = load_halves<Whole>(optimizer.x, begin, size);
  if (c.sum != nullptr) sum = load_halves<Whole>(c.sum, begin, size);
  if (c.acc != nullptr) acc = load_halves<Whole>(c.acc, begin, size);
  if (reads) old = decode<Format>(c.read, index);
  if (keep && c.takes_update) {
    each_half(begin, size,
              [&](int h, int64_t at, int64_t left) { given.half[h] = reader.template read<Whole>(at, left); });
    each([&](int h, int e) { given.half[h].v[e] *= gain; });
  } else if (reads) {
    given = old;  // a dropped update: the client's row stays what it was, zero where there was none
  }
  Halves entering = given;
  if (c.write.data != nullptr) {
    __syncwarp();  // the old row, which may be this one, has been read
    if (keep || !reads)
      entering = encode<Format>(c.write, index, given, dice, j);
    else if (c.write.data != c.read.data)
      copy_block<Format>(c.read, c.write, index);
    __syncwarp();  // terms may read it
  }
  const auto finish_sum = [&] {
    for (int t = 0; t < terms.count; ++t) {
      const Halves row = decode<Format>(terms.term[t].row, index);
      const float weight = terms.term[t].weight;
      each([&](int h, int e) { sum.half[h].v[e] = with_term(sum.half[h].v[e], row.half[h].v[e], weight); });
    }
    store_halves<Whole>(c.sum, begin, size, sum);
  };
  Halves d;
  if (c.kind == kMean) {
    const float dither = keep ? c.dither : 0.0f;  // a dropped update leaves the sum as it is, to the bit
    each([&](int h, int e) {
      float& s = sum.half[h].v[e];
      if (c.takes_update)
        s = exchanged<Scalar>(s, entering.half[h].v[e], c.entering, old.half[h].v[e], c.leaving, dither);
    });
    finish_sum();
    each([&](int h, int e) { d.half[h].v[e] = c.sum_scale * sum.half[h].v[e]; });
  } else {
    each([&](int h, int e) {
      float& to = d.half[h].v[e];
      to = calibrated_of(acc.half[h].v[e], given.half[h].v[e], old.half[h].v[e], c.weight);
      if (steps) to = mixed_of(to, c.acc_scale, sum.half[h].v[e], c.sum_scale);
    });
    if (!steps) store_halves<Whole>(c.out, begin, size, d);
    if (terms.count > 0) finish_sum();
  }
  if (steps) optimize_halves<Whole>(optimizer, begin, size, d, x);
}

template <typename Format, typename Reader>
__global__ void __launch_bounds__(kThreads, 2)
    cached_kernel(const __grid_constant__ Source source, bool aligned, Along c, const __grid_constant__ Terms terms,
                  Optimizer optimizer, const Verdict* verdict) {
  const bool keep = kept(verdict);
  const float gain = judged(c.gain, verdict);
  for (int64_t block = warp_of_grid(); block * kBlock < source.size; block += warps_of_grid()) {
    Reader reader(source, block * kBlock);
    Dice dice{};
    if (Format::kRandom && c.write.data != nullptr) dice = roll(c.key, c.first_block + block);
#pragma unroll 1
    for (int j = 0; j < kScaleBlocks; ++j) {
      const int64_t begin = block * kBlock + j * kScaleBlock;
      if (begin >= source.size) break;  // the same for the whole warp
      if (aligned && begin + kScaleBlock <= source.size)
        cached_block<Format, true>(reader, dice, source.size, begin, j, c, terms, optimizer, gain, keep);
      else
        cached_block<Format, false>(reader, dice, source.size, begin, j, c, terms, optimizer, gain, keep);
    }
  }
}

using CachedKernel = void (*)(Source, bool, Along, Terms, Optimizer, const Verdict*);

template <typename Reader, typename... Each>
CachedKernel cached_kernel_for(List<Each...>, int format) {
  constexpr CachedKernel kKernels[] = {cached_kernel<Each, Reader>...};
  return kKernels[format];
}

}  // namespace

void cached_step(const Update& update, const Direction& direction, const Optimizer& optimizer, const Where& where) {
  const DeviceGuard guard(where.device);
  const Exchange& row = direction.row;
  const Sum& sum = direction.sum;
  const Buffer& buffer = direction.buffer;
  const Moments& moments = optimizer.moments;
  Along along{};
  along.kind = direction.kind;
  along.takes_update = true;
  along.gain = direction.gain;
  along.read = row.read;
  along.write = row.write;
  along.key = row.key;
  along.first_block = update.origin / kBlock;
  along.sum = sum.values;
  along.entering = sum.entering;
  along.leaving = sum.leaving;
  along.dither = sum_dither(row.key.step);
  along.sum_scale = sum.scale;
  along.acc = buffer.acc;
  along.out = buffer.out;
  along.weight = static_cast<float>(direction.weight);
  along.acc_scale = buffer.scale;
  const bool aligned =
      all_aligned(sum.values, buffer.acc, buffer.out, optimizer.x, optimizer.x_out, moments.m, moments.v, moments.vhat);
  const Source source = source_of(update);
  const CachedKernel kernel = source.flat != nullptr ? cached_kernel_for<Flat>(RowFormats{}, row.format)
                                                     : cached_kernel_for<Cursor>(RowFormats{}, row.format);
  Optimizer none;
  // A kernel takes so many terms. More of them (ACED, when hundreds of clients expire at once) take further launches;
  // a mean steps in the last one, a calibrated direction, whose terms follow the step, in the first.
  bool steps_first = direction.kind == kCalibrated;
  size_t next = 0;
  do {
    Terms terms{};
    for (; next < sum.terms.size() && terms.count < kMostTerms; ++next) terms.term[terms.count++] = sum.terms[next];
    const bool steps = steps_first || (direction.kind == kMean && next == sum.terms.size());
    launch("cached step", where, warps(blocks_of(update.size), where.device), kernel, source, aligned, along, terms,
           steps ? optimizer : none, where.verdict);
    along.kind = kMean;  // the terms that are left
    along.takes_update = steps_first = false;
    along.read = along.write = {};
    along.acc = nullptr;
  } while (next < sum.terms.size());
}

}  // namespace fastagg::cuda
