// How Python's arguments become the kernels' own types.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <tuple>
#include <utility>
#include <vector>

#include "../cpu/cached_step.h"

namespace fastagg {

using Address = uintptr_t;
using Pieces = std::vector<std::tuple<Address, int64_t, int>>;  // address, elements, dtype code
using Terms = std::vector<std::pair<int64_t, float>>;           // slot, weight

inline float* at(Address address) { return reinterpret_cast<float*>(address); }

inline cpu::Update update_of(const Pieces& pieces) {
  cpu::Update update;
  update.pieces.reserve(pieces.size());
  for (const auto& [address, size, dtype] : pieces)
    update.add(reinterpret_cast<const void*>(address), size, static_cast<cpu::Dtype>(dtype));
  return update;
}

// The gain stays out: CUDA takes it in double.
inline cpu::CachedDirection cached_direction_of(int kind, int64_t write, int64_t read, const RandomKey& random,
                                                Address high, Address low, float entering, float leaving,
                                                float sum_scale, Address acc, Address acc_out, float weight,
                                                float acc_scale, const Terms& terms) {
  cpu::CachedDirection direction{static_cast<cpu::CachedKind>(kind),
                                 1.0f,
                                 write,
                                 read,
                                 random,
                                 {at(high), reinterpret_cast<int8_t*>(low)},
                                 entering,
                                 leaving,
                                 sum_scale,
                                 at(acc),
                                 at(acc_out),
                                 weight,
                                 acc_scale,
                                 {}};
  for (const auto& [slot, term] : terms) direction.terms.push_back({slot, term});
  return direction;
}

void bind_cuda(pybind11::module_& m);

}  // namespace fastagg
