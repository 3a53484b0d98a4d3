// Decides from an update's norms: clipping, and AsyncFedED's weight (paper 003, Eqs. 6 and 7).
#include "norms.cuh"

namespace fastagg::cuda {
namespace {

struct Decide {
  Rules rules;
  Verdict *verdict, *also;

  __device__ __forceinline__ void operator()(const Sums& sums) const {
    const double norm2 = sums.of[0], moved2 = sums.of[1];
    const bool finite = isfinite(norm2);
    const double norm = sqrt(norm2);
    const double gain = finite && rules.clip_norm > 0.0 && norm > rules.clip_norm ? rules.clip_norm / norm : 1.0;
    double weight = 1.0;
    bool keep = finite;
    if (rules.lam > 0.0 && finite) {
      const double length = norm * gain, gamma = sqrt(moved2) / length;
      keep = length > 0.0 && !(rules.gamma_max > 0.0 && gamma > rules.gamma_max);
      weight = keep ? rules.lam / (gamma + rules.eps) : 0.0;
    }
    *verdict = {norm2, moved2, sums.of[2], gain, weight, keep ? 1.0 : 0.0};
    if (also != nullptr) *also = *verdict;
  }
};

}  // namespace

int64_t judge_scratch(int64_t size) {
  const int64_t groups = groups_of(size);
  return sums_of(groups) + (counters_of(groups) + 1) / 2;
}

int64_t judge_counters(int64_t size) { return sums_of(groups_of(size)); }

void judge(const Update& update, const Against& against, const Rules& rules, double* scratch, Verdict* verdict,
           Verdict* also, const Where& where) {
  reduce(update, against, scratch, Decide{rules, verdict, also}, where);
}

}  // namespace fastagg::cuda
