// A network as a table of layers, with the places of all data that its training reads and writes.
//
// Arrays are [samples, height, width, channels] with a border of zeros. Channels are padded to whole lanes. A
// convolution reads its input through lists of offsets: for output row r, tap k is input[windows[r] + reach[k]]. So the
// forward pass and both gradients of a convolution are one product each (train.inl), and nothing is copied into
// patches. A linear layer is a convolution whose window is the whole image. Neither the lists nor the sums depend on
// the instruction set.
#pragma once

#include <stdint.h>

namespace fastagg::train {

constexpr int64_t kChannels = 16;  // the size of a group of channels, for every vector width

enum LayerKind : int32_t { kConvolution, kMoments, kNormalise, kGroupNorm, kSum, kMaxPool, kMeanPool, kFlatten, kLoss };

struct Image {
  int64_t channels, height, width;
  int64_t border, padded;  // `border`: zero pixels on each side; `padded`: channels in memory
  // steps to the next row and to the next sample, and the place of the first pixel after the border
  int64_t row, sample, first;
  int64_t values, slopes;  // places of values and gradients in the workspace; slopes < 0: no gradient is needed
};

// The pixels of a convolution's input that the same taps reach. They belong to one phase of the convolution's strides.
struct Phase {
  int64_t rows, depth;               // `rows`: pixels of a group of samples; `depth`: taps times output channels
  const int32_t *targets, *sources;  // by row: offsets in the gradients of the input and of the output
  const int32_t* reach;              // [depth] offsets from a source
  int64_t weights;                   // the place of the phase's weights among the turned ones
};

struct Layer {
  LayerKind kind;
  // `adds`: the gradient of `in` has a part already, to which this layer adds; `other_adds`: the same for `other`
  bool relu, adds, other_adds;
  int32_t in, other, out;  // numbers of images; `other`: the second term of a sum, or -1
  // For convolutions: the pixels of an output, the samples in a group, and input channels times taps.
  int64_t pixels, group, depth;
  // `windows` and `places`, by row of a group: offsets in the input and in the output; `reach`, by depth: from a window
  const int32_t *windows, *places, *reach;
  const Phase* phases;
  int64_t phase_count;
  // places among the packed parameters: weight and bias, or a norm's scale and shift; bias < 0: there is none
  int64_t weight, bias;
  int64_t kernel[2], stride[2], padding[2];
  int64_t groups, mean, variance;  // for norms; mean and variance are places among the buffers, or -1
  float eps, momentum;
  int64_t scratch;  // the place of the layer's scratch in the workspace
};

struct Net {
  const Image* images;
  const Layer* layers;
  // `batch`: the most samples in a batch; `block`: the samples that pass the layers together
  int64_t layer_count, batch, block;
  const int32_t* lines;  // 0, 16, 32, ...
  // [parameters] for each element of the flat vector, its place among the packed parameters
  const int32_t* places;
  const int32_t* turning;  // [turned] places of weights among the packed ones, in the phases' order
  int64_t parameters, packed, turned;
  int64_t weights, gradient, velocity, anchor, turned_weights;  // places in the workspace
};

struct TrainCall {
  const float* start;      // the flat parameters, [parameters]
  float* buffers;          // running statistics, changed in place
  const float* x;          // [samples, channels, height, width]
  const int64_t* labels;   // [samples]
  const int64_t* index;    // the samples of all batches, one batch after the other
  const int64_t* lengths;  // [steps] the number of samples of each batch
  int64_t steps;
  float lr, momentum, weight_decay, mu;
  bool gradient;  // whether `out` gets one gradient in place of a delta
  float* out;     // the flat result
  // If not null, nothing is learned, and `outputs` gets the samples' outputs. Norms then use running statistics.
  float* outputs;
};

}  // namespace fastagg::train
