// Adds Gaussian noise (math/noise.h) to a block. Included by kernels.inl.

struct NoiseLanes : Simd {
  template <int Left>
  FASTAGG_FN U turned(U a) {
    return rotate<32 - Left>(a);
  }
  FASTAGG_FN Vector number(I whole) { return __builtin_convertvector(whole, Vector); }
  FASTAGG_FN I whole(U bits) { return (I)bits; }
  FASTAGG_FN U word(I whole) { return (U)whole; }
};

// Adds noise to a block. Instructions, not memory, limit this stage's speed. So this stage prefetches for later stages.
void noise_block(const NoiseBlock& run) {
  constexpr int64_t kLines = kBlock / kLine, kTurns = kNoiseCalls / kFloats * 8;
  static_assert(kBlock == 16 * kNoiseCalls && (kLines % kTurns == 0 || kTurns % kLines == 0));
  const float scale = run.scale;
  U lanes;
  for (int64_t lane = 0; lane < kFloats; ++lane) lanes[lane] = static_cast<uint32_t>(lane);
  int64_t line = 0, turn = 0;
  for (int64_t call = 0; call < kNoiseCalls; call += kFloats) {
    const uint64_t first =
        static_cast<uint64_t>(run.block * kNoiseCalls + call);  // no lane's addition carries into the upper half
    const U place[4] = {lanes + static_cast<uint32_t>(first), U{} + static_cast<uint32_t>(first >> 32), U{}, U{}};
    U words[16];
    chacha20<NoiseLanes>(run.key, place, words);
#pragma GCC unroll 8
    for (int64_t w = 0; w < 8; ++w) {
      for (++turn; line * kTurns < turn * kLines; ++line)
        for (const float* ask : run.ask)
          if (ask != nullptr) ahead_of(ask + line * kLine);
      F normal, other;
      normal_pair<NoiseLanes>(words[w], words[w + 8], normal, other);
      float* const at = run.out + w * kNoiseCalls + call;
      float* const beside = at + 8 * kNoiseCalls;
      NoiseLanes::store(with_noise(NoiseLanes::load(at), scale, normal), at);
      NoiseLanes::store(with_noise(NoiseLanes::load(beside), scale, other), beside);
    }
  }
}
