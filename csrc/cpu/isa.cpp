// Which block kernels this processor runs: the best supported table, or the one that was asked for.
#include <atomic>
#include <cstring>

#include "kernels.h"

namespace fastagg::cpu {

#if defined(FASTAGG_X86)
namespace avx512 {
extern const Kernels table;
}
namespace avx2 {
extern const Kernels table;
}
#endif
namespace baseline {
extern const Kernels table;
}

namespace {

const Isa kIsas[] = {
#if defined(FASTAGG_X86)
    {&avx512::table, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")},
    {&avx2::table, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
#endif
    {&baseline::table, true},
};

const Kernels* best() {
  for (const Isa& candidate : kIsas)
    if (candidate.supported) return candidate.kernels;
  return nullptr;  // not reached: the baseline is always supported
}

std::atomic<const Kernels*> current{best()};

}  // namespace

int isa_count() { return static_cast<int>(sizeof kIsas / sizeof kIsas[0]); }
Isa isa(int index) { return kIsas[index]; }

const Kernels& kernels() { return *current.load(std::memory_order_acquire); }

bool select(const char* name) {
  for (const Isa& candidate : kIsas) {
    if (candidate.supported && std::strcmp(candidate.kernels->name, name) == 0) {
      current.store(candidate.kernels, std::memory_order_release);
      return true;
    }
  }
  return false;
}

}  // namespace fastagg::cpu
