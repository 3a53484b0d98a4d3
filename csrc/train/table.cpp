// Builds a network's table (net.h) once: the shapes of its images, its memory, and its lists of offsets.
#include "table.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>

#include "../cpu/floats.h"
#include "../cpu/kernels.h"
#include "../refusal.h"
#include "../store/blocks.h"

namespace fastagg::train {
namespace {

constexpr int64_t kInCache = 1 << 19;  // a block's images have at most this many bytes, unless one sample has more
constexpr int64_t kLongEnough = 64;    // with at least so many rows, a product loses little time to an incomplete tile

void need(bool holds, const std::string& what) {
  if (!holds) throw Refusal(Why::kSetting, "train: " + what);
}

int64_t whole_groups(int64_t channels) { return (channels + kChannels - 1) / kChannels * kChannels; }

// One side (height or width) of a convolution, for the gradient of its input. Phases and taps are as in net.h. From
// each tap that reaches a phase, pixel i of the phase gets the gradient of output pixel i + reach times a weight.
struct Side {
  int64_t size, out, kernel, stride, padding;

  bool whole() const { return out == 1 && padding == 0 && kernel == size; }
  // If the kernel covers the whole side, each pixel is a phase of its own, and only one tap reaches the phase.
  int64_t phases() const { return whole() ? size : stride; }
  int64_t pixels(int64_t phase) const { return whole() ? 1 : (size - phase + stride - 1) / stride; }
  int64_t pixel(int64_t phase, int64_t i) const { return whole() ? phase : phase + i * stride; }
  bool reaches(int64_t phase, int64_t tap) const {
    return whole() ? tap == phase : (phase + padding - tap) % stride == 0;
  }
  int64_t reach(int64_t phase, int64_t tap) const { return whole() ? 0 : (phase + padding - tap) / stride; }
  int64_t border() const {
    int64_t count = 0;
    for (int64_t phase = 0; phase < phases(); ++phase)
      for (int64_t tap = 0; tap < kernel; ++tap)
        if (reaches(phase, tap) && pixels(phase) > 0)
          count = std::max({count, -reach(phase, tap), pixels(phase) - 1 + reach(phase, tap) - (out - 1)});
    return count;
  }
};

}  // namespace

struct LayerTable::TableMemory {
  std::mutex mutex;
  std::vector<store::Block> idle;
};

class LayerTable::Builder {
 public:
  Builder(LayerTable& to, ImageShape input, const std::vector<Description>& descriptions)
      : to_(to), descriptions_(descriptions) {
    images_.push_back(image(input.channels, input.height, input.width));
    for (const Description& each : descriptions_) images_.push_back(output_of(each));
    const Image& last = images_.back();
    need(last.height == 1 && last.width == 1, "the last layer's output is an image");
    share_borders();
    place_pixels();
    add_layers();
    mark_parts();
    place_memory();
    add_lists();
  }

 private:
  static Image image(int64_t channels, int64_t height, int64_t width) {
    constexpr int64_t largest = 1 << 20;
    need(channels > 0 && height > 0 && width > 0 && channels < largest && height < largest && width < largest,
         "empty image");
    Image result{};
    result.channels = channels;
    result.height = height;
    result.width = width;
    return result;
  }

  static Side side(const Description& description, const Image& in, const Image& out, int which) {
    return {which ? in.width : in.height, which ? out.width : out.height, description.kernel[which],
            description.stride[which], description.padding[which]};
  }

  // Whether the output's height or width may differ from the input's.
  static bool reshapes(const Description& description) {
    return description.kind == "convolution" || description.kind == "max_pool" || description.kind == "mean_pool" ||
           description.kind == "flatten";
  }

  Image output_of(const Description& description) const {
    const auto known = static_cast<int64_t>(images_.size());
    need(description.in >= 0 && description.in < known && description.other < known, "no such input");
    const Image& in = images_[static_cast<size_t>(description.in)];
    if (description.kind == "flatten") return image(in.channels * in.height * in.width, 1, 1);
    if (!reshapes(description)) {
      if (description.other >= 0) {
        const Image& other = images_[static_cast<size_t>(description.other)];
        need(other.channels == in.channels && other.height == in.height && other.width == in.width,
             "terms of different shapes");
      }
      need(description.groups > 0 && in.channels % description.groups == 0, "groups that do not divide the channels");
      return image(in.channels, in.height, in.width);
    }
    int64_t out[2];
    for (int k = 0; k < 2; ++k) {
      const int64_t size = k ? in.width : in.height;
      need(description.kernel[k] > 0 && description.stride[k] > 0 && description.padding[k] >= 0 &&
               description.padding[k] < description.kernel[k] &&
               description.kernel[k] <= size + 2 * description.padding[k],
           "a window that does not fit");
      need(description.kind != "mean_pool" || description.padding[k] == 0, "mean pooling with padding");
      out[k] = (size + 2 * description.padding[k] - description.kernel[k]) / description.stride[k] + 1;
    }
    return image(description.kind == "convolution" ? description.channels : in.channels, out[0], out[1]);
  }

