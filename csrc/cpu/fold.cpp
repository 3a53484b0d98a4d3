#include "blocks.h"
#include "cpu.h"

namespace fastagg::cpu {

void fold(const std::vector<Trained>& trained, const float* acc, float* acc_out,
          std::vector<std::atomic<int32_t>>& largest) {
  if (trained.empty()) return;
  const Kernels& table = kernels();
  const int64_t size = trained.front().model.size;
  const bool past = streams(size) && acc_out != acc && aligned(acc_out);
  const int64_t vectors = static_cast<int64_t>(2 * trained.size());  // each model has a base or a sum
  for_each_part(size, 4 * vectors, [&](int64_t begin, int64_t end) {
    std::vector<Reader> readers;
    readers.reserve(trained.size());
    for (const Trained& one : trained) readers.emplace_back(one.model, table, begin);
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t n = std::min(kBlock, end - at);
      Scratch scratch;  // all differences but the last are added here, in the L1 cache
      const float* before = shifted(acc, at);
      for (size_t k = 0; k < trained.size(); ++k) {
        Fold run{};
        run.in = readers[k].block(at, n);
        run.base = shifted(trained[k].base, at);
        run.acc = before;
        run.out = scratch.values;
        run.weight = trained[k].weight;
        run.n = n;
        run.ahead = tuning().prefetch;
        if (acc_out != nullptr && k + 1 == trained.size()) {
          run.out = acc_out + at;
          run.stream_out = past;
        }
        before = run.out;
        const int32_t most = table.fold(run);
        int32_t held = largest[k].load(std::memory_order_relaxed);
        while (held < most && !largest[k].compare_exchange_weak(held, most, std::memory_order_relaxed)) {
        }
      }
    }
  });
}

}  // namespace fastagg::cpu
