#include "road.h"

#include <pybind11/stl.h>

#include <cmath>
#include <optional>

#include "../cpu/cpu.h"
#include "unlocked.h"

namespace fastagg::serving {
namespace {

// From this many elements on a pass takes much longer than taking the GIL again.
constexpr int64_t kWorthReleasing = 32768;
constexpr double kHeaviest = 1e30;  // the largest weight in a mean for which fp32 sums and inverse weights stay finite

class Released {
 public:
  explicit Released(bool worth) {
    if (worth) release_.emplace();
  }

 private:
  std::optional<Unlocked> release_;
};

py::object item(py::handle dict, const char* key) {
  if (dict.is_none()) return py::none();
  PyObject* found = PyDict_GetItemString(dict.ptr(), key);
  return found == nullptr ? py::none() : py::reinterpret_borrow<py::object>(found);
}

double number(py::handle dict, const char* key, double otherwise) {
  const py::object found = item(dict, key);
  return found.is_none() ? otherwise : py::cast<double>(found);
}

bool is_set(py::handle dict, const char* key) {
  const py::object found = item(dict, key);
  return !found.is_none() && py::cast<bool>(found);
}

Vector vector_of(py::object tensor) {
  float* data = reinterpret_cast<float*>(py::cast<uintptr_t>(tensor.attr("data_ptr")()));
  return {std::move(tensor), data};
}

// Assigns values that were computed in advance: [(object, attribute or index, value)].
void move_all(const py::object& moves) noexcept {
  if (moves.is_none()) return;
  for (const py::handle move : moves) {
    PyObject* const* parts = &PyTuple_GET_ITEM(move.ptr(), 0);
    const bool named = PyUnicode_Check(parts[1]);
    const int failed =
        named ? PyObject_SetAttr(parts[0], parts[1], parts[2]) : PyObject_SetItem(parts[0], parts[1], parts[2]);
    if (failed != 0) PyErr_Clear();
  }
}

}  // namespace

Road::Road(std::shared_ptr<Book> book, std::shared_ptr<Ledger> ledger, std::shared_ptr<Runner> runner, Stepper stepper,
           Hooks hooks, Outside outside)
    : book_(std::move(book)),
      ledger_(std::move(ledger)),
      runner_(std::move(runner)),
      stepper_(std::move(stepper)),
      hooks_(std::move(hooks)),
      outside_(std::move(outside)) {}

void Road::start(py::object flat, int64_t size, int64_t origin) {
  flat_ = vector_of(std::move(flat));
  size_ = size;
  origin_ = origin;
  const py::tuple found = hooks_.moments(false);
  moments_ = found[0];
  kernel_moments_ = py::cast<Moments>(found[1]);
}

void Road::bound_from(double model, double m, double v) {
  x_bound_ = book_->model_bound = model;
  m_bound_ = m;
  v_bound_ = v;
}

void Road::begin_life(int64_t version, uint64_t number) {
  constexpr size_t kMost = 64;  // no task of an older life is still open
  while (!lives_.empty() && lives_.back().first >= version) lives_.pop_back();
  if (!lives_.empty() && lives_.back().second == number) return;  // the same life goes on
  if (lives_.size() == kMost) lives_.erase(lives_.begin());
  lives_.emplace_back(version, number);
}

uint64_t Road::life_of(int64_t version) const {
  for (size_t i = lives_.size(); i-- > 0;)
    if (lives_[i].first <= version) return lives_[i].second;
  return 0;
}

const py::object& Road::model() {
  if (model_.is_none()) model_ = hooks_.model();
  return model_;
}

void Road::attach(py::object journal) {
  journal_ = py::cast<std::shared_ptr<Journal>>(journal);
  journal_object_ = std::move(journal);
  ledger_->notes_ended = true;
}

// Refuses a call that could not be acknowledged.
void Road::check_journal() const {
  if (journal_) journal_->check();
}

void Road::queue(Queued entry) noexcept {
  if (journal_) journal_->push(std::move(entry));
}

void Road::note_ended() {
  if (!journal_) return;
  while (const auto* one = ledger_->first_ended()) {
    Queued entry = record_of(kForget, one->first, one->second);
    ledger_->pop_ended();
    queue(std::move(entry));
  }
}

void Road::set_rate(double lr) {
  check_journal();
  Queued entry = record_of_rate(lr);
  stepper_.lr = lr;
  queue(std::move(entry));
}

void Road::forget(py::handle client, py::handle version) {
  check_journal();
  const py::object id = ledger_->identify(client);
  if (version.is_none()) {
    Queued entry = record_of(kForget, id, -1);
    ledger_->forget(id);
    queue(std::move(entry));
    return;
  }
  const Ledger::Found task = ledger_->find(id, version);
  Queued entry = record_of(kForget, id, task.version);
  ledger_->close(task.client, task.version);
  queue(std::move(entry));
}

int64_t Road::expire(py::handle before) {
  check_journal();
  int64_t ended = ledger_->expire(-1);
  note_ended();
  if (before.is_none()) return ended;
  const auto version = py::cast<int64_t>(before);
  Queued entry = record_of(kExpire, py::int_(0), version);
  ended += ledger_->expire_before(version);
  queue(std::move(entry));
  return ended;
}

py::object Road::send(py::handle client) {
  constexpr int64_t kAtATime = 8;  // limits the time of one call
  check_journal();
  ledger_->expire(kAtATime);
  note_ended();
  const py::object id = ledger_->identify(client);
  const int64_t now = ledger_->now;
  const int32_t told = ledger_->told(id, outside_.usual_steps);
  py::object steps = py::none(), control = py::none(), kept = py::none();
  if (told > 0) steps = py::int_(told);
  if (!hooks_.control.is_none()) control = hooks_.control();
  if (outside_.keeps_model) {
    kept = flat_.owner;
  } else if (!hooks_.keep.is_none()) {
    kept = hooks_.keep();
  }
  py::object task =
      outside_.task.make({id, py::int_(now), steps, control, py::int_(life_of(now)), outside_.layout, model()});
  book_->before_sending(now);
  Queued entry = journal_ ? record_of(kDispatch, id, now) : nullptr;
  book_->sent(ledger_->send(id, now, told, kept), now);
  sent = true;
  queue(std::move(entry));
  return task;
}

py::tuple Road::hand_on(py::handle client, int64_t version) {
  check_journal();
  const py::object id = ledger_->identify(client);
  const int32_t told = ledger_->told(id, outside_.usual_steps);
  py::tuple found = py::make_tuple(id, told);
  book_->before_sending(version);
  Queued entry = journal_ ? record_of(kHandOn, id, version) : nullptr;
  book_->sent(ledger_->send(id, version, told, ledger_->payload(version)), version);
  queue(std::move(entry));
  return found;
}

// Whether a piece of an update lies in the model's memory, but not at its own place. A step in place would then read
// values that it has already written.
bool Road::overlaps_model(const Update& update) const {
  const auto first = reinterpret_cast<uintptr_t>(flat_.data), last = first + static_cast<uintptr_t>(size_) * 4;
  uintptr_t place = first;
  for (const auto& piece : update.pieces) {
    const auto at = reinterpret_cast<uintptr_t>(piece.data);
    const uintptr_t count = static_cast<uintptr_t>(piece.size);
    const bool here = at == place && piece.dtype == kFloat32;
    if (!here && at < last && at + count * (piece.dtype == kFloat32 ? 4 : 2) > first) return true;
    place += count * 4;
  }
  return false;
}

// Whether a piece of an update lies anywhere in the model's memory. A step in place would then change the update.
bool Road::lies_in_model(const Update& update) const {
  const auto first = reinterpret_cast<uintptr_t>(flat_.data), last = first + static_cast<uintptr_t>(size_) * 4;
  for (const auto& piece : update.pieces) {
    const auto at = reinterpret_cast<uintptr_t>(piece.data);
    if (at < last && at + static_cast<uintptr_t>(piece.size) * (piece.dtype == kFloat32 ? 4 : 2) > first) return true;
  }
  return false;
}

void Road::read(const py::list& pieces, Update& update) const {
  update.pieces.clear();
  update.size = 0;
  update.origin = origin_;
  for (const py::handle piece : pieces) {
    PyObject* const* parts = &PyTuple_GET_ITEM(piece.ptr(), 0);
    update.add(PyLong_AsVoidPtr(parts[0]), PyLong_AsLongLong(parts[1]), static_cast<Dtype>(PyLong_AsLong(parts[2])));
  }
  if (PyErr_Occurred()) throw py::error_already_set();
}

bool Road::weigh(int64_t delay, double* weight) const {
  *weight = 1.0;
  if (hooks_.weigh.is_none()) return true;
  const py::object found = hooks_.weigh(delay);
  if (found.is_none()) return false;
  *weight = py::cast<double>(found);
  return true;
}

// The largest possible value of m/sqrt(v), doubled as a margin for rounding. v is at least c*b2^k times the square of
// the direction k steps ago, and that direction has the weight (1-b1)*b1^k in m. If the squares of directions vanish in
// fp32, v stays zero although m is not; kVanishing / eps bounds that case.
double largest_ratio(const Stepper& stepper) {
  constexpr double kVanishing = 1e-22;
  if (stepper.kind == "adagrad") return std::max(2.0, kVanishing / stepper.eps);
  const double b1 = stepper.beta1, b2 = stepper.beta2;
  const double c = stepper.kind == "yogi" ? std::min(b2, 1.0 - b2) : 1.0 - b2;
  const double left = 1.0 - b1 / std::sqrt(b2);
  if (!(c > 0.0 && left > 0.0)) return HUGE_VAL;
  const double ratio = (1.0 - b1) / std::sqrt(c) / left + 1.0 / std::sqrt(c);
  return std::max(2.0 * ratio, kVanishing / stepper.eps);
}

// Replaces the bounds, which otherwise only grow, by measured values. This is a pass over the vectors, and rarely
// needed.
void Road::measure() {
  const auto found = py::cast<std::vector<double>>(hooks_.measure(flat_.owner, moments_));
  double model = found[0];
  if (book_->blends())
    for (const py::handle kept : ledger_->payloads())
      if (!kept.is_none()) model = std::max(model, py::cast<std::vector<double>>(hooks_.measure(kept, moments_))[0]);
  bound_from(model, found[1], found[2]);
}

// Computes upper bounds of all elements after this step, and refuses an update that might not stay finite. An update
// that waits for others is checked as if the step were taken now.
void Road::check_bounds(Step& step) {
  const auto refuse = [](const std::string& what) {
    throw TooLarge("the update is too large: " + what + " could leave the range of float32");
  };
  if (!(book_->kept_bound() <= kLargestSum)) refuse("the sum of updates");
  for (bool measured = false;; measured = true) {
    const std::string& kind = stepper_.kind;
    const double d = book_->bound(), lr = std::abs(step.lr);
    double m = m_bound_, v = v_bound_, growth = book_->growth(step.lr);
    if (own()) {
      growth = 0.0;
    } else if (kind == "momentum") {
      m = stepper_.beta1 * m_bound_ + d;
      growth = lr * m;
    } else if (kind != "sgd") {
      m = std::max(m_bound_, d);
      const bool adds = kind == "yogi" || kind == "adagrad";
      v = adds ? v_bound_ + d * d : std::max(v_bound_, d * d);
      growth = lr * std::min(m / stepper_.eps, largest_ratio(stepper_));
    }
    const double x = x_bound_ + growth;
    if (d <= kLargestElement && x <= kLargestModel && m <= kLargestSum && v <= kLargestMoment) {
      const bool steps = step.outcome == Outcome::kStep;
      step.x_bound = steps ? x : x_bound_, step.m_bound = steps ? m : m_bound_, step.v_bound = steps ? v : v_bound_;
      return;
    }
    if (measured) refuse(d <= kLargestElement ? "the model or the optimizer's moments" : "the square of the direction");
    measure();
  }
}

Vector Road::fresh_vector() const {
  return hooks_.vector.is_none() ? memory::new_vector(size_) : vector_of(hooks_.vector());
}

// Prepares a step; nothing of it is visible yet: its learning rate, the vector of the next version, the optimizer's
// struct.
void Road::plan_step(Step& step, const Vector* into, bool copies, bool overlaps) {
  step.lr = stepper_.lr;
  if (step.outcome == Outcome::kStep && !hooks_.rate.is_none()) {
    std::vector<int64_t> delays;
    for (const int64_t start : book_->versions()) delays.push_back(ledger_->now - start);
    step.lr = py::cast<double>(hooks_.rate(stepper_.lr, delays));
  }
  check_bounds(step);
  if (step.outcome != Outcome::kStep) return;
  if (own()) {  // only computes the direction, as a vector
    step.out = fresh_vector();
    step.out.owner.attr("zero_")();
    step.optimizer = {place_in<Sgd>(Optimizers{}), {}, {}, step.out.data, step.out.data};
    step.optimizer.hyper.lr = 1.0f;
    return;
  }
  if (copies) {
    const py::tuple found = hooks_.moments(true);
    step.moments = found[0];
    step.kernel_moments = py::cast<Moments>(found[1]);
  } else {
    step.kernel_moments = kernel_moments_;
  }
  step.kernel_moments.key.step = static_cast<uint64_t>(ledger_->steps);
  if (sent || copies || overlaps) step.out = into != nullptr && *into ? *into : fresh_vector();
  double lr = step.lr, root_scale = 1.0;
  if (stepper_.bias_correction) {
    const auto round = static_cast<double>(ledger_->steps + 1);
    lr = lr / (1.0 - std::pow(stepper_.beta1, round));
    root_scale = 1.0 / std::sqrt(1.0 - std::pow(stepper_.beta2, round));
  }
  const Hyper hyper{static_cast<float>(lr),
                    static_cast<float>(stepper_.beta1),
                    static_cast<float>(1.0 - stepper_.beta1),
                    static_cast<float>(stepper_.beta2),
                    static_cast<float>(1.0 - stepper_.beta2),
                    static_cast<float>(stepper_.eps),
                    static_cast<float>(root_scale)};
  step.optimizer = {stepper_.place, hyper, step.kernel_moments, flat_.data, step.out ? step.out.data : flat_.data};
}

// `act` asks the runner for the planned kernels. Nothing has changed until everything that they need is ready and, if
// this is a slice, `agree` has returned: then all ranks are ready.
template <typename Act>
void Road::carry_out(bool worth, const py::object& agree, Act act) {
  if (runner_->at_once()) {
    if (!agree.is_none()) agree();
    const Released released(worth);
    act();
    return;
  }
  try {
    act();
    runner_->prepare();
    if (!agree.is_none()) agree();
  } catch (...) {
    runner_->forget();
    book_->cancel();
    throw;
  }
  const Released released(worth);
  runner_->launch();
}

// Runs the part of a step that is in Python. It works on a vector that nobody else holds, so it may fail.
void Road::ask_python(Step& step, const py::object& then) {
  if (step.outcome != Outcome::kStep) return;
  if (own()) {
    const py::tuple found = hooks_.step(step.out.owner, step.lr, ledger_->steps + 1);
    step.out = vector_of(found[0]);
    step.moves = found[1];
  }
  if (!then.is_none()) then(step.out.owner);
}

void Road::commit(Step& step, const py::object& statistics, const py::object& moves) noexcept {
  if (step.outcome == Outcome::kStep) {
    if (step.out) std::swap(flat_, step.out);
    if (step.moments) std::swap(moments_, step.moments), kernel_moments_ = step.kernel_moments;
    sent = false;
    ++ledger_->steps;
  }
  if (step.outcome == Outcome::kStep) model_ = py::none();
  if (step.outcome != Outcome::kKept) ++ledger_->now;
  x_bound_ = book_->model_bound = step.x_bound;
  m_bound_ = step.m_bound;
  v_bound_ = step.v_bound;
  move_all(step.moves);
  move_all(moves);
  move_all(statistics);
}

py::object Road::step_size(const Step& step, double weight) const {
  if (step.outcome != Outcome::kStep) return py::none();
  return py::float_(book_->immediate() ? step.lr * weight : step.lr);
}

bool Road::share_of(py::handle num_samples, double* share) const {
  *share = 1.0;
  if (num_samples.is_none()) return !outside_.weighs_by_sample;
  double count = 0.0;
  if (PyLong_CheckExact(num_samples.ptr())) {
    int overflow = 0;
    count = static_cast<double>(PyLong_AsLongLongAndOverflow(num_samples.ptr(), &overflow));
  } else if (PyFloat_CheckExact(num_samples.ptr())) {
    count = PyFloat_AS_DOUBLE(num_samples.ptr());
  }
  // refused by name, or a type of its own that Python reads
  if (!(count > 1.0 / kHeaviest && count < kHeaviest)) return false;
  if (outside_.weighs_by_sample) *share = count;
  return true;
}

py::object Road::take(py::handle client, py::handle update, py::handle version, py::handle num_samples) {
  double share = 1.0;
  if (!outside_.form || !share_of(num_samples, &share)) return py::none();
  update_.pieces.clear();
  update_.size = 0;
  update_.origin = origin_;
  reported_.clear();
  memory::Arrays arrays;
  const Form::Read found = outside_.form->read(update, size_, arrays, update_, reported_);
  if (found == Form::Read::kNo) return py::none();
  // Python warns that a model was sent
  if (found == Form::Read::kArrays && cpu::nearly(update_, flat_.data)) return py::none();
  const py::object owner = journal_ ? arrays.owner() : py::none();
  Held* held = Held::current();
  if (held != nullptr) held->note = Note{};  // a note may be left from a refused answer
  if (journal_ && reported_.given()) {
    if (held == nullptr) return py::none();
    held->note = note_of(update_, share, owner);
    reported_.describe(held->note.sent);
  }
  return arrive(client, version, share, py::none(), owner, &reported_);
}

py::object Road::take_many(const py::list& answers, size_t begin) {
  const auto parts_of = [](py::handle answer) {
    const bool is_one = PyTuple_Check(answer.ptr()) || PyList_Check(answer.ptr());
    const Py_ssize_t size = is_one ? PySequence_Fast_GET_SIZE(answer.ptr()) : 0;
    return size >= 2 && size <= 4 ? size : 0;
  };
  for (size_t i = begin; i < answers.size(); ++i)
    if (parts_of(answers[i]) == 0) return py::none();
  py::list receipts;
  for (size_t i = begin; i < answers.size(); ++i) {
    const py::object answer = answers[i];
    // copied, because the list's owner may change it
    py::object given[4] = {py::none(), py::none(), py::none(), py::none()};
    for (Py_ssize_t part = parts_of(answer); part-- > 0;)
      given[part] = py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(answer.ptr(), part));
    py::object receipt = py::none();
    try {
      receipt = take(given[0], given[1], given[2], given[3]);
    } catch (const std::runtime_error&) {  // refused: the error is raised when this answer is taken alone
      if (PyErr_Occurred() != nullptr) throw;
    }
    if (receipt.is_none()) break;
    receipts.append(std::move(receipt));
  }
  return receipts;
}

