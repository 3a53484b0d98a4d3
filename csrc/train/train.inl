// Trains one client with SGD, or computes a network's outputs, with the table of layers (net.h). cpu/kernels.inl
// includes this file for each instruction set. Results are the same for all instruction sets. The lanes of a vector are
// channels. A sum over pixels and samples has a fixed order, which depends only on the table. Products are fused
// multiply-adds (IEEE 754, one rounding).

using train::Image;
using train::kChannels;
using train::Layer;
using train::Net;
using train::Phase;
using train::TrainCall;

constexpr int64_t kPart = 64;  // the most pixels that one product for a gradient reads; few enough for the L1 cache

FASTAGG_FN F splat(float value) { return value - F{}; }  // `value + F{}` would turn -0 into 0
FASTAGG_FN F at(const float* from) { return vector_at<F>(from); }
FASTAGG_FN F rectified(F value) { return Simd::larger(F{}, value); }  // NaN stays NaN
FASTAGG_FN F rectified_slope(F slope, F value) { return (F)((U)slope & ~(U)(value <= F{})); }

struct Work {
  const Net& net;
  const TrainCall& call;
  float* memory;
  int64_t count;         // the number of samples in the batch
  const int64_t* index;  // the indices of the batch's samples in the client's data

  float* values(int32_t image) const { return memory + net.images[image].values; }
  float* slopes(int32_t image) const { return memory + net.images[image].slopes; }
  const float* weight(int64_t place) const { return memory + net.weights + place; }
  float* gradient(int64_t place) const { return memory + net.gradient + place; }
};

// A matrix product. For each row r, and each group of 16 columns of b, computes init + sum over j of a[row[r] +
// column[j]] * b[line[j]]. The result replaces out[out_row[r]], or is added to it if `add` is true. `relu`: whether
// ReLU follows.
struct Product {
  int64_t rows, depth, width;  // `width`: the used columns of b; other columns, up to the end of a group, are zeros
  const float* a;
  const int32_t *row, *column;
  const float* b;
  const int32_t* line;  // null: line[j] is 16*j
  int64_t b_group;  // in floats: the distance from one group of columns of b to the next; out_group: the same in out
  float* out;
  const int32_t* out_row;
  int64_t out_group;
  const float* init;  // by column; null: zeros
  bool add, relu;
};

// Computes tiles of a product. A tile is `Rows` rows times `Groups` groups of columns. `Vectors` vectors are a group.
// All sums of a tile fit in the CPU's registers.
template <typename Vector, int64_t Vectors, int64_t Rows, int64_t Groups>
struct Tile {
  static constexpr int64_t kLanes = sizeof(Vector) / sizeof(float), kWide = Groups * Vectors;

  // Computes rows r to r + Height - 1 of the product (fewer if the product has fewer), for `Groups` groups of columns
  // from `group` on. `Dense`: whether p.line is null, so that line[j] is 16*j.
  template <int64_t Height, bool Dense>
  FASTAGG_FN void compute(const Product& p, int64_t group, int64_t r) {
    const int64_t rows = p.rows - r, b_group = p.b_group;
    const float *b = p.b + group * b_group, *from[Height];
    Vector sum[Height][kWide];
    FASTAGG_UNROLL
    for (int64_t t = 0; t < Height; ++t) {
      from[t] = p.a + p.row[r + (t < rows ? t : rows - 1)];
      FASTAGG_UNROLL
      for (int64_t v = 0; v < kWide; ++v)
        sum[t][v] =
            p.init ? vector_at<Vector>(p.init + (group + v / Vectors) * kChannels + v % Vectors * kLanes) : Vector{};
    }
    const int32_t *column = p.column, *const end = column + p.depth, *line = p.line;
    for (; column < end; ++column) {
      const float* const place = Dense ? b : b + *line++;
      if (Dense) b += kChannels;
      Vector right[kWide];
      FASTAGG_UNROLL
      for (int64_t v = 0; v < kWide; ++v)
        right[v] = vector_at<Vector>(place + v / Vectors * b_group + v % Vectors * kLanes);
      const int64_t number = *column;
      FASTAGG_UNROLL
      for (int64_t t = 0; t < Height; ++t) {
        const Vector left = from[t][number] - Vector{};  // minus, because a plus would turn -0 into 0
        FASTAGG_UNROLL
        for (int64_t v = 0; v < kWide; ++v) sum[t][v] = Simd::multiply_add(left, right[v], sum[t][v]);
      }
    }
    FASTAGG_UNROLL
    for (int64_t t = 0; t < Height; ++t) {
      if (t >= rows) break;
      float* out = p.out + p.out_row[r + t] + group * p.out_group;
      FASTAGG_UNROLL
      for (int64_t v = 0; v < kWide; ++v) {
        float* to = out + v / Vectors * p.out_group + v % Vectors * kLanes;
        const Vector value = p.add ? vector_at<Vector>(to) + sum[t][v] : sum[t][v];
        put_vector(p.relu ? Simd::larger(Vector{}, value) : value, to);  // NaN stays NaN
      }
    }
  }

