// Adds trained models to a sum (`fold` in cpu.h).
#include <optional>

#include "blocks.h"
#include "cpu.h"

namespace fastagg::cpu {
namespace {

// Returns how many models one loop adds, from the model `first` on: 1, 2 or 4. These models have the same base.
size_t together(const std::vector<TrainedModel>& trained, size_t first) {
  size_t same = 1;
  while (same < kFolds && first + same < trained.size() && trained[first + same].base == trained[first].base) ++same;
  return same == 3 ? 2 : same;
}

// Returns elements at..at+n-1 of a model's base, or null without a base. An fp16 or bf16 base is widened into scratch.
const float* base_at(const Kernels& table, const TrainedModel& model, int64_t at, int64_t n, Scratch& scratch) {
  if (model.base == nullptr || model.dtype == kFloat32) return shifted(model.base, at);
  widen(table, {model.base, 0, 0, model.dtype}, at, scratch.values, n);
  return scratch.values;
}

}  // namespace

void fold(const std::vector<TrainedModel>& trained, const float* acc, float* acc_out,
          std::vector<std::atomic<int32_t>>& largest) {
  if (trained.empty()) return;
  const Kernels& table = kernels();
  const int64_t size = trained.front().model.size;
  const int64_t vectors = static_cast<int64_t>(2 * trained.size());  // an estimate: two vectors for each model
  const bool past = bypasses(4 * size * vectors) && acc_out != acc && aligned(acc_out);
  const bool whole_blocks =
      acc_out != nullptr && trained.front().dtype == kFloat32 && together(trained, 0) == trained.size();
  for_each_part(size, 4 * vectors, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin, n = 0; at < end; at += n) {
      n = std::min(kBlock, end - at);
      Scratch base, scratch;  // `scratch` has the sum of all but the last `count` models
      const float* before = shifted(acc, at);
      for (size_t first = 0, count = 0; first < trained.size(); first += count) {
        count = together(trained, first);
        // The readers are on the stack, because an allocation could fail while the sum is being written.
        std::optional<BlockReader> readers[kFolds];
        int64_t plain = end - at;
        for (size_t k = 0; k < count; ++k)
          plain = std::min(plain, readers[k].emplace(trained[first + k].model, table, at).plain(at));
        if (whole_blocks)
          n = std::max(n, plain / kBlock * kBlock);  // the most whole blocks that can be read in place in all models
        Fold run{};
        run.count = static_cast<int>(count);
        for (size_t k = 0; k < count; ++k) {
          run.in[k] = readers[k]->block(at, n);
          run.weight[k] = trained[first + k].weight;
        }
        run.base = base_at(table, trained[first], at, n, base);
        run.acc = before;
        run.out = scratch.values;
        run.n = n;
        run.ahead = tuning().prefetch;
        if (acc_out != nullptr && first + count == trained.size()) {
          run.out = acc_out + at;
          run.stream_out = past;
        }
        before = run.out;
        int32_t magnitudes[kFolds];
        table.fold(run, magnitudes);
        for (size_t k = 0; k < count; ++k) raise(largest[first + k], magnitudes[k]);
      }
    }
  });
}

}  // namespace fastagg::cpu
