// Reads and writes blocks of encoded updates (math/wire.h). Included by kernels.inl.

template <typename Format>
FASTAGG_FN Row row_in(const Wire& wire, int64_t at) {
  float* const scales = const_cast<float*>(wire.scales);
  return {const_cast<uint8_t*>(wire.codes) + at * Format::kBits / 8,
          scales == nullptr ? nullptr : scales + at / kScaleBlock};
}

template <typename Format>
void decode_row_wire(const Wire& wire, int64_t at, float* out, int64_t n, int64_t ahead) {
  decode_block<Format>(row_in<Format>(wire, at), out, n, ahead);
}

void decode_tensor_wire(const Wire& wire, int64_t at, float* out, int64_t n, int64_t) {
  const int8_t* const codes = reinterpret_cast<const int8_t*>(wire.codes) + at;
  int64_t array = first_above(wire.ends, wire.count, at);
  for (int64_t i = 0; i < n; ++array) {
    const int64_t left = wire.ends[array] - at, end = left < n ? left : n;
    const float scale = wire.scales[array];
    FASTAGG_NO_CARRY
    for (int64_t k = i; k < end; ++k) out[k] = static_cast<float>(codes[k]) * scale;
    i = end;
  }
}

void decode_sign_wire(const Wire& wire, int64_t at, float* out, int64_t n, int64_t) {
  for (int64_t b = 0; b < n; b += kScaleBlock) {
    const uint32_t scale = bits_of(wire.scales[(at + b) / kScaleBlock]);
    const int64_t end = n - b < kScaleBlock ? n - b : kScaleBlock;
    for (int64_t i = 0; i < end; i += 32) {
      uint32_t word;
      memcpy(&word, wire.codes + (at + b + i) / 8, sizeof word);
      float rest[32];
      const bool whole = end - i >= 32;
      float* const to = whole ? out + b + i : rest;
      for (uint32_t k = 0; k < 32; ++k) to[k] = float_from_bits(scale | (word << (31 - k) & 0x80000000u));
      if (!whole) memcpy(out + b + i, rest, static_cast<size_t>(end - i) * sizeof(float));
    }
  }
}

void decode_topk_wire(const Wire& wire, int64_t at, float* out, int64_t n, int64_t) {
  memset(out, 0, static_cast<size_t>(n) * sizeof(float));
  for (int64_t k = first_above(wire.indices, wire.count, at - 1); k < wire.count && wire.indices[k] < at + n; ++k)
    out[wire.indices[k] - at] = value_of(wire, k);
}

// The sum of magnitudes in lanes of a fixed number, so that its bits do not depend on the vectors' width.
FASTAGG_FN float sum_of_magnitudes(const float* in, int64_t n, float unit) {
  constexpr int64_t kWidth = 32;
  float lanes[kWidth] = {};
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth)
    for (int64_t k = 0; k < kWidth; ++k) lanes[k] += fabsf(in[i + k]) * unit;
  for (int64_t k = 0; i + k < n; ++k) lanes[k] += fabsf(in[i + k]) * unit;
  for (int64_t half = kWidth / 2; half > 0; half /= 2)
    for (int64_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  return lanes[0];
}

// The mean of at most a scale block's. The sum of finite ones may be beyond fp32; their mean is not.
FASTAGG_FN float mean_magnitude(const float* in, int64_t n) {
  constexpr float kMost = static_cast<float>(kScaleBlock);
  const float mean = sum_of_magnitudes(in, n, 1.0f) / static_cast<float>(n);
  if (mean <= FLT_MAX) return mean;
  const float smaller = sum_of_magnitudes(in, n, 1.0f / kMost) / static_cast<float>(n);
  return smaller < FLT_MAX / kMost ? smaller * kMost : FLT_MAX;
}

// Of a block of whole scale blocks, but for the vector's end. Bits behind it are zeros.
void encode_sign_block(const float* in, int64_t n, uint8_t* bits, float* scales) {
  for (int64_t b = 0; b < n; b += kScaleBlock) {
    const int64_t end = n - b < kScaleBlock ? n - b : kScaleBlock;
    scales[b / kScaleBlock] = mean_magnitude(in + b, end);
    for (int64_t byte = 0; byte < kScaleBlock / 8; ++byte) {
      uint32_t found = 0;
      for (int64_t i = 0; i < 8 && byte * 8 + i < end; ++i) found |= (bits_of(in[b + byte * 8 + i]) >> 31) << i;
      bits[b / 8 + byte] = static_cast<uint8_t>(found);
    }
  }
}

void encode_nearest_block(const float* in, int64_t n, float inverse, int8_t* codes) {
  FASTAGG_NO_CARRY
  for (int64_t i = 0; i < n; ++i) {
    const int32_t code = number_of(static_cast<Whole>(bits_of(in[i] * inverse + kWhole)));
    codes[i] = static_cast<int8_t>(code > 127 ? 127 : code < -127 ? -127 : code);
  }
}

// Bits of the largest magnitude; those of infinity and NaN are the largest.
uint32_t largest_block(const float* in, int64_t n) {
  int32_t most = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t pattern = static_cast<int32_t>(bits_of(in[i]) & 0x7fffffffu);
    most = pattern > most ? pattern : most;
  }
  return static_cast<uint32_t>(most);
}

void encode_two_bits_block(const float* in, int64_t n, const uint32_t* words, uint8_t* codes, float* scales) {
  for (int64_t b = 0; b < n; b += kScaleBlock) {
    const int64_t end = n - b < kScaleBlock ? n - b : kScaleBlock;
    const float scale = scale_of(float_from_bits(largest_block(in + b, end)), 1.0f), inverse = 1.0f / scale;
    scales[b / kScaleBlock] = scale;
    for (int64_t i = 0; i < end; ++i) {
      const uint32_t word = words[b / kScaleBlock * kCalls + i % kHalf];
      const uint32_t code = put_two_bits(in[b + i], inverse, i < kHalf ? word & 0xffffu : word >> 16);
      uint8_t& byte = codes[(b + i) / 4];
      byte = static_cast<uint8_t>(i % 4 == 0 ? code : byte | code << (2 * (i % 4)));
    }
  }
}