  // Makes each image's border as wide as any layer needs. A layer that keeps height and width needs equal borders of
  // its input and its output.
  void share_borders() {
    for (size_t i = 0; i < descriptions_.size(); ++i) {
      if (descriptions_[i].kind != "convolution") continue;
      Image &in = images_[static_cast<size_t>(descriptions_[i].in)], &out = images_[i + 1];
      in.border = std::max({in.border, descriptions_[i].padding[0], descriptions_[i].padding[1]});
      for (int k = 0; k < 2; ++k) out.border = std::max(out.border, side(descriptions_[i], in, out, k).border());
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < descriptions_.size(); ++i) {
        if (reshapes(descriptions_[i])) continue;
        std::vector<Image*> all{&images_[i + 1], &images_[static_cast<size_t>(descriptions_[i].in)]};
        if (descriptions_[i].other >= 0) all.push_back(&images_[static_cast<size_t>(descriptions_[i].other)]);
        int64_t widest = 0;
        for (const Image* each : all) widest = std::max(widest, each->border);
        for (Image* each : all) {
          changed = changed || each->border != widest;
          each->border = widest;
        }
      }
    }
  }

  void place_pixels() {
    for (Image& each : images_) {
      each.padded = whole_groups(each.channels);
      // A convolution reads single elements of its input. So if only convolutions read the network's input, the input
      // needs no padding channels.
      if (&each == &images_.front() &&
          std::all_of(descriptions_.begin(), descriptions_.end(), [](const Description& description) {
            return (description.in != 0 || description.kind == "convolution") && description.other != 0;
          }))
        each.padded = each.channels;
      each.row = (each.width + 2 * each.border) * each.padded;
      each.sample = (each.height + 2 * each.border) * each.row;
      each.first = each.border * (each.row + each.padded);
      each.slopes = -1;
    }
  }

  int64_t pack(int64_t count) {
    const int64_t place = to_.net_.packed;
    to_.net_.packed += count;
    return place;
  }

  void place(int64_t flat, int64_t packed) { to_.places_[static_cast<size_t>(flat)] = static_cast<int32_t>(packed); }

  // Packs a vector with an element for each channel. Returns the vector's place among the packed parameters.
  int64_t pack_channels(int64_t flat, const Image& image) {
    need(flat >= 0 && flat + image.channels <= to_.parameters_, "parameters outside the model");
    const int64_t first = pack(whole_groups(image.channels));
    for (int64_t c = 0; c < image.channels; ++c) place(flat + c, first + c);
    return first;
  }

  // Packs torch's weights [out, in, height, width] in groups of 16 outputs, each [height, width, in, 16].
  int64_t pack_weights(const Description& description, const Image& in, const Image& out) {
    const int64_t taps = description.kernel[0] * description.kernel[1], depth = taps * in.channels;
    need(description.weight >= 0 && description.weight + out.channels * depth <= to_.parameters_,
         "parameters outside the model");
    const int64_t first = pack(whole_groups(out.channels) * depth);
    for (int64_t o = 0; o < out.channels; ++o)
      for (int64_t tap = 0; tap < taps; ++tap)
        for (int64_t c = 0; c < in.channels; ++c)
          place(description.weight + (o * in.channels + c) * taps + tap,
                first + weight_at(o, tap * in.channels + c, depth));
    return first;
  }

  static int64_t weight_at(int64_t out, int64_t k, int64_t depth) {
    return (out / kChannels * depth + k) * kChannels + out % kChannels;
  }

