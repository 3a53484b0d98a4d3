// A network as a table of layers. Each layer has the places of all data that training reads and writes. A place is an
// offset in floats. table.cpp makes the table. train.inl trains with the table.
//
// An image is an array [samples, height, width, channels], with a border of zeros around each sample. Padding channels
// make the number of channels a multiple of 16, but not always in the network's input. A convolution reads its input
// through lists of offsets: the k-th input of output pixel r is input[windows[r] + reach[k]]. So the forward pass and
// both gradients of a convolution are matrix products (train.inl), and no window is copied. A linear layer is a
// convolution whose window is the whole image. Neither the lists nor the order of any sum depends on the instruction
// set.
#pragma once

#include <stdint.h>

namespace fastagg::train {

constexpr int64_t kChannels = 16;  // channels in a group, for every instruction set

enum LayerKind : int32_t { kConvolution, kMoments, kNormalise, kGroupNorm, kSum, kMaxPool, kMeanPool, kFlatten, kLoss };

struct Image {
  int64_t channels, height, width;
  int64_t border, padded;  // `border`: the zero pixels on each side; `padded`: the channels, with padding channels
  // In floats: distances to the next row and the next sample, and the offset of the first pixel inside the border.
  int64_t row, sample, first;
  int64_t values, slopes;  // places in the workspace of the values and of their gradients; `slopes` < 0: no gradients
};

// A set of a convolution's input pixels that the same taps (kernel positions) reach. The gradient of the input is
// computed phase by phase. With a stride of s, a phase has every s-th pixel of each side. If the kernel covers a whole
// side, a phase has one pixel of this side.
struct Phase {
  int64_t rows, depth;  // `rows`: the phase's pixels in Layer::group samples; `depth`: taps times output channels
  const int32_t *targets, *sources;  // [rows] offsets in the gradient of the input, and in the gradient of the output
  const int32_t* reach;              // [depth] offsets from an offset in `sources`
  int64_t weights;                   // the place of the phase's weights among the turned weights (Net::turning)
};

struct Layer {
  LayerKind kind;
  // `adds`: whether this layer adds to the gradient of `in`, because another layer writes that gradient first.
  // `other_adds`: whether it adds to the gradient of `other`, for the same reason. `relu`: whether ReLU follows.
  bool relu, adds, other_adds;
  int32_t in, other, out;  // indices of images; `other`: the second term of a sum, or -1 if there is none
  // For convolutions: pixels of an output image, samples in a product (`group`), and input channels times taps.
  int64_t pixels, group, depth;
  // `windows`, `places`: by row of a product, offsets in the input and in the output. `reach`: offsets from a window.
  const int32_t *windows, *places, *reach;
  const Phase* phases;
  int64_t phase_count;
  // Places among the packed parameters (Net): of weight and bias, or of a norm's scale and shift. `bias` < 0: no bias.
  int64_t weight, bias;
  int64_t kernel[2], stride[2], padding[2];
  int64_t groups, mean, variance;  // `groups`: for GroupNorm; `mean`, `variance`: places in TrainCall::buffers, or -1
  float eps, momentum;
  int64_t scratch;  // the place of the layer's scratch memory in the workspace
};

struct Net {
  const Image* images;
  const Layer* layers;
  // `batch`: the most samples in a batch. `block`: the number of samples that pass several layers together.
  int64_t layer_count, batch, block;
  const int32_t* lines;  // the list 0, 16, 32, ..., as Product::line of a weight's gradient (train.inl)
  // [parameters] for each element of the flat parameters: its place among the packed parameters, which the layers read
  const int32_t* places;
  // [turned] the places of the turned weights among the packed parameters. Turned weights are copies of the
  // convolutions' weights in the order in which phases read them.
  const int32_t* turning;
  int64_t parameters, packed, turned;
  int64_t weights, gradient, velocity, anchor, turned_weights;  // places in the workspace
};

struct TrainCall {
  const float* start;      // the flat parameters, [parameters]
  float* buffers;          // running statistics, which training changes in place
  const float* x;          // [samples, channels, height, width]
  const int64_t* labels;   // [samples]
  const int64_t* index;    // for each sample of each batch, in order: the sample's index in `x` and `labels`
  const int64_t* lengths;  // [steps] the number of samples in each batch
  int64_t steps;
  float lr, momentum, weight_decay, mu;
  bool gradient;  // true: no step is made, and `out` gets the gradient of the last batch
  float* out;     // [parameters] without `gradient`: the trained parameters minus `start`
  // If not null: nothing is trained. The samples' outputs are written here, and norms use the running statistics.
  float* outputs;
};

}  // namespace fastagg::train
