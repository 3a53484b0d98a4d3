// The numbers of an optimizer's step. They have a header of their own. So a change of the arithmetic (optimizers.h)
// does not recompile files that only pass the numbers on.
#pragma once

namespace fastagg {

struct Hyper {
  float lr;
  float beta1;
  float rest1;  // 1 - beta1, rounded once from double
  float beta2;
  float rest2;  // 1 - beta2, rounded once from double
  float eps;
  float root_scale;
  float eps_root = 0.0f;           // the term under the root
  float drag = 0.0f, keep = 1.0f;  // weight decay: the step is along D - drag*x, from keep*x
  float part = 1.0f;               // the weight of an update in a delayed momentum: 1/N for a period of N steps
  bool ends = true;                // whether a delayed momentum's period ends with this step
};

// The settings by which an optimizer's step is bounded.
struct Decay {
  double beta1, beta2, eps;
  double part = 1.0;
};

// Upper bounds on the magnitudes in m and in v.
struct MomentBounds {
  double m = 0.0, v = 0.0;
};

}  // namespace fastagg
