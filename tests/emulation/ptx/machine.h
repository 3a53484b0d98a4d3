// What the C++ of translate.py consists of: registers, memory, and the instructions that are no C++ operator. Where PTX
// leaves a result open (the bits of a NaN), this is the host's.
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include <limits>
#include <type_traits>
#include <vector>

#include "../cuda_runtime.h"

namespace emulation::ptx {

typedef __int128 Signed128;
typedef unsigned __int128 Unsigned128;

struct Kernel {
  const char* name;  // mangled by nvcc
  void (*run)(const char* parameters);
  size_t bytes;  // of its parameters
};

// The kernels of a file, and which of its planted errors is to run: a million times its kind's place in `kinds`, and
// its number; -1 for none.
struct File {
  const Kernel* kernels;
  int count;
  const char* name;
  std::vector<const char*> kinds;
  int* plant;
};

// launch.cpp
struct Registered {
  explicit Registered(const File& file);
};
[[noreturn]] void fault(const char* what);

// A register's bits as a value, and a value as bits. What is wider than the value stays zero.
template <typename T>
T get(uint64_t bits) {
  T out;
  memcpy(&out, &bits, sizeof out);
  return out;
}
template <>
inline bool get<bool>(uint64_t bits) {
  return bits != 0;
}
template <typename T>
uint64_t put(T value) {
  uint64_t out = 0;
  memcpy(&out, &value, sizeof value);
  return out;
}

// A load fills the register: with the sign for signed types.
template <typename T>
uint64_t load(const char* at) {
  T value;
  memcpy(&value, at, sizeof value);
  if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) return static_cast<uint64_t>(static_cast<int64_t>(value));
  return put(value);
}
template <typename T>
void store(char* at, T value) {
  memcpy(at, &value, sizeof value);
}
inline char* aligned(char* at, unsigned bytes) {
  if (reinterpret_cast<uintptr_t>(at) % bytes != 0) fault("an access that is not aligned");
  return at;
}
inline char* inside(char* shared, uint32_t at, unsigned bytes, unsigned size) {
  if (at + bytes > size || at % bytes != 0) fault("an access outside the kernel's shared memory, or not aligned in it");
  return shared + at;
}

// Shifts by a type's width and more give zero, or the sign.
template <typename T>
T left(T value, uint32_t by) {
  return by >= 8 * sizeof(T) ? T{0} : static_cast<T>(value << by);
}
template <typename T>
T right(T value, uint32_t by) {
  constexpr uint32_t most = 8 * sizeof(T) - 1;
  return static_cast<T>(by <= most ? value >> by : std::is_signed_v<T> ? value >> most : 0);
}
inline uint32_t funnel_l(uint32_t low, uint32_t high, uint32_t by) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) << (by % 32) >> 32);
}
inline uint32_t funnel_r(uint32_t low, uint32_t high, uint32_t by) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (by % 32));
}
template <typename T>
T inserted(T bits, T into, uint32_t from, uint32_t count) {
  constexpr uint32_t width = 8 * sizeof(T);
  from %= 256, count %= 256;
  const T mask = left(count >= width ? static_cast<T>(~T{0}) : static_cast<T>(left(T{1}, count) - 1), from);
  return static_cast<T>((into & ~mask) | (left(bits, from) & mask));
}
inline uint32_t permuted(uint32_t a, uint32_t b, uint32_t selectors) {
  const uint64_t all = uint64_t{b} << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t selector = selectors >> (4 * i);
    uint32_t byte = all >> (8 * (selector & 7)) & 255;
    if ((selector & 8) != 0) byte = (byte & 128) != 0 ? 255 : 0;
    out |= byte << (8 * i);
  }
  return out;
}
inline uint32_t by_table(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
  uint32_t out = 0;
  for (uint32_t row = 0; row < 8; ++row)
    if ((table >> row & 1) != 0)
      out |= ((row & 4) != 0 ? a : ~a) & ((row & 2) != 0 ? b : ~b) & ((row & 1) != 0 ? c : ~c);
  return out;
}
inline uint32_t reversed(uint32_t bits) {
  uint32_t out = 0;
  for (int i = 0; i < 32; ++i) out |= (bits >> i & 1) << (31 - i);
  return out;
}
inline uint32_t leading_zeros(uint32_t bits) {
  return bits == 0 ? 0xffffffffu : static_cast<uint32_t>(__builtin_clz(bits));
}

// Of a NaN and a number, the number; minus zero is less than zero.
template <typename T>
T minimum(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
    if (a == b) return std::signbit(a) ? a : b;
  }
  return b < a ? b : a;
}
template <typename T>
T maximum(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
    if (a == b) return std::signbit(a) ? b : a;
  }
  return a < b ? b : a;
}
template <typename T, typename Float>
T saturated(Float whole) {
  if (std::isnan(whole)) return 0;
  if (whole <= static_cast<Float>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (whole >= static_cast<Float>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return static_cast<T>(whole);
}

// Shuffles over the whole warp. A lane that would read outside the warp keeps its own value.
inline uint64_t shuffled(uint32_t value, uint32_t from, uint32_t clamp, uint32_t mask, bool& inside) {
  if (clamp != 31) fault("a shuffle in a part of the warp");
  inside = from < 32;
  return emulation::from_lane(mask, value, static_cast<int>(from));
}
inline uint64_t shuffle_idx(uint32_t value, uint32_t lane, uint32_t clamp, uint32_t mask, bool& inside) {
  return shuffled(value, lane % 32, clamp, mask, inside);
}
inline uint64_t shuffle_down(uint32_t value, uint32_t by, uint32_t clamp, uint32_t mask, bool& inside) {
  return shuffled(value, static_cast<uint32_t>(emulation::lane()) + by % 32, clamp, mask, inside);
}
inline uint64_t shuffle_bfly(uint32_t value, uint32_t bits, uint32_t clamp, uint32_t mask, bool& inside) {
  return shuffled(value, static_cast<uint32_t>(emulation::lane()) ^ bits % 32, clamp, mask, inside);
}

}  // namespace emulation::ptx