py::object Road::receive(py::handle client, py::handle version, const py::list& pieces, double share, py::handle more) {
  read(pieces, update_);
  return arrive(client, version, share, more, pieces, nullptr);
}

py::object Road::receive_row(py::handle client, py::handle version, const Recorded& recorded, double share,
                             py::handle more) {
  const Rows held = book_->coded_row();
  if (held.size == 0 || !runner_->at_once())
    throw std::invalid_argument("this server does not take encoded rows; one with coded rows on the CPU does");
  if (recorded.row != nullptr && (recorded.format != held.format || recorded.nbytes != held.packed_bytes()))
    throw std::invalid_argument("the row has another format or size than this server's rows");
  update_.pieces.clear();
  update_.size = size_;
  update_.origin = origin_;
  return arrive(client, version, share, more, py::none(), nullptr, &recorded);
}

// `reported`: the update's statistics. Null: Python has read the update, and `more` has a function for them.
py::object Road::arrive(py::handle client, py::handle version, double share, py::handle more, const py::object& owner,
                        const Reported* reported, const Recorded* recorded) {
  check_journal();
  const Ledger::Found task = ledger_->find(client, version);
  const int64_t now = ledger_->now, delay = now - task.version;
  book_->check(client, task.version, now);
  if (!before_row.is_none()) before_row(ledger_->identify(client));
  const bool worth = update_.size >= kWorthReleasing;

  double norm = 0.0;
  if (recorded != nullptr) {
    norm = recorded->norm;
  } else if (is_set(more, "judged")) {
    norm = number(more, "norm", 0.0);
  } else {
    const Released released(worth);
    const double squares = cpu::sum_squares(update_);
    if (!std::isfinite(squares)) return py::none();
    norm = std::sqrt(squares);
  }
  Facts facts{task.client, task.version, now, 1.0, 1.0, share, norm};
  if (clip_norm_ > 0.0 && norm > clip_norm_ && !is_set(more, "unclipped"))
    facts.gain = clip_norm_ / norm, facts.norm = clip_norm_;
  bool counts = true;
  if (const py::object given = item(more, "weight"); !given.is_none()) {
    facts.weight = py::cast<double>(given);
  } else {
    counts = !is_set(more, "drop") && weigh(delay, &facts.weight);
  }
  // keeps the version in memory until it was read
  const py::object base = book_->blends() ? ledger_->payload(task.version) : py::none();
  if (!base.is_none()) facts.base = vector_of(base).data;
  facts.count = static_cast<int64_t>(number(more, "count", 1.0));
  facts.total = number(more, "total", -1.0);
  if (std::isnan(facts.norm)) facts.norm = 0.0;  // the device will compute the norm and judge the update

  Step step;
  const bool waits = !counts || is_set(more, "waits");
  if (recorded != nullptr) facts.row = recorded->row;
  if (recorded != nullptr && !waits && facts.row == nullptr) throw std::invalid_argument("the row is missing");
  const py::object then = item(more, "then");
  if (!waits) step.outcome = book_->plan(facts);
  if (!waits) plan_step(step, nullptr, !then.is_none(), overlaps_model(update_));
  py::object moves = item(more, "moves"), statistics = py::none();
  const char* kind = step.applied(stepper_.lr) ? "step" : step.outcome != Outcome::kKept ? "drop" : "keep";
  if (const py::object ask = item(more, "statistics"); counts && !ask.is_none()) {
    statistics = ask(kind);
  } else if (counts && reported != nullptr && !hooks_.statistics.is_none()) {
    statistics = hooks_.statistics(py::cast(reported, py::return_value_policy::reference), kind);
  }
  const auto next_steps = static_cast<int32_t>(number(more, "next_steps", 0.0));
  const double weight = counts ? facts.weight : 0.0;
  const py::object id = ledger_->identify(client), rate = step_size(step, weight);
  const double said = number(more, "update_norm", norm);
  const bool applied = step.applied(stepper_.lr);
  py::object receipt = outside_.receipt.make({id, py::bool_(applied), py::int_(next_version(step)), py::int_(delay),
                                              rate, py::float_(said), py::float_(weight), py::bool_(true)});
  Arriving record;
  if (journal_) {
    // what was judged outside may depend on the update in other ways, too
    const Rows row = runner_->at_once() && !is_set(more, "judged") ? book_->coded_row() : Rows{};
    const CodedRow coded{row.format, waits ? 0 : row.packed_bytes()};
    record.prepare(
        journal_, id, task.version, life_of(task.version), share, update_,
        {applied, next_version(step), rate.is_none() ? std::nan("") : PyFloat_AS_DOUBLE(rate.ptr()), weight, said},
        lies_in_model(update_) ? nullptr : &owner, row.size > 0 ? &coded : nullptr);
    book_->copy_row_to(record.row_place());
    outside_.receipt.set(receipt, 8, journal_object_);
    outside_.receipt.set(receipt, 9, py::int_(record.sequence()));
  }

  const py::object agree = item(more, "agree");  // may still fail: the other ranks must agree
  if (!waits) {
    carry_out(worth, agree, [&] { book_->run(*runner_, update_, step.optimizer); });
  } else if (!agree.is_none()) {
    agree();
  }
  ask_python(step, then);

  if (!waits) book_->commit();
  commit(step, statistics, moves);
  if (next_steps > 0) ledger_->tell_next(task.client, next_steps);
  ledger_->close(task.client, task.version);
  record.push();
  return receipt;
}

