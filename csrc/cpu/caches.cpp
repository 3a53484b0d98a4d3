// Computes sums over the rows of all clients, and reads a client's row (cpu.h).
#include "blocks.h"
#include "cpu.h"

namespace fastagg::cpu {
namespace {

Row block_of(const Rows& rows, int64_t slot, int64_t at) {
  const Row row = rows.row(slot);
  const Facts facts = format_facts(rows.format);
  return {static_cast<char*>(row.data) + at * facts.bits / 8,
          row.scales == nullptr ? nullptr : row.scales + at / kScaleBlock};
}

}  // namespace

void recompute_sum(const Rows& rows, const float* weights, float* sum, int64_t first, int64_t last, int64_t stride) {
  if (last <= first) return;
  const Kernels& table = kernels();
  auto block = [&](int64_t index) {
    const int64_t at = (first + index * stride) * kBlock;
    const int64_t n = std::min(kBlock, rows.size - at);
    alignas(64) double total[kBlock] = {};
    for (int64_t slot = 0; slot < rows.slots; ++slot)
      if (weights[slot] != 0.0f) table.add_exactly[rows.format](total, block_of(rows, slot, at), weights[slot], n, 0);
    table.settle(total, sum + at, n);
  };
  const int64_t blocks = (last - first + stride - 1) / stride;
  parallel(blocks, blocks * kBlock * rows.slots * 4, block);
}

void add_rows(const Rows& rows, const RowJob* jobs, int64_t count, const float* weights, float weight) {
  const Kernels& table = kernels();
  // The next slot's block is a whole row away. No processor's own prefetcher reaches so far. So the loop prefetches
  // this block whatever the tuning says. This makes the loop 1.1 to 2.3 times as fast if the rows are not cached.
  const int64_t next = padded(rows.size);
  auto run_part = [&](int64_t index) {
    const RowJob& job = jobs[index];
    const int64_t at = job.block * kBlock;
    const int64_t n = std::min(kBlock, rows.size - at);
    if (job.fresh) std::fill_n(job.shadow, kBlock, 0.0);
    for (int64_t slot = job.first_slot; slot < job.last_slot; ++slot) {
      const float factor = weights == nullptr ? weight : weights[slot];
      if (factor == 0.0f) continue;
      const int64_t ahead = slot + 1 < job.last_slot ? next : 0;
      table.add_exactly[rows.format](job.shadow, block_of(rows, slot, at), factor, n, ahead);
    }
  };
  int64_t slots = 0;
  for (int64_t index = 0; index < count; ++index) slots += jobs[index].last_slot - jobs[index].first_slot;
  parallel(count, slots * kBlock * 4, run_part);
}

void settle_rows(const RowJob* jobs, int64_t count, float* sum, int64_t size) {
  const Kernels& table = kernels();
  auto run_part = [&](int64_t index) {
    const int64_t at = jobs[index].block * kBlock;
    table.settle(jobs[index].shadow, sum + at, std::min(kBlock, size - at));
  };
  parallel(count, count * kBlock * 12, run_part);
}

void read_row(const Rows& rows, int64_t slot, float* out) {
  const Kernels& table = kernels();
  for_each_part(rows.size, 8, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kBlock)
      table.decode[rows.format](block_of(rows, slot, at), out + at, std::min(kBlock, end - at), tuning().prefetch);
  });
}

}  // namespace fastagg::cpu