  void add_layers() {
    zero_ = pack(kChannels);  // no parameter has these places, so these floats stay zero
    static const std::map<std::string, LayerKind> kinds{
        {"convolution", kConvolution}, {"batch_norm", kNormalise}, {"group_norm", kGroupNorm}, {"sum", kSum},
        {"max_pool", kMaxPool},        {"mean_pool", kMeanPool},   {"flatten", kFlatten}};
    for (size_t i = 0; i < descriptions_.size(); ++i) {
      const Description& description = descriptions_[i];
      const auto kind = kinds.find(description.kind);
      need(kind != kinds.end(), "unknown layer '" + description.kind + "'");
      const Image &in = images_[static_cast<size_t>(description.in)], &out = images_[i + 1];
      Layer layer{};
      layer.kind = kind->second;
      layer.relu = description.relu;
      layer.in = static_cast<int32_t>(description.in);
      layer.other = static_cast<int32_t>(description.other);
      layer.out = static_cast<int32_t>(i + 1);
      std::copy(description.kernel.begin(), description.kernel.end(), layer.kernel);
      std::copy(description.stride.begin(), description.stride.end(), layer.stride);
      std::copy(description.padding.begin(), description.padding.end(), layer.padding);
      layer.groups = description.groups;
      layer.eps = description.eps;
      layer.momentum = description.momentum;
      layer.mean = description.mean;
      layer.variance = description.variance;
      layer.bias = -1;
      if (layer.kind == kConvolution) {
        layer.weight = pack_weights(description, in, out);
        layer.depth = in.channels * description.kernel[0] * description.kernel[1];
        if (description.bias >= 0) layer.bias = pack_channels(description.bias, out);
      } else if (layer.kind == kNormalise || layer.kind == kGroupNorm) {
        layer.weight = pack_channels(description.weight, out);
        layer.bias = pack_channels(description.bias, out);
      }
      if (layer.kind == kNormalise) {
        Layer sums = layer;
        sums.kind = kMoments;
        sums.out = sums.in;
        to_.layers_.push_back(sums);
      }
      to_.layers_.push_back(layer);
    }
    Layer last{};
    last.kind = kLoss;
    last.in = last.out = static_cast<int32_t>(descriptions_.size());
    last.other = -1;
    to_.layers_.push_back(last);
  }

  // Marks images that need gradients, and layers that add to a gradient because another layer writes to it first.
  void mark_parts() {
    learns_.assign(images_.size(), false);
    readers_.assign(images_.size(), 0);
    for (const Layer& each : to_.layers_) {
      const auto in = static_cast<size_t>(each.in), out = static_cast<size_t>(each.out);
      if (each.kind != kMoments) ++readers_[in];
      if (each.other >= 0) ++readers_[static_cast<size_t>(each.other)];
      if (each.kind == kMoments || each.kind == kLoss) continue;
      learns_[out] = learns_[in] || each.kind == kConvolution || each.kind == kNormalise || each.kind == kGroupNorm ||
                     (each.other >= 0 && learns_[static_cast<size_t>(each.other)]);
    }
    std::vector<bool> has_slope(images_.size(), false);
    for (auto each = to_.layers_.rbegin(); each != to_.layers_.rend(); ++each) {
      if (each->kind == kNormalise) continue;  // the layer before, kMoments, writes the gradient of the input
      each->adds = has_slope[static_cast<size_t>(each->in)];
      has_slope[static_cast<size_t>(each->in)] = true;
      if (each->other < 0) continue;
      each->other_adds = has_slope[static_cast<size_t>(each->other)];
      has_slope[static_cast<size_t>(each->other)] = true;
    }
    for (Layer& each : to_.layers_)  // kMoments gets the output of the BatchNorm's kNormalise
      if (each.kind == kMoments) each.out = (&each + 1)->out;
  }

  int64_t take(int64_t floats) {
    const int64_t place = to_.workspace_;
    to_.workspace_ += whole_groups(floats);
    need(to_.workspace_ < std::numeric_limits<int32_t>::max(), "a network that needs more than 8 GB");
    return place;
  }

  void place_memory() {
    int64_t a_sample = 0;
    for (const Image& each : images_) a_sample += 2 * each.sample * static_cast<int64_t>(sizeof(float));
    to_.net_.block = std::clamp<int64_t>(kInCache / a_sample, 1, to_.net_.batch);
    for (size_t i = 0; i < images_.size(); ++i) {
      images_[i].values = take(to_.net_.batch * images_[i].sample);
      if (learns_[i]) images_[i].slopes = take(to_.net_.batch * images_[i].sample);
    }
    for (auto each = to_.layers_.rbegin(); each != to_.layers_.rend(); ++each) {
      Image& in = images_[static_cast<size_t>(each->in)];
      const Image& out = images_[static_cast<size_t>(each->out)];
      // If no other layer reads a norm's input, the input's gradient has the same memory as the output's gradient.
      if ((each->kind == kMoments || each->kind == kGroupNorm) && in.slopes >= 0 &&
          readers_[static_cast<size_t>(each->in)] == 1)
        in.slopes = out.slopes;
      if (each->kind == kMoments) each->scratch = (&*each + 1)->scratch = take(7 * out.padded);
      if (each->kind == kGroupNorm) each->scratch = take((6 + 2 * to_.net_.batch) * out.padded);
    }
    Net& net = to_.net_;
    for (int64_t* each : {&net.weights, &net.gradient, &net.velocity, &net.anchor}) *each = take(net.packed);
  }

