// FedEcho's distillation loss on a CPU (cpu.h).
#include "../math/distill.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "cpu.h"
#include "kernels.h"
#include "pool.h"

namespace fastagg::cpu {
namespace {

const RowLoss<float>& row_loss(const Kernels& table, float) { return table.distill_f32; }
const RowLoss<double>& row_loss(const Kernels& table, double) { return table.distill_f64; }

// Calls function(r) for all rows, on several threads. A thread takes several rows at a time, as rows may be short.
template <typename Function>
void for_each_row(int64_t rows, int64_t classes, Function&& function) {
  const int64_t chunk = std::max<int64_t>(1, 16384 / std::max<int64_t>(classes, 1));
  auto work = [&](int64_t index) {
    for (int64_t r = index * chunk; r < std::min(rows, (index + 1) * chunk); ++r) function(r);
  };
  if (rows > 0) parallel((rows + chunk - 1) / chunk, kWorthSharing, work);
}

}  // namespace

template <typename T>
void soft_targets(const T* logits, double scale, int64_t rows, int64_t classes, T* probs, int64_t* labels,
                  double* entropy) {
  const RowLoss<T>& table = row_loss(kernels(), T{});
  for_each_row(rows, classes, [&](int64_t r) {
    table.targets(logits + r * classes, static_cast<T>(scale), classes, probs + r * classes, labels + r, entropy + r);
  });
}

template <typename T>
DistillationLoss distill(const T* logits, const T* probs, const int64_t* labels, const double* entropy,
                         const int64_t* which, int64_t teachers, int64_t rows, int64_t classes, double alpha_min,
                         double alpha_max, T* gradient) {
  int64_t counted = 0;
  double uncertain = 0.0;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t from = which == nullptr ? r : which[r];
    if (from < 0 || from >= teachers) throw std::out_of_range("rows: no such row of the teachers");
    if (labels[from] == kIgnored) continue;
    if (labels[from] < 0 || labels[from] >= classes) throw std::out_of_range("targets.labels: no such class");
    uncertain += entropy[from];
    ++counted;
  }
  const double share = counted > 0 ? 1.0 / static_cast<double>(counted) : 0.0;
  const double alpha = mixing(uncertain * share, classes, alpha_min, alpha_max);
  std::vector<double> losses(static_cast<size_t>(rows), 0.0);
  const RowLoss<T>& table = row_loss(kernels(), T{});
  for_each_row(rows, classes, [&](int64_t r) {
    const int64_t from = which == nullptr ? r : which[r];
    T* out = gradient + r * classes;
    if (labels[from] == kIgnored) {
      std::memset(out, 0, static_cast<size_t>(classes) * sizeof(T));
      return;
    }
    losses[static_cast<size_t>(r)] = table.loss(logits + r * classes, probs + from * classes, labels[from],
                                                entropy[from], alpha, share, classes, out);
  });
  double total = 0.0;
  for (const double loss : losses) total += loss;
  return {total * share, alpha};
}

template void soft_targets(const float*, double, int64_t, int64_t, float*, int64_t*, double*);
template void soft_targets(const double*, double, int64_t, int64_t, double*, int64_t*, double*);
template DistillationLoss distill(const float*, const float*, const int64_t*, const double*, const int64_t*, int64_t,
                                  int64_t, int64_t, double, double, float*);
template DistillationLoss distill(const double*, const double*, const int64_t*, const double*, const int64_t*, int64_t,
                                  int64_t, int64_t, double, double, double*);

}  // namespace fastagg::cpu
