// Reads and writes blocks of encoded updates (math/wire.h). Included by kernels.inl.

template <typename Format>
FASTAGG_FN Row row_in(const Wire& wire, int64_t at) {
  float* const scales = const_cast<float*>(wire.scales);
  return {const_cast<uint8_t*>(wire.codes) + at * Format::kBits / 8,
          scales == nullptr ? nullptr : scales + at / kScaleBlock};
}

// Codes of a few bits are read and written several at a time, as a word. A word has 32 bits if Small, otherwise 64.
template <bool Small>
struct PackedWord {
  typedef uint32_t Type;
};
template <>
struct PackedWord<false> {
  typedef uint64_t Type;
};
template <typename Codec>
struct PackedCodes {
  static constexpr bool kSmall = 32 % Codec::kBits == 0;
  typedef typename PackedWord<kSmall>::Type Word;
  static constexpr int64_t kCount = kSmall ? 32 / Codec::kBits : 8;  // codes in a word
  static constexpr size_t kBytes = kCount * Codec::kBits / 8;
  static constexpr Word kMask = (Word{1} << Codec::kBits) - 1;
};

// decode_wire decodes elements at..at+n-1 of an encoded update. Each format has its own decode_wire.

template <typename Codec>
void decode_wire(DenseFormat<Codec>, const Wire& wire, int64_t at, float* out, int64_t n, int64_t ahead) {
  if constexpr (Codec::kRow >= 0) {
    decode_block<typename Codec::Row>(row_in<typename Codec::Row>(wire, at), out, n, ahead);
  } else {
    typedef PackedCodes<Codec> Packed;
    for (int64_t b = 0; b < n; b += kScaleBlock) {
      const float scale = wire.scales[(at + b) / kScaleBlock];
      const int64_t end = n - b < kScaleBlock ? n - b : kScaleBlock;
      for (int64_t i = 0; i < end; i += Packed::kCount) {
        typename Packed::Word word = 0;
        memcpy(&word, wire.codes + (at + b + i) * Codec::kBits / 8, Packed::kBytes);
        float rest[Packed::kCount];
        const bool whole = end - i >= Packed::kCount;
        float* const to = whole ? out + b + i : rest;
        for (int64_t k = 0; k < Packed::kCount; ++k)
          to[k] = Codec::value(static_cast<uint32_t>(word >> (k * Codec::kBits) & Packed::kMask), scale);
        if (!whole) memcpy(out + b + i, rest, static_cast<size_t>(end - i) * sizeof(float));
      }
    }
  }
}

void decode_wire(TensorFormat, const Wire& wire, int64_t at, float* out, int64_t n, int64_t) {
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

void decode_wire(TopKFormat, const Wire& wire, int64_t at, float* out, int64_t n, int64_t) {
  memset(out, 0, static_cast<size_t>(n) * sizeof(float));
  for (int64_t k = first_above(wire.indices, wire.count, at - 1); k < wire.count && wire.indices[k] < at + n; ++k)
    out[wire.indices[k] - at] = value_of(wire, k);
}

template <typename Format>
void decode_wire_block(const Wire& wire, int64_t at, float* out, int64_t n, int64_t ahead) {
  decode_wire(Format{}, wire, at, out, n, ahead);
}

// Encodes n numbers, of which the first begins a scale block. `codes` and `scales` are the places for the first number.
// `words` are random bits in rows.inl's order. A codec with whole scale blocks (kBlocks) also fills the rest of the
// last scale block. A row's codec encodes zeros, which must be in `in`. Other codecs write zero bits.
template <typename Codec>
void encode_block(const float* in, int64_t n, const uint32_t* words, uint8_t* codes, float* scales) {
  if constexpr (!Codec::kBlocks) {
    memcpy(codes, in, static_cast<size_t>(n) * sizeof(float));
  } else if constexpr (Codec::kRow >= 0) {
    change_block<typename Codec::Row>({in, 1.0f, words, {codes, scales}, padded(n), 0, nullptr});
  } else {
    typedef PackedCodes<Codec> Packed;
    for (int64_t b = 0; b < n; b += kScaleBlock) {
      const int64_t end = n - b < kScaleBlock ? n - b : kScaleBlock;
      const float scale = Codec::scale(in + b, end), inverse = 1.0f / scale;
      scales[b / kScaleBlock] = scale;
      for (int64_t i = 0; i < kScaleBlock; i += Packed::kCount) {
        typename Packed::Word word = 0;
        const auto add = [&](int64_t k) {
          const uint32_t pair = Codec::kRandom ? words[b / kScaleBlock * kCalls + (i + k) % kHalf] : 0;
          const uint32_t code = Codec::code(in[b + i + k], inverse, i + k < kHalf ? pair & 0xffffu : pair >> 16);
          word |= static_cast<typename Packed::Word>(code) << (k * Codec::kBits);
        };
        if (end - i >= Packed::kCount)  // with a constant number of codes, the compiler uses vectors
          for (int64_t k = 0; k < Packed::kCount; ++k) add(k);
        else
          for (int64_t k = 0; i + k < end; ++k) add(k);
        memcpy(codes + (b + i) * Codec::kBits / 8, &word, Packed::kBytes);
      }
    }
  }
}

template <typename Codec>
constexpr Encoder encoder_of(DenseFormat<Codec>) {
  return encode_block<Codec>;
}
template <typename Format>
constexpr Encoder encoder_of(Format) {
  return nullptr;
}

void encode_nearest_block(const float* in, int64_t n, float inverse, int8_t* codes) {
  FASTAGG_NO_CARRY
  for (int64_t i = 0; i < n; ++i) {
    const int32_t code = number_of(static_cast<Whole>(bits_of(in[i] * inverse + kWhole)));
    codes[i] = static_cast<int8_t>(code > 127 ? 127 : code < -127 ? -127 : code);
  }
}

uint32_t largest_block(const float* in, int64_t n) { return largest_bits(in, n); }