  template <bool Dense>
  static void rows(const Product& p, int64_t group) {
    int64_t r = 0;
    for (; r + Rows / 2 < p.rows; r += Rows) compute<Rows, Dense>(p, group, r);
    if (r < p.rows) compute<Rows / 2, Dense>(p, group, r);
  }

  // Computes tiles from `group` on, as long as all groups of a tile have used columns. Returns the next group.
  static int64_t groups(const Product& p, int64_t group) {
    for (; (group + Groups - 1) * kChannels < p.width; group += Groups)
      p.line ? rows<false>(p, group) : rows<true>(p, group);
    return group;
  }
};

void product(const Product& p) {
  constexpr int64_t kLanes = sizeof(Half) / sizeof(float);
  if (p.width <= kChannels / 2) {
    Tile<Half, kChannels / 2 / kLanes, 8, 1>::groups(p, 0);
  } else if constexpr (kFloats == kChannels) {
    Tile<F, 1, 6, 1>::groups(p, Tile<F, 1, 6, 2>::groups(p, 0));
  } else {
    Tile<F, kChannels / kFloats, 6, 1>::groups(p, 0);
  }
}

// Calls act(offset, count) for every row of pixels of samples first..last-1. A row has `count` floats. If the image has
// no border, all pixels of a sample are one row.
template <typename Act>
FASTAGG_FN void for_rows(const Image& image, int64_t first, int64_t last, Act act) {
  const bool whole = image.border == 0;
  const int64_t rows = whole ? 1 : image.height, step = image.width * image.padded * (whole ? image.height : 1);
  for (int64_t s = first; s < last; ++s)
    for (int64_t y = 0; y < rows; ++y) act(s * image.sample + image.first + y * image.row, step);
}

template <typename Act>
FASTAGG_FN void for_vectors(const Image& image, int64_t first, int64_t last, Act act) {
  for_rows(image, first, last, [&](int64_t offset, int64_t count) {
    for (int64_t i = offset; i < offset + count; i += kFloats) act(i);
  });
}

// Calls act(c, sums) for each vector of channels. The vector begins at channel c. `sums` are `Count` sums over one
// sample's pixels. each(offset, c) returns the sums' terms for the pixel at `offset`. Each sum has four parts, which
// are added at the end, so that an addition need not wait for the previous addition.
template <int Count>
struct LaneSums {
  F of[Count];
};
template <int Count, typename Each, typename Act>
FASTAGG_FN void sum_pixels(const Image& image, int64_t sample, Each each, Act act) {
  for (int64_t c = 0; c < image.padded; c += kFloats) {
    LaneSums<Count> part[4] = {};
    for (int64_t y = 0; y < image.height; ++y) {
      const int64_t row = sample * image.sample + image.first + y * image.row + c;
      int64_t x = 0;
      for (; x + 4 <= image.width; x += 4) {
        FASTAGG_UNROLL
        for (int64_t k = 0; k < 4; ++k) {
          const LaneSums<Count> terms = each(row + (x + k) * image.padded, c);
          for (int i = 0; i < Count; ++i) part[k].of[i] += terms.of[i];
        }
      }
      for (; x < image.width; ++x) {
        const LaneSums<Count> terms = each(row + x * image.padded, c);
        for (int i = 0; i < Count; ++i) part[0].of[i] += terms.of[i];
      }
    }
    LaneSums<Count> sums;
    for (int i = 0; i < Count; ++i) sums.of[i] = (part[0].of[i] + part[1].of[i]) + (part[2].of[i] + part[3].of[i]);
    act(c, sums);
  }
}

void convolve(const Work& w, const Layer& layer, int64_t first, int64_t last) {
  const Image &in = w.net.images[layer.in], &out = w.net.images[layer.out];
  for (int64_t s = first; s < last; s += layer.group) {
    const int64_t count = s + layer.group < last ? layer.group : last - s;
    product({count * layer.pixels, layer.depth, out.channels, w.values(layer.in) + s * in.sample, layer.windows,
             layer.reach, w.weight(layer.weight), nullptr, layer.depth * kChannels,
             w.values(layer.out) + s * out.sample, layer.places, kChannels,
             layer.bias < 0 ? nullptr : w.weight(layer.bias), false, layer.relu});
  }
}

void rectify_slopes(const Work& w, const Layer& layer, int64_t first, int64_t last) {
  const float* y = w.values(layer.out);
  float* dy = w.slopes(layer.out);
  for_vectors(w.net.images[layer.out], first, last,
              [&](int64_t i) { put_vector(rectified_slope(at(dy + i), at(y + i)), dy + i); });
}