  int32_t* list(int64_t count) { return to_.lists_.emplace_back(static_cast<size_t>(count)).data(); }

  void add_lists() {
    int64_t longest = 1;
    for (Layer& layer : to_.layers_) {
      if (layer.kind != kConvolution) continue;
      const Image &in = images_[static_cast<size_t>(layer.in)], &out = images_[static_cast<size_t>(layer.out)];
      layer.pixels = out.height * out.width;
      layer.group = (kLongEnough + layer.pixels - 1) / layer.pixels;
      if (out.sample != out.padded) layer.group = std::min(layer.group, to_.net_.block);
      int32_t *windows = list(layer.group * layer.pixels), *places = list(layer.group * layer.pixels);
      int32_t* reach = list(layer.depth);
      layer.windows = windows;
      layer.places = places;
      layer.reach = reach;
      for (int64_t s = 0; s < layer.group; ++s)
        for (int64_t y = 0; y < out.height; ++y)
          for (int64_t x = 0; x < out.width; ++x) {
            *windows++ =
                static_cast<int32_t>(s * in.sample + in.first + (y * layer.stride[0] - layer.padding[0]) * in.row +
                                     (x * layer.stride[1] - layer.padding[1]) * in.padded);
            *places++ = static_cast<int32_t>(s * out.sample + out.first + y * out.row + x * out.padded);
          }
      for (int64_t y = 0; y < layer.kernel[0]; ++y)
        for (int64_t x = 0; x < layer.kernel[1]; ++x)
          for (int64_t c = 0; c < in.channels; ++c) *reach++ = static_cast<int32_t>(y * in.row + x * in.padded + c);
      longest = std::max(longest, layer.depth);
      if (in.slopes >= 0) longest = std::max(longest, add_phases(layer, in, out));
    }
    int32_t* lines = list(longest);
    for (int64_t i = 0; i < longest; ++i) lines[i] = static_cast<int32_t>(i * kChannels);
    Net& net = to_.net_;
    net.lines = lines;
    net.turned = static_cast<int64_t>(to_.turning_.size());
    net.turned_weights = take(net.turned);
  }

  // Adds a convolution's phases. Returns the largest depth of a phase.
  int64_t add_phases(Layer& layer, const Image& in, const Image& out) {
    const Description& description = descriptions_[static_cast<size_t>(layer.out) - 1];
    const Side rows = side(description, in, out, 0), columns = side(description, in, out, 1);
    std::vector<Phase>& phases = to_.phases_.emplace_back();
    int64_t longest = 0;
    for (int64_t py = 0; py < rows.phases(); ++py)
      for (int64_t px = 0; px < columns.phases(); ++px) {
        Phase phase{};
        const int64_t height = rows.pixels(py), width = columns.pixels(px);
        phase.rows = layer.group * height * width;
        if (phase.rows == 0) continue;
        int32_t *targets = list(phase.rows), *sources = list(phase.rows);
        phase.targets = targets;
        phase.sources = sources;
        for (int64_t s = 0; s < layer.group; ++s)
          for (int64_t y = 0; y < height; ++y)
            for (int64_t x = 0; x < width; ++x) {
              *targets++ = static_cast<int32_t>(s * in.sample + in.first + rows.pixel(py, y) * in.row +
                                                columns.pixel(px, x) * in.padded);
              *sources++ = static_cast<int32_t>(s * out.sample + out.first + y * out.row + x * out.padded);
            }
        std::vector<int64_t> taps;
        std::vector<int32_t> reach;
        for (int64_t y = 0; y < layer.kernel[0]; ++y)
          for (int64_t x = 0; x < layer.kernel[1]; ++x) {
            if (!rows.reaches(py, y) || !columns.reaches(px, x)) continue;
            taps.push_back(y * layer.kernel[1] + x);
            for (int64_t o = 0; o < out.channels; ++o)
              reach.push_back(
                  static_cast<int32_t>(rows.reach(py, y) * out.row + columns.reach(px, x) * out.padded + o));
          }
        phase.depth = static_cast<int64_t>(reach.size());
        phase.weights = turn(layer, in, out, taps);
        int32_t* to = list(phase.depth);
        std::copy(reach.begin(), reach.end(), to);
        phase.reach = to;
        longest = std::max(longest, phase.depth);
        phases.push_back(phase);
      }
    layer.phases = phases.data();
    layer.phase_count = static_cast<int64_t>(phases.size());
    return longest;
  }

