// The table of tunings for known processors, and the tuning in use (tuning.h).
#include "tuning.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#if defined(FASTAGG_X86)
#include <cpuid.h>
#endif

namespace fastagg::cpu {
namespace {

constexpr int64_t kNever = 0, kCache = int64_t{2} << 20;

// The table of tunings, measured with bench/ (docs/performance.md). Prefetching half a block ahead makes
// loops 10% faster on Intel. On AMD it makes them 20 to 40% slower, because AMD's own prefetchers detect the streams.
// Stores that bypass the caches make loops 10 to 25% faster on both, if the loops store directly from registers. But if
// the output would fit in the cache, such stores take twice the time. From a scratch block, such stores are slower on
// AMD. Processors that are not in the table get kUnknown. For the others, row_of() sets the cache's size.
struct KnownProcessor {
  const char* vendor;
  int family_from, family_to;
  Tuning tuning;
};
constexpr KnownProcessor kKnown[] = {
    {"GenuineIntel", 6, 6, {"Intel", 512, kNever, 512, kCache, 200, 65536, 4}},
    {"AuthenticAMD", 25, 25, {"AMD, Zen 3 and 4", 0, kNever, 256, kCache, 200, 65536, 1}},
    {"AuthenticAMD", 26, 26, {"AMD, Zen 5", 0, kNever, 512, kCache, 200, 65536, 1}},
};
constexpr Tuning kUnknown = {"unknown processor", 0, kNever, 256, kCache, 200, 65536, 1};

#if defined(FASTAGG_X86)
int64_t last_cache(bool amd) {
  int64_t bytes = 0;  // the size of the largest cache, which is the last one
  unsigned a = 0, b = 0, c = 0, d = 0;
  for (unsigned index = 0; __get_cpuid_count(amd ? 0x8000001d : 4, index, &a, &b, &c, &d) != 0 && (a & 31u) != 0;
       ++index)
    bytes = std::max(bytes, int64_t{(b >> 22) + 1} * ((b >> 12 & 1023u) + 1) * ((b & 4095u) + 1) * (int64_t{c} + 1));
  return bytes;
}
#endif

Processor ask() {
  Processor processor{};
#if defined(FASTAGG_X86)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d) != 0) {
    std::memcpy(processor.vendor, &b, 4);
    std::memcpy(processor.vendor + 4, &d, 4);
    std::memcpy(processor.vendor + 8, &c, 4);
  }
  if (__get_cpuid(1, &a, &b, &c, &d) != 0) {
    const unsigned family = a >> 8 & 15u, model = a >> 4 & 15u;
    processor.family = static_cast<int>(family == 15 ? family + (a >> 20 & 255u) : family);
    processor.model = static_cast<int>(family == 6 || family == 15 ? model | (a >> 16 & 15u) << 4 : model);
  }
  processor.cache = last_cache(std::strcmp(processor.vendor, "AuthenticAMD") == 0);
#elif defined(__aarch64__)
  std::memcpy(processor.vendor, "ARM", 3);
#endif
  return processor;
}

Tuning row_of(const Processor& processor) {
  for (KnownProcessor known : kKnown)
    if (std::strcmp(known.vendor, processor.vendor) == 0 && processor.family >= known.family_from &&
        processor.family <= known.family_to) {
      known.tuning.cache = processor.cache;
      return known.tuning;
    }
  return kUnknown;
}

// A Tuning never changes after set_tuning has stored it. So each call of tuning() returns either the old or the new
// values, never a mixture. Old tunings are never freed, because a process sets only a few.
std::atomic<const Tuning*> current{nullptr};

}  // namespace

const Processor& processor() {
  static const Processor host = ask();
  return host;
}

const Tuning& default_tuning() {
  static const Tuning chosen = row_of(processor());
  return chosen;
}

const Tuning& tuning() {
  const Tuning* set = current.load(std::memory_order_acquire);
  return set != nullptr ? *set : default_tuning();
}

void set_tuning(const Tuning& tuning) { current.store(new Tuning(tuning), std::memory_order_release); }

}  // namespace fastagg::cpu
