#include "fold.h"

#include "blocks.h"

namespace fastagg::cpu {

void fold(const std::vector<Trained>& trained, const float* acc, float* acc_out,
          std::vector<std::atomic<bool>>& finite) {
  if (trained.empty()) return;
  const int64_t size = trained.front().model.size;
  const bool aside = size >= kStreamFrom || acc_out == nullptr;
  const Kernels& table = kernels();
  auto group = [&](int64_t index) {
    const int64_t begin = index * kGroup, end = std::min(size, begin + kGroup);
    std::vector<Reader> readers;
    readers.reserve(trained.size());
    for (const Trained& one : trained) readers.emplace_back(one.model, table, begin);
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t n = std::min(kBlock, end - at);
      Scratch scratch;
      float* sum = aside ? scratch.values : acc_out + at;
      if (acc != nullptr && acc + at != sum)
        std::memcpy(sum, acc + at, static_cast<size_t>(n) * sizeof(float));
      else if (acc == nullptr)
        std::memset(sum, 0, static_cast<size_t>(n) * sizeof(float));
      for (size_t k = 0; k < trained.size(); ++k)
        if (!table.fold(readers[k].block(at, n), trained[k].base + at, trained[k].weight, sum, n))
          finite[k].store(false, std::memory_order_relaxed);
      if (aside && acc_out != nullptr) table.stream(scratch.values, acc_out + at, n);
    }
    fence();
  };
  if (size > 0) parallel((size + kGroup - 1) / kGroup, group);
}

}  // namespace fastagg::cpu
