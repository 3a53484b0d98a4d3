// The way of an update: find its task, look at it, plan, run, commit. Between the first kernel and the last line of the
// commit nothing can fail and nothing of Python's runs, so no interrupt and no failed allocation falls in between; what
// Python must do within a step (distillation, an optimizer of a user's own) works on vectors that nobody holds yet. All
// this is so on the processor; a CUDA device's launches go through Python (fastagg/serving/runner.py).
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "books.h"
#include "ledger.h"

namespace fastagg::serving {

// Becomes fastagg.errors.UpdateTooLarge.
class TooLarge : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The optimizer's settings; its moments are Python's, and so are those of one without a kernel.
struct Stepper {
  std::string kind;
  int place;  // in Optimizers
  double lr, beta1, beta2, eps;
  bool bias_correction;
};

// What Python is asked for, None where there is nothing to ask: all before anything has changed.
//
//   vector()              a tensor [d] for the next version
//   weigh(delay)          the weight of an update that is so old, or None to drop it
//   rate(lr, delays)      the learning rate of a step that uses updates of these delays
//   moments(copies)       (what Python keeps the moments in, the kernels' struct), or of copies of them
//   step(direction, lr, round)  an optimizer without a kernel: the new model, and what to set: [(object, name, value)]
//   measure(x, moments)   bounds of the elements of x, of first and of second moments
struct Hooks {
  py::function vector;
  py::object weigh, rate, moments, step, measure;
};

class Road {
 public:
  Road(std::shared_ptr<Book> book, std::shared_ptr<Ledger> ledger, std::shared_ptr<Runner> runner, Stepper stepper,
       Hooks hooks);

  // What the server holds of the model.
  void start(py::object flat, int64_t size, int64_t origin);
  void set_judge(double clip_norm) { clip_norm_ = clip_norm; }

  // (the client's id as it is kept, the local steps it is told to take).
  py::tuple send(py::handle client, int32_t usual, const py::object& payload, py::handle version);
  // `more`, None on the usual way: what fastagg/serving/judging.py found out.
  py::object receive(py::handle client, py::handle version, const py::list& pieces, double share, py::handle more);
  // One after the other, until one is refused: what became of those before it.
  py::list receive_many(const py::list& answers);
  // Trained models, as many of the first as one pass can fold in.
  // (client, version, pieces, share, base): what became of each; where one is not finite nothing has changed, and it is
  // None there, and False for the others.
  py::list fold(const py::list& answers, const py::object& statistics);
  // All of a round at once. Entries: (pieces, version, gain, weight, share, norm).
  // Refuses what could not make a step together; nothing changes.
  void check_round(const py::list& entries);
  py::object close_round(const py::list& entries, bool steps, py::handle client, py::handle version, py::handle more);

  const py::object& flat() const { return flat_.owner; }
  const py::object& moments() const { return moments_; }
  bool sent = false;  // whether somebody may hold this version, so that it must not change
  void bound_from(double model, double m, double v);

  Ledger& ledger() { return *ledger_; }

 private:
  struct Step {
    Outcome outcome = Outcome::kKept;
    double lr = 0.0;
    Vector out;
    py::object moments;  // copies, where the real ones must not change yet; else none
    Moments kernel_moments;
    Optimizer optimizer;
    py::object moves = py::none();
    double x_bound = 0.0, m_bound = 0.0, v_bound = 0.0;
    bool applied(double usual) const { return outcome == Outcome::kStep && (lr != 0.0 || usual == 0.0); }
  };

  void measure();
  void plan_step(Step& step, const Vector* into, bool copies, bool overlaps = false);
  bool overlaps_model(const Update& update) const;
  void check_bounds(Step& step);
  void ask_python(Step& step, const py::object& then);
  void commit(Step& step, const py::object& statistics, const py::object& moves) noexcept;
  py::object outcome_of(const Step& step, int64_t delay, double norm, double weight) const;
  bool weigh(int64_t delay, double* weight) const;
  void read(const py::list& pieces, Update& update) const;
  bool own() const { return !hooks_.step.is_none(); }

  std::shared_ptr<Book> book_;
  std::shared_ptr<Ledger> ledger_;
  std::shared_ptr<Runner> runner_;
  Stepper stepper_;
  Hooks hooks_;
  Vector flat_;
  py::object moments_ = py::none();
  int64_t size_ = 0, origin_ = 0;
  double clip_norm_ = 0.0;
  double x_bound_ = 0.0, m_bound_ = 0.0, v_bound_ = 0.0;
  Moments kernel_moments_;
  Update update_;  // kept for its memory
};

}  // namespace fastagg::serving
