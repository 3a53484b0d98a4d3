// Takes steps along mean and calibrated directions (math/directions.h), which use clients' rows. One launch computes
// the new row, the new sum or buffer, and the new model. More launches follow only if there are more than kMostTerms
// terms.
#include "advance.cuh"
#include "rows.cuh"
#include "source.cuh"

namespace fastagg::cuda {
namespace {

constexpr int kMostTerms = 16;

struct Terms {
  int count;
  Term term[kMostTerms];
};

// The fields of a Direction that the kernel reads.
struct RowDirection {
  DirectionKind kind;
  bool takes_update;  // whether to use the update; false: an earlier launch has used the update
  float gain;
  Exchange row;
  float* sum;
  float entering, leaving, dither, sum_scale;
  const float* acc;
  float* out;  // the new acc of a calibrated direction without a step
  float weight, acc_scale;
};

// Processes one scale block with one warp. `j` is the scale block's number, 0..3, in its block of 1,024 elements.
template <typename Format, bool Coded, typename Reader>
__device__ __forceinline__ void cached_block(Reader& reader, const Dice& dice, bool whole, int64_t size, int64_t begin,
                                             int j, const RowDirection& c, const Terms& terms,
                                             const Optimizer& optimizer) {
  const int64_t index = begin / kScaleBlock;
  const bool reads = c.row.read.data != nullptr, steps = optimizer.kind >= 0;
  const bool as_row = c.row.coded.data != nullptr && c.gain == 1.0f;  // the update arrived encoded as the new row
  Halves input{}, old{}, x{}, acc{}, sum{};
  MomentsForm<Coded> held{};
  loading(whole, [&](auto w) {
    constexpr bool kWhole = decltype(w)::value;
    if (steps) {
      x = load_halves<kWhole>(optimizer.x, begin, size);
      load_block<kWhole>(held, optimizer.moments, begin, size);
    }
    if (c.sum != nullptr) sum = load_halves<kWhole>(c.sum, begin, size);
    if (c.acc != nullptr) acc = load_halves<kWhole>(c.acc, begin, size);
    if (c.takes_update && !as_row) input = read_halves<kWhole>(reader, begin, size);
  });
  if (reads) old = decode<Format>(c.row.read, index);
  if (as_row)
    input = decode<Format>(c.row.coded, index);
  else
    each([&](int h, int e) { input.half[h].v[e] *= c.gain; });
  Halves entering = input;
  if (c.row.write.data != nullptr) {
    __syncwarp();  // waits until every lane has read the old row, which the new row may overwrite
    if (as_row)
      copy_block<Format>(c.row.coded, c.row.write, index);
    else
      entering = encode<Format>(c.row.write, index, input, dice, j);
    __syncwarp();  // waits until the new row is written, because terms may read it
  }
  const auto finish_sum = [&] {
    for (int t = 0; t < terms.count; ++t) {
      const Halves row = decode<Format>(terms.term[t].row, index);
      const float weight = terms.term[t].weight;
      each([&](int h, int e) { sum.half[h].v[e] = with_term(sum.half[h].v[e], row.half[h].v[e], weight); });
    }
    store_halves(whole, c.sum, begin, size, sum);
  };
  Halves d;
  if (c.kind == kMean) {
    each([&](int h, int e) {
      float& s = sum.half[h].v[e];
      if (c.takes_update)
        s = exchanged<Scalar>(s, entering.half[h].v[e], c.entering, old.half[h].v[e], c.leaving, c.dither);
    });
    finish_sum();
    each([&](int h, int e) { d.half[h].v[e] = c.sum_scale * sum.half[h].v[e]; });
  } else {
    each([&](int h, int e) {
      float& to = d.half[h].v[e];
      to = calibrated_of(acc.half[h].v[e], input.half[h].v[e], old.half[h].v[e], c.weight);
      if (steps) to = mixed_of(to, c.acc_scale, sum.half[h].v[e], c.sum_scale);
    });
    if (!steps) store_halves(whole, c.out, begin, size, d);
    if (terms.count > 0) finish_sum();
  }
  if (steps) advance(optimizer, held, whole, begin, size, d, x);
}

template <typename Format, bool Coded, typename Reader>
__global__ void __launch_bounds__(kThreads, 2)
    cached_kernel(const __grid_constant__ typename Reader::SourceData source, bool aligned,
                  const __grid_constant__ RowDirection c, const __grid_constant__ Terms terms,
                  const __grid_constant__ Optimizer optimizer) {
  Dice dice{};
  const auto rolled = [&](int64_t block) {
    if (Format::kRandom && c.row.write.data != nullptr) dice = roll(c.row.key, block);
  };
  for_each_scale_block<Reader>(source, aligned, rolled, [&](bool whole, Reader& reader, int64_t begin, int j) {
    cached_block<Format, Coded>(reader, dice, whole, source.size, begin, j, c, terms, optimizer);
  });
}

}  // namespace

void cached_step(const Update& update, const Direction& direction, const Optimizer& optimizer,
                 const LaunchPlace& where) {
  const Exchange& row = direction.row;
  const Sum& sum = direction.sum;
  const Buffer& buffer = direction.buffer;
  RowDirection along{};
  along.kind = direction.kind;
  along.takes_update = true;
  along.gain = static_cast<float>(direction.gain);
  along.row = row;
  along.sum = sum.values;
  along.entering = sum.entering;
  along.leaving = sum.leaving;
  along.dither = sum_dither(row.key.step);
  along.sum_scale = sum.scale;
  along.acc = buffer.acc;
  along.out = buffer.out;
  along.weight = static_cast<float>(direction.weight);
  along.acc_scale = buffer.scale;
  const bool aligned = all_aligned(sum.values, buffer.acc, buffer.out, optimizer.x, optimizer.x_out) &&
                       moments_aligned(optimizer.moments);
  const unsigned blocks = warps(blocks_of(update.size), where.device);
  Optimizer none;
  // A launch takes at most kMostTerms terms. If there are more (ACED, when many clients expire at one arrival), further
  // launches add the other terms. With a mean, the last launch takes the step. With a calibrated direction, the first
  // launch takes the step, because the terms are added after the step.
  bool steps_first = direction.kind == kCalibrated;
  size_t next = 0;
  do {
    Terms terms{};
    for (; next < sum.terms.size() && terms.count < kMostTerms; ++next) terms.term[terms.count++] = sum.terms[next];
    const bool steps = steps_first || (direction.kind == kMean && next == sum.terms.size());
    read_with(update, [&](auto with, const auto& source) {
      using Reader = typename decltype(with)::Reader;
      launch_of(row.format, RowFormats{}, [&](auto format) {
        using Format = decltype(format);
        launch("cached step", where, blocks,
               steps && optimizer.moments.coded() ? cached_kernel<Format, true, Reader>
                                                  : cached_kernel<Format, false, Reader>,
               source, aligned, along, terms, steps ? optimizer : none);
      });
    });
    along.kind = kMean;  // further launches add terms, without the update; a mean's last launch also takes the step
    along.takes_update = steps_first = false;
    along.row = {};
    along.acc = nullptr;
  } while (next < sum.terms.size());
}

}  // namespace fastagg::cuda
