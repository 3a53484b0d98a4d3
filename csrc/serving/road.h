// The road takes an update through the stages: find its task, look, plan, run, commit. Between the first kernel and the
// last line of the commit nothing can fail and no Python runs. So no interrupt and no failed allocation falls in
// between. What Python must do within a step (distillation, a user's own optimizer) works on vectors that nobody holds
// yet. All this holds on the processor. A CUDA device's launches go through Python (fastagg/serving/runner.py).
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
#include "reported.h"

namespace fastagg::serving {

// In Python: fastagg.errors.UpdateTooLarge.
class TooLarge : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The optimizer's settings. Python holds its moments, and all state of an optimizer without a kernel.
struct Stepper {
  std::string kind;
  int place;  // its place in Optimizers
  double lr, beta1, beta2, eps;
  bool bias_correction;
};

// What the road asks Python for. A hook is None if there is nothing to ask. Hooks are called before anything changes.
//
//     vector()              a tensor [d] for the next version, if it is not in host memory
//     model()               the model as a task holds it
//     keep()                what is kept with a version while a client may answer it, if that is not the model
//     control()             a task's control variate
//     weigh(delay)          the weight of an update with this delay, or None to drop it
//     rate(lr, delays)      the learning rate of a step that uses updates with these delays
//     moments(copies)       (Python's moments, the kernels' struct), or of copies of them
//     step(direction, lr, round)  an optimizer without a kernel: the new model, and moves [(object, name, value)]
//     statistics(reported, kind)  moves to BatchNorm's statistics with an update that brought `reported` (reported.h),
//                           after a "step", a "drop" or neither ("keep"); None if they stay as they are
//     measure(x, moments)   bounds of the elements of x, of the first and of the second moments
struct Hooks {
  py::object vector = py::none(), model = py::none(), keep = py::none(), control = py::none(), weigh = py::none(),
             rate = py::none(), moments = py::none(), step = py::none(), statistics = py::none(), measure = py::none();
};

// How the road makes Python's tasks and receipts, and which updates it can take by itself.
struct Outside {
  Record task;            // client, version, local_steps, control, incarnation, _layout, _model
  Record receipt;         // client, applied, version, delay, step_size, update_norm, weight, kept, _journal, _sequence
  py::object layout;      // the server's
  int32_t usual_steps;    // the local steps of a task by default; 0: none are told
  bool keeps_model;       // with every version that a client may answer
  bool weighs_by_sample;  // whether an update's weight in a mean is its client's number of samples
  std::optional<Form> form;  // the forms that the road takes by itself (`take`), if there are any
};

class Road {
 public:
  Road(std::shared_ptr<Book> book, std::shared_ptr<Ledger> ledger, std::shared_ptr<Runner> runner, Stepper stepper,
       Hooks hooks, Outside outside);

  // Sets the server's model.
  void start(py::object flat, int64_t size, int64_t origin);
  void set_judge(double clip_norm) { clip_norm_ = clip_norm; }
  void set_rate(double lr);

  // From now on every event is written to this journal. If `before_row(client)` is set, it is called before that
  // client's row changes.
  void attach(py::object journal);
  const std::shared_ptr<Journal>& journal() const { return journal_; }
  void note_ended();  // queues records of what the ledger ended
  py::object before_row = py::none();

  // Sends the current version to a client: makes a task.
  py::object send(py::handle client);
  // Gives an open task to one more client. Returns (its id in the stored form, the local steps it is told to take).
  py::tuple hand_on(py::handle client, int64_t version);

  // Drops tasks that nobody will answer: one, or all of a client, which is then unknown.
  void forget(py::handle client, py::handle version);
  // Ends tasks that are over; with a version also all tasks below it. Returns how many ended.
  int64_t expire(py::handle before);

  // Takes an update in a usual form and returns its receipt. Returns None, with nothing changed, if the update is not
  // finite or needs more than the road can do: another form, or rules that Python must ask.
  py::object take(py::handle client, py::handle update, py::handle version, py::handle num_samples);
  // Takes the answers of a list from `begin` on, (client, update, version, num_samples), and stops at the first that it
  // cannot take. Returns the receipts of those before it. Returns None, with nothing changed, if one is not such a
  // tuple.
  py::object take_many(const py::list& answers, size_t begin);
  // Takes an update that Python has parsed. `more`: the findings of fastagg/serving/judging.py, usually None. Returns
  // None if the update is not finite.
  py::object receive(py::handle client, py::handle version, const py::list& pieces, double share, py::handle more);
  // Takes the row that an update became, from a journal's record (kRow): an answer whose update had this norm. Throws
  // std::invalid_argument if the server's rows are others, or an update that is not dropped has no row.
  struct Recorded {
    int format;
    void* row;  // null: the update was dropped
    int64_t nbytes;
    double norm;
  };
  py::object receive_row(py::handle client, py::handle version, const Recorded& recorded, double share,
                         py::handle more);
  // Folds trained models in: as many of the first ones as one pass can take. `answers`: (client, version, pieces,
  // share, base). Returns a receipt for each. If a model is not finite, nothing has changed; then the result is None
  // for such models and False for the others.
  py::list fold(const py::list& answers, const py::object& statistics);
  // Checks all entries of a round at once: (pieces, version, gain, weight, share, norm). Throws if they could not make
  // a step together. Changes nothing.
  void check_round(const py::list& entries);
  py::object close_round(const py::list& entries, bool steps, py::handle client, py::handle version, py::handle more);

  const py::object& flat() const { return flat_.owner; }
  const py::object& model();
  // From this version on, versions belong to the server's life with this number. Earlier ones keep theirs.
  void begin_life(int64_t version, uint64_t number);
  // The lives so far: (first version, number).
  const std::vector<std::pair<int64_t, uint64_t>>& lives() const { return lives_; }
  uint64_t life_of(int64_t version) const;
  const py::object& moments() const { return moments_; }
  bool sent = false;  // whether somebody may hold this version; then it must not change
  void bound_from(double model, double m, double v);

  Ledger& ledger() { return *ledger_; }

 private:
  struct Step {
    Outcome outcome = Outcome::kKept;
    double lr = 0.0;
    Vector out;
    py::object moments;  // copies, if the real moments must not change yet; otherwise none
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
  void carry_out(bool worth, const py::object& agree, Act act);
  void ask_python(Step& step, const py::object& then);
  void commit(Step& step, const py::object& statistics, const py::object& moves) noexcept;
  py::object arrive(py::handle client, py::handle version, double share, py::handle more, const py::object& owner,
                    const Reported* reported, const Recorded* recorded = nullptr);
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
  py::object model_ = py::none();  // what `hooks_.model` returned for this version; none until it is asked
  py::object moments_ = py::none();
  int64_t size_ = 0, origin_ = 0;
  double clip_norm_ = 0.0;
  double x_bound_ = 0.0, m_bound_ = 0.0, v_bound_ = 0.0;
  Moments kernel_moments_;
  Update update_;  // both are reused for their memory
  Reported reported_;
  std::vector<std::pair<int64_t, uint64_t>> lives_;
  std::shared_ptr<Journal> journal_;
  py::object journal_object_ = py::none();
};

}  // namespace fastagg::serving