void convolve_back(const Work& w, const Layer& layer, int64_t first, int64_t last) {
  const Image &in = w.net.images[layer.in], &out = w.net.images[layer.out];
  if (layer.relu) rectify_slopes(w, layer, first, last);
  const float* dy = w.slopes(layer.out);
  if (layer.bias >= 0) {
    float* bias = w.gradient(layer.bias);
    for (int64_t s = first; s < last; ++s)
      sum_pixels<1>(
          out, s, [&](int64_t i, int64_t) { return LaneSums<1>{{at(dy + i)}}; },
          [&](int64_t c, const LaneSums<1>& sums) {
            put_vector(s == 0 ? sums.of[0] : at(bias + c) + sums.of[0], bias + c);
          });
  }
  for (int64_t s = first; s < last; s += layer.group) {
    const int64_t count = s + layer.group < last ? layer.group : last - s;
    for (int64_t j = 0; j < count * layer.pixels; j += kPart) {
      const int64_t left = count * layer.pixels - j;
      product({layer.depth, left < kPart ? left : kPart, out.channels, w.values(layer.in) + s * in.sample, layer.reach,
               layer.windows + j, dy + s * out.sample, layer.places + j, kChannels, w.gradient(layer.weight),
               w.net.lines, layer.depth * kChannels, nullptr, s + j != 0, false});
    }
    if (in.slopes < 0) continue;
    // The outer loop takes kPart rows of every phase at a time, so that all phases read the same part of `dy`.
    int64_t largest = 0;
    for (int64_t i = 0; i < layer.phase_count; ++i)
      largest = layer.phases[i].rows > largest ? layer.phases[i].rows : largest;
    for (int64_t r = 0; r < largest; r += kPart)
      for (int64_t i = 0; i < layer.phase_count; ++i) {
        const Phase& phase = layer.phases[i];
        const int64_t left = phase.rows / layer.group * count - r;
        if (left <= 0) continue;
        product({left < kPart ? left : kPart, phase.depth, in.channels, dy + s * out.sample, phase.sources + r,
                 phase.reach, w.memory + w.net.turned_weights + phase.weights, nullptr, phase.depth * kChannels,
                 w.slopes(layer.in) + s * in.sample, phase.targets + r, kChannels, nullptr, layer.adds, false});
      }
  }
}

// Computes y = x*scale + shift, then ReLU if `layer.relu`. `scale` and `shift` have an element for each channel.
FASTAGG_FN void scaled(const Work& w, const Layer& layer, int64_t first, int64_t last, const float* scale,
                       const float* shift) {
  const Image& image = w.net.images[layer.out];
  const float* x = w.values(layer.in);
  float* y = w.values(layer.out);
  for_rows(image, first, last, [&](int64_t offset, int64_t count) {
    for (int64_t pixel = offset; pixel < offset + count; pixel += image.padded)
      for (int64_t c = 0; c < image.padded; c += kFloats) {
        const F value = Simd::multiply_add(at(x + pixel + c), at(scale + c), at(shift + c));
        put_vector(layer.relu ? rectified(value) : value, y + pixel + c);
      }
  });
}

// Computes the gradient of a norm's result before the layer's ReLU: dy where the result of `scaled` is positive,
// otherwise 0. Computes that result again from x. Without a ReLU, returns dy.
struct Slope {
  const Layer& layer;
  const float *scale, *shift;

  F operator()(F dy, F x, int64_t c) const {
    return layer.relu ? rectified_slope(dy, Simd::multiply_add(x, at(scale + c), at(shift + c))) : dy;
  }
};

// Computes dx = dy*a + x*b + c, or adds this value to dx if `layer.adds`. dy is the result of `slope`. a, b and c have
// an element for each channel. dx may have the memory of the output's gradient.
FASTAGG_FN void scaled_back(const Work& w, const Slope& slope, int64_t first, int64_t last, const float* a,
                            const float* b, const float* c) {
  const Layer& layer = slope.layer;
  const Image& image = w.net.images[layer.out];
  const float *x = w.values(layer.in), *dy = w.slopes(layer.out);
  float* dx = w.slopes(layer.in);
  for_rows(image, first, last, [&](int64_t offset, int64_t count) {
    for (int64_t pixel = offset; pixel < offset + count; pixel += image.padded)
      for (int64_t k = 0; k < image.padded; k += kFloats) {
        const int64_t i = pixel + k;
        const F value = at(x + i), gradient = slope(at(dy + i), value, k);
        const F input_slope = Simd::multiply_add(gradient, at(a + k), Simd::multiply_add(value, at(b + k), at(c + k)));
        put_vector(layer.adds ? at(dx + i) + input_slope : input_slope, dx + i);
      }
  });
}

// Computes the sums of dy (after `slope`) and of dy*(x - mean) over a sample's pixels. `act` is as in sum_pixels.
template <typename Act>
FASTAGG_FN void slope_sums(const Work& w, const Slope& slope, int64_t sample, const float* mean, Act act) {
  const float *x = w.values(slope.layer.in), *dy = w.slopes(slope.layer.out);
  sum_pixels<2>(
      w.net.images[slope.layer.out], sample,
      [&](int64_t i, int64_t c) {
        const F value = at(x + i), gradient = slope(at(dy + i), value, c);
        return LaneSums<2>{{gradient, gradient * (value - at(mean + c))}};
      },
      act);
}

