// Block kernels of the client caches: random bits, encoding and decoding rows, running sums. Included by kernels.inl,
// inside its namespace.

void random_bits_block(const RandomKey& key, int64_t block, uint16_t* bits, const float* ask) {
  const RandomKey k = key;
  constexpr uint32_t kStep = 16;
  for (uint32_t first = 0; first < kCalls; first += kStep) {
    for (int64_t line = 0; line < 8; ++line) ahead(ask + first * 8 + line * kLine);
    FASTAGG_NO_CARRY
    for (uint32_t j = first; j < first + kStep; ++j) {
      const Philox r = random_call(k, block, j);
      bits[j] = static_cast<uint16_t>(r.a);
      bits[j + 1 * kCalls] = static_cast<uint16_t>(r.a >> 16);
      bits[j + 2 * kCalls] = static_cast<uint16_t>(r.b);
      bits[j + 3 * kCalls] = static_cast<uint16_t>(r.b >> 16);
      bits[j + 4 * kCalls] = static_cast<uint16_t>(r.c);
      bits[j + 5 * kCalls] = static_cast<uint16_t>(r.c >> 16);
      bits[j + 6 * kCalls] = static_cast<uint16_t>(r.d);
      bits[j + 7 * kCalls] = static_cast<uint16_t>(r.d >> 16);
    }
  }
}

// The largest magnitude of one scale block. Bit patterns of non-negative floats order like the floats, and an integer
// maximum may be taken in any order.
FASTAGG_FN float absmax(const float* in) {
  int32_t most = 0;
  for (int64_t i = 0; i < kScaleBlock; ++i) {
    int32_t pattern;
    memcpy(&pattern, in + i, sizeof pattern);
    pattern &= 0x7fffffff;
    most = pattern > most ? pattern : most;
  }
  return float_from_bits(static_cast<uint32_t>(most));
}

void encode_float32(const float* in, const uint16_t*, RowBlock row, int64_t n, const float*) {
  memcpy(row.data, in, static_cast<size_t>(n) * sizeof(float));
}

void decode_float32(RowBlock row, float* out, int64_t n) {
  const float* in = static_cast<const float*>(row.data);
  sweep(n, [=](int64_t i) FASTAGG_INLINE { out[i] = in[i]; }, in);
}

void encode_bf16(const float* in, const uint16_t* bits, RowBlock row, int64_t n, const float* ask) {
  uint16_t* out = static_cast<uint16_t*>(row.data);
  for (int64_t line = 0; line < n; line += kLine) ahead(ask + line);
  FASTAGG_NO_CARRY
  for (int64_t i = 0; i < n; ++i) out[i] = narrow_bf16(in[i], bits[i]);
}

void decode_bf16(RowBlock row, float* out, int64_t n) {
  widen_bf16_block(static_cast<const uint16_t*>(row.data), out, n);
}

void encode_int8(const float* in, const uint16_t* bits, RowBlock row, int64_t n, const float* ask) {
  int8_t* out = static_cast<int8_t*>(row.data);
  for (int64_t b = 0; b < n; b += kScaleBlock) {
    const float scale = scale_of(absmax(in + b), 127.0f);
    const float inverse = 1.0f / scale;
    row.scales[b / kScaleBlock] = scale;
    for (int64_t line = 0; line < kScaleBlock; line += kLine) ahead(ask + b + line);
    FASTAGG_NO_CARRY
    for (int64_t i = b; i < b + kScaleBlock; ++i)
      out[i] = static_cast<int8_t>(round_up_or_down(in[i] * inverse, bits[i], 127.0f));
  }
}

void decode_int8(RowBlock row, float* out, int64_t n) {
  const int8_t* in = static_cast<const int8_t*>(row.data);
  for (int64_t b = 0; b < n; b += kScaleBlock) {
    const float scale = row.scales[b / kScaleBlock];
    for (int64_t line = 0; line < kScaleBlock; line += 64) ahead(in + b + line + 2 * kAhead);
    FASTAGG_NO_CARRY
    for (int64_t i = b; i < b + kScaleBlock; ++i) out[i] = static_cast<float>(static_cast<int32_t>(in[i])) * scale;
  }
}