  // Appends the places of these taps' weights to `turning_`, in groups of 16 input channels, each [taps, out, 16].
  // Returns the index of the first place.
  int64_t turn(const Layer& layer, const Image& in, const Image& out, const std::vector<int64_t>& taps) {
    const auto first = static_cast<int64_t>(to_.turning_.size());
    const int64_t depth = static_cast<int64_t>(taps.size()) * out.channels;
    to_.turning_.resize(static_cast<size_t>(first + whole_groups(in.channels) * depth), static_cast<int32_t>(zero_));
    for (size_t t = 0; t < taps.size(); ++t)
      for (int64_t o = 0; o < out.channels; ++o)
        for (int64_t c = 0; c < in.channels; ++c)
          to_.turning_[static_cast<size_t>(first + weight_at(c, static_cast<int64_t>(t) * out.channels + o, depth))] =
              static_cast<int32_t>(layer.weight + weight_at(o, taps[t] * in.channels + c, layer.depth));
    return first;
  }

  LayerTable& to_;
  const std::vector<Description>& descriptions_;
  std::vector<Image>& images_ = to_.images_;
  int64_t zero_ = 0;
  std::vector<bool> learns_;
  std::vector<int> readers_;
};

LayerTable::LayerTable(ImageShape input, const std::vector<Description>& layers, int64_t batch, int64_t parameters,
                       int64_t buffers)
    : places_(static_cast<size_t>(std::max<int64_t>(parameters, 0))),
      parameters_(parameters),
      memory_(std::make_unique<TableMemory>()) {
  need(batch > 0 && batch < 1 << 20, "batch: expected 1..1048575");
  need(parameters >= 0 && parameters < std::numeric_limits<int32_t>::max(), "too many parameters");
  for (const Description& each : layers)
    need(each.mean < buffers && each.variance < buffers &&
             (each.kind != "batch_norm" || (each.mean >= 0 && each.variance >= 0)),
         "running statistics outside the model");
  net_.batch = batch;
  Builder(*this, input, layers);
  net_.images = images_.data();
  net_.layers = layers_.data();
  net_.layer_count = static_cast<int64_t>(layers_.size());
  net_.places = places_.data();
  net_.parameters = parameters_;
  net_.turning = turning_.data();
}

LayerTable::~LayerTable() = default;

void LayerTable::train(const TrainCall& call) {
  const cpu::PlainFloats plain;
  store::Block memory;
  {
    const std::lock_guard<std::mutex> lock(memory_->mutex);
    if (!memory_->idle.empty()) {
      memory = std::move(memory_->idle.back());
      memory_->idle.pop_back();
    }
  }
  // Borders and padding channels must be zeros. Training never writes other values to them.
  if (memory == nullptr) {
    const size_t nbytes = static_cast<size_t>(workspace_) * sizeof(float);
    memory = store::block_of(nbytes);
    std::memset(memory.get(), 0, nbytes);
  }
  cpu::kernels().train(net_, call, static_cast<float*>(memory.get()));
  const std::lock_guard<std::mutex> lock(memory_->mutex);
  memory_->idle.push_back(std::move(memory));
}

void LayerTable::evaluate(const float* start, float* buffers, const float* x, int64_t samples, float* outputs) {
  std::vector<int64_t> index(static_cast<size_t>(samples)), lengths;
  std::iota(index.begin(), index.end(), int64_t{0});
  for (int64_t done = 0; done < samples; done += net_.batch) lengths.push_back(std::min(net_.batch, samples - done));
  TrainCall call{};
  call.start = start;
  call.buffers = buffers;
  call.x = x;
  call.index = index.data();
  call.lengths = lengths.data();
  call.steps = static_cast<int64_t>(lengths.size());
  call.outputs = outputs;
  train(call);
}

}  // namespace fastagg::train