// The scratch memory of BatchNorm. Each array has an element for each channel. `squares`: the sum of squared distances
// from the mean, or the running variance if nothing is trained. `inverse`: 1/(standard deviation). `scale`, `shift`: as
// in `scaled`. `beta`, `gamma`: the sums of `slope_sums`.
struct Norm {
  float *mean, *squares, *inverse, *scale, *shift, *beta, *gamma;
  Norm(const Work& w, const Layer& layer) {
    const int64_t padded = w.net.images[layer.out].padded;
    float* from = w.memory + layer.scratch;
    float** all[] = {&mean, &squares, &inverse, &scale, &shift, &beta, &gamma};
    for (float** each : all) {
      *each = from;
      from += padded;
    }
  }
};

// Updates the batch's mean and sum of squares with samples first..last-1 (Chan, Golub and LeVeque 1979).
void moments(const Work& w, const Layer& layer, int64_t first, int64_t last) {
  if (w.call.outputs) return;
  const Norm norm(w, layer);
  const Image& image = w.net.images[layer.in];
  const float* x = w.values(layer.in);
  const float pixels = static_cast<float>(image.height * image.width);
  for (int64_t s = first; s < last; ++s) {
    const float before = static_cast<float>(s) * pixels, share = pixels / (before + pixels), between = before * share;
    sum_pixels<1>(
        image, s, [&](int64_t i, int64_t) { return LaneSums<1>{{at(x + i)}}; },
        [&](int64_t c, const LaneSums<1>& sums) { put_vector(sums.of[0] / splat(pixels), norm.shift + c); });
    sum_pixels<1>(
        image, s,
        [&](int64_t i, int64_t c) {
          const F away = at(x + i) - at(norm.shift + c);
          return LaneSums<1>{{away * away}};
        },
        [&](int64_t c, const LaneSums<1>& sums) {
          const F mean = at(norm.shift + c), old = s == 0 ? F{} : at(norm.mean + c), away = mean - old;
          put_vector(s == 0 ? mean : Simd::multiply_add(away, splat(share), old), norm.mean + c);
          put_vector(s == 0 ? sums.of[0] : at(norm.squares + c) + (sums.of[0] + away * away * between),
                     norm.squares + c);
        });
  }
}

void finish_moments(const Work& w, const Layer& layer) {
  const Norm norm(w, layer);
  const Image& image = w.net.images[layer.in];
  const bool learns = w.call.outputs == nullptr;
  const float count = learns ? static_cast<float>(w.count * image.height * image.width) : 1.0f;
  const float *gain = w.weight(layer.weight), *offset = w.weight(layer.bias);
  float *mean = w.call.buffers + layer.mean, *variance = w.call.buffers + layer.variance;
  if (!learns)
    for (int64_t c = 0; c < image.channels; ++c) {
      norm.mean[c] = mean[c];
      norm.squares[c] = variance[c];
    }
  for (int64_t c = 0; c < image.padded; ++c) {
    norm.inverse[c] = 1.0f / sqrtf(norm.squares[c] / count + layer.eps);
    norm.scale[c] = norm.inverse[c] * gain[c];
    norm.shift[c] = offset[c] - norm.mean[c] * norm.scale[c];
  }
  if (!learns) return;
  for (int64_t c = 0; c < image.channels; ++c) {
    mean[c] += layer.momentum * (norm.mean[c] - mean[c]);
    variance[c] += layer.momentum * (norm.squares[c] / (count > 1.0f ? count - 1.0f : 1.0f) - variance[c]);
  }
}

void normalise_back(const Work& w, const Layer& layer, int64_t first, int64_t last) {
  const Norm norm(w, layer);
  const Slope slope{layer, norm.scale, norm.shift};
  for (int64_t s = first; s < last; ++s)
    slope_sums(w, slope, s, norm.mean, [&](int64_t c, const LaneSums<2>& sums) {
      put_vector(s == 0 ? sums.of[0] : at(norm.beta + c) + sums.of[0], norm.beta + c);
      put_vector(s == 0 ? sums.of[1] : at(norm.gamma + c) + sums.of[1], norm.gamma + c);
    });
}

// Computes b and c of `scaled_back`, so that dy*scale + x*b + c is scale*(dy - beta/n - (x - mean)*inverse^2*gamma/n).
// n is the number of a channel's values. b replaces `gamma`, c replaces `squares`. Also writes the gradients of weight
// and bias.
void finish_normalise_back(const Work& w, const Layer& layer) {
  const Norm norm(w, layer);
  const Image& image = w.net.images[layer.in];
  const float count = static_cast<float>(w.count * image.height * image.width);
  float *gain = w.gradient(layer.weight), *offset = w.gradient(layer.bias);
  for (int64_t c = 0; c < image.padded; ++c) {
    gain[c] = norm.gamma[c] * norm.inverse[c];
    offset[c] = norm.beta[c];
    const float slope = norm.scale[c] * norm.inverse[c] * gain[c] / count;
    norm.squares[c] = norm.mean[c] * slope - norm.scale[c] * norm.beta[c] / count;
    norm.gamma[c] = -slope;
  }
}

