// A network as a table of layers. Each layer has the places of all data that training reads and writes. A place is an
// offset in floats. table.cpp makes the table, and train.inl executes it.
//
// Arrays are [samples, height, width, channels], with a border of zeros around each image. Channels are padded to
// groups of 16. A convolution reads its input through lists of offsets: the k-th input of output pixel r is
// input[windows[r] + reach[k]]. So the forward pass and both gradients of a convolution are matrix products
// (train.inl), and no window is copied. A linear layer is a convolution whose window is the whole image. Neither the
// lists nor the order of any sum depends on the instruction set.
#pragma once

#include <stdint.h>

namespace fastagg::train {

constexpr int64_t kChannels = 16;  // channels in a group, for every instruction set

enum LayerKind : int32_t { kConvolution, kMoments, kNormalise, kGroupNorm, kSum, kMaxPool, kMeanPool, kFlatten, kLoss };

struct Image {
  int64_t channels, height, width;
  int64_t border, padded;  // `border`: the zero pixels on each side; `padded`: the channels in memory
  // The distances to the next row and to the next sample, and the place of the first pixel inside the border.
  int64_t row, sample, first;
  int64_t values, slopes;  // places in the workspace: values, and gradients; `slopes` < 0: no gradient is needed
};

// A set of input pixels of a convolution that the same taps (kernel positions) reach. The gradient of the input is
// computed phase by phase. With a stride of s, a phase has every s-th pixel of each side.
struct Phase {
  int64_t rows, depth;               // `rows`: pixels of the phase in a group; `depth`: taps times output channels
  const int32_t *targets, *sources;  // by row: offsets in the gradient of the input and in the gradient of the output
  const int32_t* reach;              // [depth] offsets from a place in `sources`
  int64_t weights;                   // the place of the phase's weights among the turned weights (Net)
};

struct Layer {
  LayerKind kind;
  // `adds`: whether this layer adds to the gradient of `in`, because another layer writes that gradient first.
  // `other_adds`: the same for the gradient of `other`.
  bool relu, adds, other_adds;
  int32_t in, other, out;  // indices of images; `other`: the second term of a sum, or -1
  // For convolutions: the pixels of an output image, the samples in a product, and input channels times taps.
  int64_t pixels, group, depth;
  // `windows`, `places`: offsets in the input and in the output, by row of a product. `reach`: offsets from a window.
  const int32_t *windows, *places, *reach;
  const Phase* phases;
  int64_t phase_count;
  // Places among the packed parameters: weight and bias, or a norm's scale and shift. `bias` < 0: there is none.
  int64_t weight, bias;
  int64_t kernel[2], stride[2], padding[2];
  int64_t groups, mean, variance;  // for norms; `mean` and `variance`: places among the buffers, or -1
  float eps, momentum;
  int64_t scratch;  // the place of the layer's scratch memory in the workspace
};

struct Net {
  const Image* images;
  const Layer* layers;
  // `batch`: the most samples in a batch; `block`: the samples that pass several layers together
  int64_t layer_count, batch, block;
  const int32_t* lines;  // the list 0, 16, 32, ...
  // [parameters] by element of the flat parameters: the element's place among the packed parameters
  const int32_t* places;
  const int32_t* turning;  // [turned] places of weights among the packed parameters, in the order of the phases
  int64_t parameters, packed, turned;
  int64_t weights, gradient, velocity, anchor, turned_weights;  // places in the workspace
};

struct TrainCall {
  const float* start;      // the flat parameters, [parameters]
  float* buffers;          // running statistics, which training changes in place
  const float* x;          // [samples, channels, height, width]
  const int64_t* labels;   // [samples]
  const int64_t* index;    // the indices in `x` of the samples of all batches, one batch after the other
  const int64_t* lengths;  // [steps] the number of samples in each batch
  int64_t steps;
  float lr, momentum, weight_decay, mu;
  bool gradient;  // whether `out` gets the gradient of the last batch; false: the trained parameters minus `start`
  float* out;     // [parameters]
  // If not null, nothing is trained, and the samples' outputs are written here. Norms then use running statistics.
  float* outputs;
};

}  // namespace fastagg::train
