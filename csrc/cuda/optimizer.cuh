// The optimizers of csrc/math/optimizer.h on four elements at a time.
#pragma once

#include "vector.cuh"

namespace fastagg::cuda {

struct Moments {
  Four m, v, vhat;
};

template <bool Whole>
__device__ __forceinline__ Moments load_moments(const cpu::Optimizer& o, bool m, bool v, bool vhat, int64_t at,
                                                int64_t left) {
  Moments found{};
  if (m) found.m = load<Whole>(o.m + at, left);
  if (v) found.v = load<Whole>(o.v + at, left);
  if (vhat) found.vhat = load<Whole>(o.vhat + at, left);
  return found;
}

template <bool Whole>
__device__ __forceinline__ void store_moments(const cpu::Optimizer& o, bool m, bool v, bool vhat, int64_t at,
                                              int64_t left, const Moments& moments) {
  if (m) store<Whole>(o.m + at, left, moments.m);
  if (v) store<Whole>(o.v + at, left, moments.v);
  if (vhat) store<Whole>(o.vhat + at, left, moments.vhat);
}

// The new x; the moments follow.
template <int Kind>
__device__ __forceinline__ Four optimize_four(const Four& d, const Four& x, Moments& moments, const Hyper& hyper) {
  Four out;
#pragma unroll
  for (int e = 0; e < kFour; ++e)
    out.v[e] = optimize<Kind>(d.v[e], x.v[e], moments.m.v[e], moments.v.v[e], moments.vhat.v[e], hyper);
  return out;
}

// The same where the kind is known at run time only; it is the same for all threads.
__device__ __forceinline__ Four optimize_four(OptimizerKind kind, const Four& d, const Four& x, Moments& moments,
                                              const Hyper& hyper) {
  switch (kind) {
    case kSgd: return optimize_four<kSgd>(d, x, moments, hyper);
    case kMomentum: return optimize_four<kMomentum>(d, x, moments, hyper);
    case kAdam: return optimize_four<kAdam>(d, x, moments, hyper);
    case kAmsgrad: return optimize_four<kAmsgrad>(d, x, moments, hyper);
    case kYogi: return optimize_four<kYogi>(d, x, moments, hyper);
    case kAdagrad: return optimize_four<kAdagrad>(d, x, moments, hyper);
    default: return optimize_four<kLookahead>(d, x, moments, hyper);
  }
}

}  // namespace fastagg::cuda