void moments_back(const Work& w, const Layer& layer, int64_t first, int64_t last) {
  const Norm norm(w, layer);
  const Slope slope{*(&layer + 1), norm.scale, norm.shift};  // kNormalise follows kMoments in the table
  scaled_back(w, slope, first, last, norm.scale, norm.gamma, norm.squares);
}

// The scratch memory of GroupNorm. Each array has an element for each channel. `sums`, `products`: sums over a sample's
// pixels. `scale`, `shift`: as in `scaled`. `slope`, `rest`: b and c of `scaled_back`. `own`: for each sample, the mean
// and 1/(standard deviation).
struct GroupScratch {
  float *sums, *products, *scale, *shift, *slope, *rest, *own;
  int64_t padded;
  GroupScratch(const Work& w, const Layer& layer) : padded(w.net.images[layer.out].padded) {
    float* from = w.memory + layer.scratch;
    float** all[] = {&sums, &products, &scale, &shift, &slope, &rest, &own};
    for (float** each : all) {
      *each = from;
      from += padded;
    }
  }
  float* mean(int64_t sample) const { return own + 2 * sample * padded; }
  float* inverse(int64_t sample) const { return own + (2 * sample + 1) * padded; }
  void transform(int64_t sample, const float* gain, const float* offset) const {
    for (int64_t c = 0; c < padded; ++c) {
      scale[c] = inverse(sample)[c] * gain[c];
      shift[c] = offset[c] - mean(sample)[c] * scale[c];
    }
  }
};

// For each group of channels: sets `out` of the group's channels to finish(sum, c). `sum` is the sum of the group's
// values. If `gain` is not null, each value is multiplied by its channel's gain. c is the group's first channel.
template <typename Finish>
FASTAGG_FN void over_group(const Layer& layer, int64_t channels, const float* values, const float* gain, float* out,
                           Finish finish) {
  const int64_t size = channels / layer.groups;
  for (int64_t g = 0; g < channels; g += size) {
    float sum = 0.0f;
    for (int64_t c = g; c < g + size; ++c) sum += gain ? values[c] * gain[c] : values[c];
    const float value = finish(sum, g);
    for (int64_t c = g; c < g + size; ++c) out[c] = value;
  }
}

void group_norm(const Work& w, const Layer& layer, int64_t first, int64_t last) {
  const GroupScratch scratch(w, layer);
  const Image& image = w.net.images[layer.in];
  const float* x = w.values(layer.in);
  const float *gain = w.weight(layer.weight), *offset = w.weight(layer.bias);
  const float count = static_cast<float>(image.height * image.width * (image.channels / layer.groups));
  for (int64_t s = first; s < last; ++s) {
    float *mean = scratch.mean(s), *inverse = scratch.inverse(s);
    const auto keep = [&](int64_t c, const LaneSums<1>& sums) { put_vector(sums.of[0], scratch.sums + c); };
    sum_pixels<1>(image, s, [&](int64_t i, int64_t) { return LaneSums<1>{{at(x + i)}}; }, keep);
    over_group(layer, image.channels, scratch.sums, nullptr, mean, [&](float sum, int64_t) { return sum / count; });
    sum_pixels<1>(
        image, s,
        [&](int64_t i, int64_t c) {
          const F away = at(x + i) - at(mean + c);
          return LaneSums<1>{{away * away}};
        },
        keep);
    over_group(layer, image.channels, scratch.sums, nullptr, inverse,
               [&](float sum, int64_t) { return 1.0f / sqrtf(sum / count + layer.eps); });
    scratch.transform(s, gain, offset);
    scaled(w, layer, s, s + 1, scratch.scale, scratch.shift);
  }
}

void group_norm_back(const Work& w, const Layer& layer, int64_t first, int64_t last) {
  const GroupScratch scratch(w, layer);
  const Image& image = w.net.images[layer.in];
  const float *gain = w.weight(layer.weight), *offset = w.weight(layer.bias);
  float *gain_slope = w.gradient(layer.weight), *offset_slope = w.gradient(layer.bias);
  const float count = static_cast<float>(image.height * image.width * (image.channels / layer.groups));
  const Slope slope{layer, scratch.scale, scratch.shift};
  for (int64_t s = first; s < last; ++s) {
    const float *mean = scratch.mean(s), *inverse = scratch.inverse(s);
    scratch.transform(s, gain, offset);
    slope_sums(w, slope, s, mean, [&](int64_t c, const LaneSums<2>& sums) {
      put_vector(sums.of[0], scratch.sums + c);
      put_vector(sums.of[1], scratch.products + c);
    });
    for (int64_t c = 0; c < image.padded; ++c) {
      offset_slope[c] = s == 0 ? scratch.sums[c] : offset_slope[c] + scratch.sums[c];
      const float value = scratch.products[c] * inverse[c];
      gain_slope[c] = s == 0 ? value : gain_slope[c] + value;
    }
    if (w.net.images[layer.in].slopes < 0) continue;
    over_group(layer, image.channels, scratch.products, gain, scratch.slope,
               [&](float sum, int64_t c) { return -(inverse[c] * inverse[c] * inverse[c] * sum / count); });
    over_group(layer, image.channels, scratch.sums, gain, scratch.rest,
               [&](float sum, int64_t c) { return -(inverse[c] * sum / count) - scratch.slope[c] * mean[c]; });
    scaled_back(w, slope, s, s + 1, scratch.scale, scratch.slope, scratch.rest);
  }
}

