// A network as a table of layers, with the places of all data that its training reads and writes.
//
// Arrays are [samples, height, width, channels] with a border of zeros, and channels are padded to whole lanes. A
// convolution reads its input through lists of offsets: output row r, tap k is input[windows[r] + reach[k]]. So its
// forward pass and both gradients are one product (train.inl), and nothing is copied into patches. A linear layer is a
// convolution whose window is the whole image. The lists do not depend on the instruction set, nor does any sum.
#pragma once

#include <stdint.h>

namespace fastagg::train {

constexpr int64_t kChannels = 16;  // the size of a group of channels, for every vector width

enum LayerKind : int32_t { kConvolution, kMoments, kNormalise, kGroupNorm, kSum, kMaxPool, kMeanPool, kFlatten, kLoss };

struct Image {
  int64_t channels, height, width;
  int64_t border, padded;      // zero pixels around it; channels in memory
  int64_t row, sample, first;  // steps to the next row and sample, and the first pixel after the border
  int64_t values, slopes;      // places of both arrays in the workspace; slopes < 0: no gradient is needed
};

// Pixels of a convolution's input that the same taps reach: those of one phase of its strides.
struct Phase {
  int64_t rows, depth;               // pixels of a group of samples; taps times output channels
  const int32_t *targets, *sources;  // by row: offsets in the gradients of the input and of the output
  const int32_t* reach;              // [depth] offsets from a source
  int64_t weights;                   // the place of its weights among the turned ones
};

struct Layer {
  LayerKind kind;
  bool relu, adds, other_adds;  // adds: a part of the input's gradient is there already
  int32_t in, other, out;       // images; other: a sum's second term, or -1
  // Convolutions: pixels of an output, samples in a group, input channels times taps.
  int64_t pixels, group, depth;
  const int32_t *windows, *places,
      *reach;  // by row of a group: offsets in input and output; by depth: offsets from a window
  const Phase* phases;
  int64_t phase_count;
  int64_t weight, bias;  // among the packed parameters, for norms scale and shift; bias < 0: none
  int64_t kernel[2], stride[2], padding[2];
  int64_t groups, mean, variance;  // for norms; mean and variance are places among the buffers, or -1
  float eps, momentum;
  int64_t scratch;  // place in the workspace
};

struct Net {
  const Image* images;
  const Layer* layers;
  int64_t layer_count, batch, block;  // the most samples in a batch; the samples that pass the layers together
  const int32_t* lines;               // 0, 16, 32, ...
  const int32_t* places;              // [parameters] places of the flat vector's elements among the packed ones
  const int32_t* turning;             // [turned] places, among the packed weights, of the weights in the phases' order
  int64_t parameters, packed, turned;
  int64_t weights, gradient, velocity, anchor, turned_weights;  // places in the workspace
};

struct TrainCall {
  const float* start;      // the flat parameters, [parameters]
  float* buffers;          // running statistics, changed in place
  const float* x;          // [samples, channels, height, width]
  const int64_t* labels;   // [samples]
  const int64_t* index;    // the samples of the batches, one batch after the other
  const int64_t* lengths;  // [steps]
  int64_t steps;
  float lr, momentum, weight_decay, mu;
  bool gradient;  // return one gradient and not a delta
  float* out;     // the flat result
  float*
      outputs;  // if not null: nothing is learned, and this gets the samples' outputs, computed with running statistics
};

}  // namespace fastagg::train
