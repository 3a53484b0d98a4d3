// Chooses the table of kernels (kernels.h). The default is the best table that this processor supports.
#include <atomic>
#include <cstring>

#include "cpu.h"
#include "kernels.h"
#include "tuning.h"

namespace fastagg::cpu {

#if defined(FASTAGG_X86)
namespace avx512 {
extern const Kernels table;
}
namespace avx512_256 {
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

struct Isa {
  const Kernels* kernels;
  bool supported;
};

#if defined(FASTAGG_X86)
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

const Isa kIsas[] = {
#if defined(FASTAGG_X86)
    {&avx512::table, has_avx512()},
    {&avx512_256::table, has_avx512()},
    {&avx2::table, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
#endif
    {&baseline::table, true},
};

// Returns the table of the instruction set `name` with this many floats per vector. If there is none, returns the set's
// first table, which has the widest vectors. Returns null if the processor does not have the instruction set.
const Kernels* find(const char* name, int64_t lanes) {
  const Kernels* first = nullptr;
  for (const Isa& candidate : kIsas) {
    if (!candidate.supported || std::strcmp(candidate.kernels->isa, name) != 0) continue;
    if (candidate.kernels->lanes == lanes) return candidate.kernels;
    if (first == nullptr) first = candidate.kernels;
  }
  return first;
}

const Kernels* best() {
  for (const Isa& candidate : kIsas)
    if (candidate.supported) return candidate.kernels;
  return nullptr;  // not reached: the baseline is always supported
}

std::atomic<const Kernels*> widest{best()};

}  // namespace

const Kernels& kernels() { return *widest.load(std::memory_order_acquire); }
const Kernels& streaming_kernels() { return *find(kernels().isa, tuning().width / 32); }

std::vector<std::pair<const char*, bool>> isas() {
  std::vector<std::pair<const char*, bool>> isas;
  for (const Isa& isa : kIsas) {
    const char* name = isa.kernels->isa;
    if (isas.empty() || std::strcmp(isas.back().first, name) != 0) isas.emplace_back(name, isa.supported);
  }
  return isas;
}

const char* isa() { return kernels().isa; }

bool select(const char* name) {
  const Kernels* kernels = find(name, 0);
  if (kernels != nullptr) widest.store(kernels, std::memory_order_release);
  return kernels != nullptr;
}

}  // namespace fastagg::cpu