// Adds two images. If the layer has only one input, copies the input. Then applies ReLU if `layer.relu`.
void add(const Work& w, const Layer& layer, int64_t first, int64_t last) {
  const float *a = w.values(layer.in), *b = layer.other < 0 ? nullptr : w.values(layer.other);
  float* y = w.values(layer.out);
  for_vectors(w.net.images[layer.out], first, last, [&](int64_t i) {
    const F sum = b ? at(a + i) + at(b + i) : at(a + i);
    put_vector(layer.relu ? rectified(sum) : sum, y + i);
  });
}

void add_back(const Work& w, const Layer& layer, int64_t first, int64_t last) {
  if (layer.relu) rectify_slopes(w, layer, first, last);
  const float* dy = w.slopes(layer.out);
  const auto pass = [&](int32_t image, bool adds) {
    if (image < 0 || w.net.images[image].slopes < 0) return;
    float* dx = w.slopes(image);
    for_vectors(w.net.images[layer.out], first, last,
                [&](int64_t i) { put_vector(adds ? at(dx + i) + at(dy + i) : at(dy + i), dx + i); });
  };
  pass(layer.in, layer.adds);
  pass(layer.other, layer.other_adds);
}

// Calls act(from, to) for every value of samples first..last-1. `from` is the value's offset in the image. `to` is the
// value's offset in the flattened image, which has torch's order: channels, height, width.
template <typename Act>
FASTAGG_FN void for_numbers(const Work& w, const Layer& layer, int64_t first, int64_t last, Act act) {
  const Image& in = w.net.images[layer.in];
  for (int64_t s = first; s < last; ++s) {
    int64_t to = s * w.net.images[layer.out].sample;
    for (int64_t c = 0; c < in.channels; ++c)
      for (int64_t y = 0; y < in.height; ++y)
        for (int64_t x = 0; x < in.width; ++x) act(s * in.sample + in.first + y * in.row + x * in.padded + c, to++);
  }
}

void flatten(const Work& w, const Layer& layer, int64_t first, int64_t last) {
  const float* x = w.values(layer.in);
  float* y = w.values(layer.out);
  for_numbers(w, layer, first, last, [&](int64_t from, int64_t to) { y[to] = x[from]; });
}

void flatten_back(const Work& w, const Layer& layer, int64_t first, int64_t last) {
  if (w.net.images[layer.in].slopes < 0) return;
  const float* dy = w.slopes(layer.out);
  float* dx = w.slopes(layer.in);
  for_numbers(w, layer, first, last,
              [&](int64_t to, int64_t from) { dx[to] = layer.adds ? dx[to] + dy[from] : dy[from]; });
}

// For each window of a pooling layer and each vector of channels, calls act(output offset, offset of the first input
// pixel inside the image, rows, columns). The window has rows times columns pixels inside the image.
template <typename Act>
FASTAGG_FN void for_windows(const Work& w, const Layer& layer, int64_t first, int64_t last, Act act) {
  const Image &in = w.net.images[layer.in], &out = w.net.images[layer.out];
  for (int64_t s = first; s < last; ++s)
    for (int64_t y = 0; y < out.height; ++y)
      for (int64_t x = 0; x < out.width; ++x) {
        const int64_t top = y * layer.stride[0] - layer.padding[0], left = x * layer.stride[1] - layer.padding[1];
        const int64_t from_y = top < 0 ? 0 : top, from_x = left < 0 ? 0 : left;
        const int64_t end_y = top + layer.kernel[0], end_x = left + layer.kernel[1];
        const int64_t rows = (end_y < in.height ? end_y : in.height) - from_y;
        const int64_t columns = (end_x < in.width ? end_x : in.width) - from_x;
        const int64_t from = s * in.sample + in.first + from_y * in.row + from_x * in.padded;
        const int64_t to = s * out.sample + out.first + y * out.row + x * out.padded;
        for (int64_t c = 0; c < out.padded; c += kFloats) act(to + c, from + c, rows, columns);
      }
}