py::list Road::fold(const py::list& answers, const py::object& statistics) {
  auto* buffered = dynamic_cast<Buffered*>(book_.get());
  py::list outcomes;
  if (buffered == nullptr || own()) return outcomes;
  std::vector<Update> updates(answers.size());
  std::vector<Trained> trained;
  const int64_t now = ledger_->now, room = buffered->room();
  for (size_t i = 0; i < answers.size() && static_cast<int64_t>(trained.size()) < room; ++i) {
    const py::tuple parts = answers[i];
    Ledger::Found task;
    try {
      task = ledger_->find(parts[0], parts[1]);
      book_->check(parts[0], task.version, now);
    } catch (const std::runtime_error&) {
      break;  // a later call gets it as the first answer and raises the error
    }
    bool again = false;  // whether the client has a second open task is known only after its first answer counted
    for (const Trained& other : trained) again = again || other.facts.client == task.client;
    Facts facts{task.client, task.version, now, 1.0, 1.0, py::cast<double>(parts[3]), std::nan("")};
    if (again || !weigh(now - task.version, &facts.weight)) break;
    read(py::reinterpret_borrow<py::list>(parts[2]), updates[i]);
    const auto* base = reinterpret_cast<const float*>(py::cast<uintptr_t>(parts[4]));
    trained.push_back({&updates[i], base, facts});
  }
  if (trained.empty()) return outcomes;

  Step step;
  step.outcome = buffered->plan_fold(trained);
  const Vector into = buffered->sum_after_fold();
  try {
    plan_step(step, &into, false);
  } catch (const TooLarge&) {
    return outcomes;  // the bounds assume the largest elements; one by one the real ones are known
  }
  Update sum;
  if (step.outcome == Outcome::kStep) {
    sum.origin = origin_;
    sum.add(into.data, size_, kFloat32);
  }
  py::object moves = py::none();
  if (!statistics.is_none())
    moves = statistics(trained.size(), step.applied(stepper_.lr)        ? "step"
                                       : step.outcome == Outcome::kStep ? "drop"
                                                                        : "keep");
  py::list receipts;
  for (size_t i = 0; i < trained.size(); ++i) {
    const Facts& facts = trained[i].facts;
    const bool here = step.outcome == Outcome::kStep && i + 1 == trained.size();
    receipts.append(outside_.receipt.make({ledger_->identify(py::tuple(answers[i])[0]),
                                           py::bool_(here && step.applied(stepper_.lr)), py::int_(now + here),
                                           py::int_(now - facts.start), here ? step_size(step, 1.0) : py::none(),
                                           py::float_(facts.norm), py::float_(facts.weight), py::bool_(true)}));
  }
  std::vector<bool> finite;
  bool all = true;
  {
    const Released released(size_ >= kWorthReleasing);
    finite = buffered->run_fold(trained);
    for (const bool one : finite) all = all && one;
    if (all && step.outcome == Outcome::kStep) buffered->run_flush(*runner_, sum, step.optimizer);
  }
  if (!all) {  // nothing has changed, so the others may be sent again
    for (const bool one : finite) outcomes.append(one ? py::object(py::bool_(false)) : py::object(py::none()));
    return outcomes;
  }
  buffered->commit_fold(step.outcome == Outcome::kStep && step.out && step.out.data == into.data);
  commit(step, moves, py::none());
  for (const Trained& one : trained) ledger_->close(one.facts.client, one.facts.start);
  return receipts;
}

