// The way of an update: find its task, look at it, plan, run, commit. Between the first kernel and the last line of the
// commit nothing can fail and nothing of Python's runs, so no interrupt and no failed allocation falls in between; what
// Python must do within a step (distillation, an optimizer of a user's own) works on vectors that nobody holds yet. All
// this is so on the processor; a CUDA device's launches go through Python (fastagg/serving/runner.py).
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "books.h"
#include "form.h"
#include "ledger.h"
#include "record.h"
#include "records.h"

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
//   vector()              a tensor [d] for the next version, where it does not lie on the host
//   model()               what a task that goes out holds of the model
//   keep()                what is kept with a version for as long as a client may answer it, where it is not the model
//   control()             a task's control variate
//   weigh(delay)          the weight of an update that is so old, or None to drop it
//   rate(lr, delays)      the learning rate of a step that uses updates of these delays
//   moments(copies)       (what Python keeps the moments in, the kernels' struct), or of copies of them
//   step(direction, lr, round)  an optimizer without a kernel: the new model, and what to set: [(object, name, value)]
//   measure(x, moments)   bounds of the elements of x, of first and of second moments
struct Hooks {
  py::object vector = py::none(), model = py::none(), keep = py::none(), control = py::none(), weigh = py::none(),
             rate = py::none(), moments = py::none(), step = py::none(), measure = py::none();
};

// What Python sees of an arrival and of a task, and how they are told apart from those that need more than the road.
struct Outside {
  Record task;            // client, version, local_steps, control, incarnation, _layout, _model
  Record receipt;         // client, applied, version, delay, step_size, update_norm, weight, kept, _journal, _sequence
  py::object layout;      // the server's
  int32_t usual_steps;    // local steps of a task, where nothing else was said; 0: none are
  bool keeps_model;       // with every version that a client may answer
  bool weighs_by_sample;  // an update counts in a mean for as much as its client has samples
  std::optional<Form> form;  // of the updates that the road takes by itself (`take`), if there are any
};

class Road {
 public:
  Road(std::shared_ptr<Book> book, std::shared_ptr<Ledger> ledger, std::shared_ptr<Runner> runner, Stepper stepper,
       Hooks hooks, Outside outside);

  // What the server holds of the model.
  void start(py::object flat, int64_t size, int64_t origin);
  void set_judge(double clip_norm) { clip_norm_ = clip_norm; }
  void set_rate(double lr);

  // From now on all that happens is written down there. `before_row(client)` is asked, if it is set, before that
  // client's row changes.
  void attach(py::object journal);
  const std::shared_ptr<Journal>& journal() const { return journal_; }
  void note_ended();  // what the ledger ended is written down
  py::object before_row = py::none();

  // The current version goes out: a task.
  py::object send(py::handle client);
  // A task that is out goes to one client more: (its id as it is kept, the local steps it is told to take).
  py::tuple hand_on(py::handle client, int64_t version);

  // Tasks that nobody will answer: one, or all of a client, which is then unknown.
  void forget(py::handle client, py::handle version);
  // Tasks that are over, and with a version all below it: how many.
  int64_t expire(py::handle before);

  // An update as it comes: its receipt, or None, with nothing changed, where it needs more than the road (a form other
  // than one plain tensor, rules that Python must ask) or is not finite.
  py::object take(py::handle client, py::handle update, py::handle version, py::handle num_samples);
  // The answers of a list from `begin` on, (client, update, version, num_samples), until one that is not taken: the
  // receipts of those before it. None if one is no such tuple, with nothing changed.
  py::object take_many(const py::list& answers, size_t begin);
  // An update that was taken apart. `more`, None on the usual way: what fastagg/serving/judging.py found out. None if
  // it is not finite.
  py::object receive(py::handle client, py::handle version, const py::list& pieces, double share, py::handle more);
  // Trained models, as many of the first as one pass can fold in.
  // (client, version, pieces, share, base): what became of each; where one is not finite nothing has changed, and it is
  // None there, and False for the others.
  py::list fold(const py::list& answers, const py::object& statistics);
  // All of a round at once. Entries: (pieces, version, gain, weight, share, norm).
  // Refuses what could not make a step together; nothing changes.
  void check_round(const py::list& entries);
  py::object close_round(const py::list& entries, bool steps, py::handle client, py::handle version, py::handle more);

  const py::object& flat() const { return flat_.owner; }
  const py::object& model();
  // From this version on they are of a life of the server that has this number; those below it keep theirs.
  void begin_life(int64_t version, uint64_t number);
  // The lives so far: (first version, number).
  const std::vector<std::pair<int64_t, uint64_t>>& lives() const { return lives_; }
  uint64_t life_of(int64_t version) const;
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
  bool lies_in_model(const Update& update) const;
  void check_bounds(Step& step);
  template <typename Act>
  void carry_out(bool worth, Act act);
  void ask_python(Step& step, const py::object& then);
  void commit(Step& step, const py::object& statistics, const py::object& moves) noexcept;
  py::object arrive(py::handle client, py::handle version, double share, py::handle more, const py::object& owner);
  void check_journal() const;
  void queue(Queued entry) noexcept;
  bool share_of(py::handle num_samples, double* share) const;
  py::object step_size(const Step& step, double weight) const;
  Vector fresh_vector() const;
  int64_t next_version(const Step& step) const { return ledger_->now + (step.outcome != Outcome::kKept); }
  bool weigh(int64_t delay, double* weight) const;
  void read(const py::list& pieces, Update& update) const;
  bool own() const { return !hooks_.step.is_none(); }

  std::shared_ptr<Book> book_;
  std::shared_ptr<Ledger> ledger_;
  std::shared_ptr<Runner> runner_;
  Stepper stepper_;
  Hooks hooks_;
  Outside outside_;
  Vector flat_;
  py::object model_ = py::none();  // what `hooks_.model` said of this version; none until it is asked
  py::object moments_ = py::none();
  int64_t size_ = 0, origin_ = 0;
  double clip_norm_ = 0.0;
  double x_bound_ = 0.0, m_bound_ = 0.0, v_bound_ = 0.0;
  Moments kernel_moments_;
  Update update_;  // kept for its memory
  std::vector<std::pair<int64_t, uint64_t>> lives_;
  std::shared_ptr<Journal> journal_;
  py::object journal_object_ = py::none();
};

}  // namespace fastagg::serving
