// Sets a thread's floating-point unit to round to nearest and to keep denormal numbers. A program may have set other
// modes, with torch.set_flush_denormal or by loading a library that was linked with -ffast-math.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace fastagg::cpu {

// While the object lives, its thread computes by IEEE 754 (on x86-64 and arm64). So results do not depend on the
// thread's modes. The destructor restores these modes.
class PlainFloats {
 public:
  PlainFloats() : before_(modes()) {
    if ((before_ & kModes) != kPlain) set((before_ & ~kModes) | kPlain);
  }
  PlainFloats(const PlainFloats&) = delete;
  PlainFloats& operator=(const PlainFloats&) = delete;
  ~PlainFloats() {
    if ((before_ & kModes) != kPlain) set(before_);
  }

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kModes = 0xe040, kPlain = 0;  // flush to zero, rounding mode, denormals are zeros
  static uint64_t modes() { return _mm_getcsr(); }
  static void set(uint64_t modes) { _mm_setcsr(static_cast<uint32_t>(modes)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kModes = 0x1c80000, kPlain = 0;  // flush to zero (for both widths), rounding mode
  static uint64_t modes() {
    uint64_t bits;
    asm volatile("mrs %0, fpcr" : "=r"(bits));
    return bits;
  }
  static void set(uint64_t modes) { asm volatile("msr fpcr, %0" : : "r"(modes)); }
#else
  static constexpr uint64_t kModes = 0, kPlain = 0;
  static uint64_t modes() { return 0; }
  static void set(uint64_t) {}
#endif

  const uint64_t before_;
};

}  // namespace fastagg::cpu