void Road::check_round(const py::list& entries) {
  auto* buffered = dynamic_cast<Buffered*>(book_.get());
  if (buffered == nullptr) return;
  std::vector<Facts> facts;
  for (const py::handle entry : entries) {
    const py::tuple parts = py::reinterpret_borrow<py::tuple>(entry);
    const double gain = py::cast<double>(parts[2]);
    facts.push_back({-1, py::cast<int64_t>(parts[1]), ledger_->now, gain, py::cast<double>(parts[3]),
                     py::cast<double>(parts[4]), gain * py::cast<double>(parts[5])});
  }
  buffered->plan_numbers(facts, false);
  Step step;
  step.lr = stepper_.lr;
  check_bounds(step);
}

py::object Road::close_round(const py::list& entries, bool steps, py::handle client, py::handle version,
                             py::handle more) {
  auto* buffered = dynamic_cast<Buffered*>(book_.get());
  if (buffered == nullptr) return py::none();
  check_journal();
  const int64_t now = ledger_->now;
  Ledger::Found task{-1, now, 0};
  if (!client.is_none()) task = ledger_->find(client, version);
  std::vector<Update> updates(entries.size());
  std::vector<Facts> facts;
  double norm = 0.0, weight = 0.0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const py::tuple parts = entries[i];
    read(py::reinterpret_borrow<py::list>(parts[0]), updates[i]);
    norm = py::cast<double>(parts[5]);
    const double gain = py::cast<double>(parts[2]);
    weight = py::cast<double>(parts[3]);
    facts.push_back({-1, py::cast<int64_t>(parts[1]), now, gain, weight, py::cast<double>(parts[4]), gain * norm});
  }
  Step step;
  Update sum;
  if (!facts.empty()) {
    step.outcome = buffered->plan_round(facts, steps);
  } else if (buffered->plan_flush()) {
    step.outcome = Outcome::kStep;
    sum.origin = origin_;
    sum.add(buffered->acc().data, size_, kFloat32);
  } else {
    return py::none();
  }
  const bool flushes = facts.empty();
  const Vector into = flushes ? buffered->acc() : Vector{};
  const py::object then = item(more, "then");
  plan_step(step, flushes && runner_->at_once() ? &into : nullptr, !then.is_none());
  py::object statistics = item(more, "statistics");
  if (!statistics.is_none())
    statistics = statistics(step.applied(stepper_.lr) ? "step" : step.outcome == Outcome::kStep ? "drop" : "keep");
  const py::tuple found = py::make_tuple(step.applied(stepper_.lr), next_version(step), now - task.version,
                                         step_size(step, weight), norm, weight);
  Arriving record;
  Queued closes;
  if (journal_ && task.client >= 0) {  // the answer that ends the round; the others have their records
    const py::object rate = found[3];
    record.prepare(
        journal_, ledger_->identify(client), task.version, life_of(task.version), 1.0, Update{},
        {step.applied(stepper_.lr), next_version(step), rate.is_none() ? std::nan("") : py::cast<double>(rate),
         number(more, "weight", weight), number(more, "norm", norm)},
        nullptr, nullptr);
  } else if (journal_ && step.outcome != Outcome::kKept) {
    closes = record_of(kCloseRound);
  }
  carry_out(size_ >= kWorthReleasing, item(more, "agree"), [&] {
    if (flushes) {
      buffered->run_flush(*runner_, sum, step.optimizer);
    } else {
      buffered->run_round(*runner_, updates, step.optimizer);
    }
  });
  ask_python(step, then);
  if (flushes) {
    buffered->commit_fold(step.out && step.out.data == into.data);
  } else {
    buffered->commit();
  }
  commit(step, statistics, item(more, "moves"));
  if (task.client >= 0) ledger_->close(task.client, task.version);
  record.push();
  if (closes) queue(std::move(closes));
  return found;
}

}  // namespace fastagg::serving
