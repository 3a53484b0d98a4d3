// The numbers of an optimizer's step. They stand alone, so that a change of its arithmetic (optimizers.h) does not
// compile again what only passes them on.
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
  float eps_root = 0.0f;           // under the root
  float drag = 0.0f, keep = 1.0f;  // weight decay: D - drag*x is stepped along, from keep*x
  float part = 1.0f;               // of a direction in its period: 1/N,
  bool ends = true;                // which ends with this step
};

// The settings that bounds of an optimizer's step need.
struct Decay {
  double beta1, beta2, eps;
  double part = 1.0;
};

// Upper bounds of the magnitudes in m and in v.
struct MomentBounds {
  double m = 0.0, v = 0.0;
};

}  // namespace fastagg
