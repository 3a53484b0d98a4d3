// The settings of an optimizer's step. optimizers.h has the formulas. The settings have a separate header, so that a
// change of a formula does not recompile files that only pass settings on.
#pragma once

namespace fastagg {

struct Hyper {
  float lr;
  float beta1;
  float rest1;  // 1 - beta1, rounded once from double
  float beta2;
  float rest2;  // 1 - beta2, rounded once from double
  float eps;
  float root_scale;                // the factor of the square root; 1 without bias correction
  float eps_root = 0.0f;           // added to v, or to vhat, under the square root
  float drag = 0.0f, keep = 1.0f;  // weight decay: D - drag*x replaces D, keep*x replaces x
  float part = 1.0f;               // DelayedMomentum: the factor of each direction, 1/N for a period of N steps
  bool ends = true;                // DelayedMomentum: whether the period ends with this step
};

// The settings on which the bound of an optimizer's step depends (`reach` in optimizers.h). beta1, beta2 and part are
// as in Hyper. `eps` is the smallest divisor of a step.
struct Decay {
  double beta1, beta2, eps;
  double part = 1.0;
};

// Upper bounds on magnitudes. `m` bounds the elements of m. `v` bounds the elements of v and vhat.
struct MomentBounds {
  double m = 0.0, v = 0.0;
};

}  // namespace fastagg
