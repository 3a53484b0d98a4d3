#include "blocks.h"
#include "cpu.h"

namespace fastagg::cpu {

void fold(const std::vector<Trained>& trained, const float* acc, float* acc_out,
          std::vector<std::atomic<int32_t>>& largest) {
  if (trained.empty()) return;
  const Kernels& table = kernels();
  const int64_t size = trained.front().model.size;
  const int64_t vectors = static_cast<int64_t>(2 * trained.size());  // with a base or a sum
  for_each_part(size, 4 * vectors, [&](int64_t begin, int64_t end) {
    std::vector<Reader> readers;
    readers.reserve(trained.size());
    for (const Trained& one : trained) readers.emplace_back(one.model, table, begin);
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t n = std::min(kBlock, end - at);
      Scratch scratch;
      float* sum = acc_out == nullptr ? scratch.values : acc_out + at;
      const float* before = acc == nullptr ? nullptr : acc + at;
      for (size_t k = 0; k < trained.size(); ++k, before = sum) {
        const float* base = trained[k].base == nullptr ? nullptr : trained[k].base + at;
        const int32_t most = table.fold(readers[k].block(at, n), base, trained[k].weight, before, sum, n);
        int32_t held = largest[k].load(std::memory_order_relaxed);
        while (held < most && !largest[k].compare_exchange_weak(held, most, std::memory_order_relaxed)) {
        }
      }
    }
  });
}

}  // namespace fastagg::cpu