void encode_int4(const float* in, const uint16_t* bits, RowBlock row, int64_t n, const float* ask) {
  constexpr int64_t kHalf = kScaleBlock / 2;
  uint8_t* out = static_cast<uint8_t*>(row.data);
  for (int64_t b = 0; b < n; b += kScaleBlock) {
    const float scale = scale_of(absmax(in + b), 7.0f);
    const float inverse = 1.0f / scale;
    row.scales[b / kScaleBlock] = scale;
    for (int64_t line = 0; line < kScaleBlock; line += kLine) ahead(ask + b + line);
    FASTAGG_NO_CARRY
    for (int64_t i = 0; i < kHalf; ++i) {
      const int64_t low = b + i, high = b + i + kHalf;
      out[b / 2 + i] = nibbles(round_up_or_down(in[low] * inverse, bits[low], 7.0f),
                               round_up_or_down(in[high] * inverse, bits[high], 7.0f));
    }
  }
}

void decode_int4(RowBlock row, float* out, int64_t n) {
  constexpr int64_t kHalf = kScaleBlock / 2;
  const uint8_t* in = static_cast<const uint8_t*>(row.data);
  for (int64_t b = 0; b < n; b += kScaleBlock) {
    const float scale = row.scales[b / kScaleBlock];
    for (int64_t line = 0; line < kHalf; line += 64) ahead(in + b / 2 + line + kAhead);
    FASTAGG_NO_CARRY
    for (int64_t i = 0; i < kHalf; ++i) {
      out[b + i] = static_cast<float>(low_nibble(in[b / 2 + i])) * scale;
      out[b + i + kHalf] = static_cast<float>(high_nibble(in[b / 2 + i])) * scale;
    }
  }
}

void exchange_block(float* high, int8_t* low, const float* entering, float entering_weight, const float* leaving,
                    float leaving_weight, int64_t n) {
  sweep(
      n,
      [=](int64_t i) FASTAGG_INLINE {
        float h = high[i];
        int8_t l = low[i];
        add_change(h, l, entering_weight * entering[i] - leaving_weight * leaving[i]);
        high[i] = h;
        low[i] = l;
      },
      high);
}

void add_exactly_block(double* total, const float* in, float weight, int64_t n) {
  FASTAGG_NO_CARRY
  for (int64_t i = 0; i < n; ++i) total[i] += static_cast<double>(weight * in[i]);
}

void settle_block(const double* total, float* high, int8_t* low, int64_t n) {
  FASTAGG_NO_CARRY
  for (int64_t i = 0; i < n; ++i) {
    const float rounded = static_cast<float>(total[i]);
    high[i] = rounded;
    low[i] = low_of(rounded, static_cast<float>(total[i] - static_cast<double>(rounded)));
  }
}

void combine_block(const float* a, float a_scale, const float* b, float b_scale, float* out, int64_t n) {
  sweep(n, [=](int64_t i) FASTAGG_INLINE { out[i] = a[i] * a_scale + b[i] * b_scale; }, b);
}

void subtract_block(const float* a, const float* b, float* out, int64_t n) {
  sweep(n, [=](int64_t i) FASTAGG_INLINE { out[i] = a[i] - b[i]; }, a, b);
}

void sketch_block(const float* in, const uint32_t* signs, float* out, int64_t n) {
  sweep(
      n,
      [=](int64_t i) FASTAGG_INLINE {
        uint32_t bits;
        memcpy(&bits, in + i, sizeof bits);
        out[i] += float_from_bits(bits ^ ((signs[i / 32] >> (i % 32)) << 31));
      },
      in);
}