void pool(const Work& w, const Layer& layer, int64_t first, int64_t last) {
  const Image& in = w.net.images[layer.in];
  const float* x = w.values(layer.in);
  float* y = w.values(layer.out);
  const bool largest = layer.kind == train::kMaxPool;
  const F share = splat(1.0f / static_cast<float>(layer.kernel[0] * layer.kernel[1]));
  for_windows(w, layer, first, last, [&](int64_t to, int64_t from, int64_t rows, int64_t columns) {
    F result = largest ? at(x + from) : F{};
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        const F each = at(x + from + i * in.row + j * in.padded);
        // As in torch, NaN counts as the largest value.
        result = largest ? chosen(~(each <= result), each, result) : result + each;
      }
    if (!largest) result = result * share;
    put_vector(layer.relu ? rectified(result) : result, y + to);
  });
}

void pool_back(const Work& w, const Layer& layer, int64_t first, int64_t last) {
  const Image& in = w.net.images[layer.in];
  if (in.slopes < 0) return;
  if (layer.relu) rectify_slopes(w, layer, first, last);
  const float *x = w.values(layer.in), *y = w.values(layer.out), *dy = w.slopes(layer.out);
  float* dx = w.slopes(layer.in);
  if (!layer.adds) for_vectors(in, first, last, [&](int64_t i) { put_vector(F{}, dx + i); });
  const F share = splat(1.0f / static_cast<float>(layer.kernel[0] * layer.kernel[1]));
  for_windows(w, layer, first, last, [&](int64_t to, int64_t from, int64_t rows, int64_t columns) {
    const F slope = at(dy + to), largest = at(y + to);
    I left = ~I{};  // lanes whose largest value was not reached yet; only the first of equal values gets the gradient
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        const int64_t place = from + i * in.row + j * in.padded;
        F part = slope * share;
        if (layer.kind == train::kMaxPool) {
          const I hit = (at(x + place) == largest) & left;
          left &= ~hit;
          part = (F)((U)slope & (U)hit);
        }
        put_vector(at(dx + place) + part, dx + place);
      }
  });
}

// Computes the gradient of the batch's mean cross-entropy loss with respect to the network's outputs.
void loss(const Work& w, const Layer& layer, int64_t first, int64_t last) {
  const Image& image = w.net.images[layer.in];
  const int64_t classes = image.channels;
  const float share = 1.0f / static_cast<float>(w.count);
  for (int64_t s = first; s < last; ++s) {
    const float* z = w.values(layer.in) + s * image.sample;
    float* slope = w.slopes(layer.in) + s * image.sample;
    float largest = z[0], sum = 0.0f;
    for (int64_t k = 1; k < classes; ++k) largest = z[k] > largest ? z[k] : largest;
    for (int64_t k = 0; k < classes; ++k) slope[k] = exp_negative(z[k] - largest);
    for (int64_t k = 0; k < classes; ++k) sum += slope[k];
    for (int64_t k = 0; k < classes; ++k) slope[k] = slope[k] / sum * share;
    slope[w.call.labels[w.index[s]]] -= share;
  }
}

// Copies samples first..last-1 of the batch into image 0. There channels come last.
void gather(const Work& w, int64_t first, int64_t last) {
  const Image& image = w.net.images[0];
  const int64_t pixels = image.height * image.width;
  for (int64_t s = first; image.padded == 1 && s < last; ++s) {
    const float* from = w.call.x + w.index[s] * pixels;
    for_rows(image, s, s + 1, [&](int64_t offset, int64_t count) {
      memcpy(w.values(0) + offset, from, static_cast<size_t>(count) * sizeof(float));
      from += count;
    });
  }
  for (int64_t s = first; image.padded > 1 && s < last; ++s)
    for (int64_t c = 0; c < image.channels; ++c) {
      const float* from = w.call.x + (w.index[s] * image.channels + c) * pixels;
      float* to = w.values(0) + s * image.sample + image.first + c;
      for (int64_t y = 0; y < image.height; ++y)
        for (int64_t x = 0; x < image.width; ++x) to[y * image.row + x * image.padded] = from[y * image.width + x];
    }
}

void forward(const Work& w, const Layer& layer, int64_t first, int64_t last) {
  switch (layer.kind) {
    case train::kConvolution: return convolve(w, layer, first, last);
    case train::kMoments: return moments(w, layer, first, last);
    case train::kNormalise: {
      const Norm norm(w, layer);
      return scaled(w, layer, first, last, norm.scale, norm.shift);
    }
    case train::kGroupNorm: return group_norm(w, layer, first, last);
    case train::kSum: return add(w, layer, first, last);
    case train::kMaxPool:
    case train::kMeanPool: return pool(w, layer, first, last);
    case train::kFlatten: return flatten(w, layer, first, last);
    case train::kLoss: return loss(w, layer, first, last);
  }
}

void backward(const Work& w, const Layer& layer, int64_t first, int64_t last) {
  if (w.net.images[layer.out].slopes < 0) return;
  switch (layer.kind) {
    case train::kConvolution: return convolve_back(w, layer, first, last);
    case train::kMoments:
      if (w.net.images[layer.in].slopes >= 0) moments_back(w, layer, first, last);
      return;
    case train::kNormalise: return normalise_back(w, layer, first, last);
    case train::kGroupNorm: return group_norm_back(w, layer, first, last);
    case train::kSum: return add_back(w, layer, first, last);
    case train::kMaxPool:
    case train::kMeanPool: return pool_back(w, layer, first, last);
    case train::kFlatten: return flatten_back(w, layer, first, last);
    case train::kLoss: return;
  }
}

