// A LayerTable is a table of layers (net.h), built from descriptions of the layers. The bindings make the descriptions.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "net.h"

namespace fastagg::train {

// A layer as Python describes it. Image 0 is the input, and image i+1 is the output of layer i.
struct Description {
  std::string kind;  // convolution, batch_norm, group_norm, sum, max_pool, mean_pool or flatten
  int64_t in = 0, other = -1;
  bool relu = false;
  int64_t channels = 0;  // the output channels of a convolution
  std::array<int64_t, 2> kernel{1, 1}, stride{1, 1}, padding{0, 0};
  int64_t groups = 1;
  float eps = 0.0f, momentum = 0.0f;
  // `weight`, `bias`: offsets in the flat parameters. `mean`, `variance`: offsets in the buffers. -1: none.
  int64_t weight = -1, bias = -1, mean = -1, variance = -1;
};

struct ImageShape {
  int64_t channels, height, width;
};

// A network, and the memory of its lists. Any number of threads may train with one table.
class LayerTable {
 public:
  // `batch`: the most samples in a batch. `parameters`, `buffers`: how many floats the model's flat parameters and its
  // buffers have. Throws Refusal (csrc/refusal.h) if the layers do not fit together.
  LayerTable(ImageShape input, const std::vector<Description>& layers, int64_t batch, int64_t parameters,
             int64_t buffers);
  LayerTable(const LayerTable&) = delete;
  LayerTable& operator=(const LayerTable&) = delete;
  ~LayerTable();

  int64_t outputs() const { return images_.back().channels; }
  int64_t batch() const { return net_.batch; }
  // Trains a client, or computes outputs. The caller must have checked that lengths, indices and labels are in range.
  void train(const TrainCall& call);
  // Writes the network's outputs for the `samples` samples of `x` to `outputs`. Norms use the running statistics.
  void evaluate(const float* start, float* buffers, const float* x, int64_t samples, float* outputs);

 private:
  class Builder;
  friend class Builder;
  struct TableMemory;

  std::vector<Image> images_;
  std::vector<Layer> layers_;
  std::deque<std::vector<int32_t>> lists_;
  std::deque<std::vector<Phase>> phases_;
  std::vector<int32_t> places_, turning_;
  int64_t parameters_, workspace_ = 0;
  Net net_{};
  std::unique_ptr<TableMemory> memory_;  // the workspaces that no thread is using
};

}  // namespace fastagg::train