// Computes all gradients of a batch, or only the batch's outputs if `call.outputs` is not null. A block of samples
// passes several layers in turn, while the block is in the cache. Two kinds of layers process all samples of the batch
// before the next layer begins: BatchNorm, because of its sums, and layers whose output is one pixel, because their
// products are fast only with many samples.
void run_batch(const Work& w) {
  const Net& net = w.net;
  const int64_t passes = w.call.outputs ? net.layer_count - 1 : 2 * net.layer_count;
  const auto layer_of = [&](int64_t pass) -> const Layer& {
    return net.layers[pass < net.layer_count ? pass : 2 * net.layer_count - 1 - pass];
  };
  const auto run = [&](int64_t pass, int64_t first, int64_t last) {
    if (pass == 0) gather(w, first, last);
    (pass < net.layer_count ? forward : backward)(w, layer_of(pass), first, last);
  };
  const auto whole = [&](int64_t pass) {
    return net.images[layer_of(pass).out].sample == net.images[layer_of(pass).out].padded;
  };
  for (int64_t pass = 0; pass < passes;) {
    int64_t end = pass;
    if (!whole(pass)) {
      while (end < passes && !whole(end)) {
        const train::LayerKind kind = layer_of(end++).kind;
        if (kind == (end <= net.layer_count ? train::kMoments : train::kNormalise)) break;
      }
      for (int64_t first = 0; first < w.count; first += net.block) {
        const int64_t last = first + net.block < w.count ? first + net.block : w.count;
        for (int64_t each = pass; each < end; ++each) run(each, first, last);
      }
    } else {
      run(end++, 0, w.count);
    }
    const Layer& latest = layer_of(end - 1);
    if (latest.kind == train::kMoments && end <= net.layer_count) finish_moments(w, latest);
    if (latest.kind == train::kNormalise && end > net.layer_count) finish_normalise_back(w, latest);
    pass = end;
  }
}

// Copies each sample's outputs to row `index` of `call.outputs`. `index` is the sample's index in the client's data.
void put_outputs(const Work& w) {
  const int32_t last = w.net.layers[w.net.layer_count - 1].in;
  const Image& image = w.net.images[last];
  for (int64_t s = 0; s < w.count; ++s)
    memcpy(w.call.outputs + w.index[s] * image.channels, w.values(last) + s * image.sample,
           static_cast<size_t>(image.channels) * sizeof(float));
}

void train_client(const Net& net, const TrainCall& call, float* memory) {
  float *weights = memory + net.weights, *gradient = memory + net.gradient, *velocity = memory + net.velocity;
  float *anchor = memory + net.anchor, *turned = memory + net.turned_weights;
  const int32_t *places = net.places, *turning = net.turning;
  const int64_t parameters = net.parameters, turns = net.turned;
  const float* start = call.start;
  memset(weights, 0, static_cast<size_t>(net.packed) * sizeof(float));
  FASTAGG_NO_CARRY
  for (int64_t i = 0; i < parameters; ++i) weights[places[i]] = start[i];
  if (call.mu != 0.0f) memcpy(anchor, weights, static_cast<size_t>(net.packed) * sizeof(float));
  Work w{net, call, memory, 0, call.index};
  for (int64_t step = 0; step < call.steps; ++step, w.index += w.count) {
    w.count = call.lengths[step];
    if (call.outputs) {
      run_batch(w);
      put_outputs(w);
      continue;
    }
    FASTAGG_NO_CARRY
    for (int64_t i = 0; i < turns; ++i) turned[i] = weights[turning[i]];
    run_batch(w);
    const F lr = splat(-call.lr), decay = splat(call.weight_decay), mu = splat(call.mu), keep = splat(call.momentum);
    for (int64_t i = 0; i < net.packed; i += kFloats) {
      const F x = at(weights + i);
      F slope = at(gradient + i);
      if (call.mu != 0.0f) slope = Simd::multiply_add(x - at(anchor + i), mu, slope);
      if (call.weight_decay != 0.0f) slope = Simd::multiply_add(x, decay, slope);
      if (call.momentum != 0.0f) {
        if (step > 0) slope = Simd::multiply_add(at(velocity + i), keep, slope);
        put_vector(slope, velocity + i);
      }
      put_vector(call.gradient ? slope : Simd::multiply_add(slope, lr, x), (call.gradient ? gradient : weights) + i);
    }
  }
  if (call.outputs) return;
  const float* values = call.gradient ? gradient : weights;
  float* out = call.out;
  FASTAGG_NO_CARRY
  for (int64_t i = 0; i < parameters; ++i) out[i] = call.gradient ? values[places[i]] : values[places[i]] - start[i];
}
