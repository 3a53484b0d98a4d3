// One step: its plan, its kernels and its commit.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "../cpu/cpu.h"
#include "../math/optimizers.h"
#include "engine.h"
#include "in_order.h"
#include "on_cpu.h"

namespace fastagg::engine {
namespace {

constexpr int64_t kWorthReadingOnce = int64_t{1} << 13;

const char* name_of(Outcome outcome, bool applied) {
  return applied ? "step" : outcome != Outcome::kKept ? "drop" : "keep";
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

double largest_of(const store::Vector& model, int64_t size, double most) {
  Update update;
  update.add(model.data, size, kFloat32);
  const double norm = std::sqrt(cpu::sum_squares(update));
  if (norm < std::min(1e37, most / 2)) return norm;
  double largest = 0.0;
  for (int64_t i = 0; i < size; ++i) largest = std::max<double>(largest, std::abs(model.data[i]));
  return largest;
}

}  // namespace

// Adds an answer to those that the step is planned with.
void Engine::with(const Contribution& brings, const Update& update, const Reported* reported, const void* extra) {
  contributions_.push_back(brings);
  contributions_.back().update = &update;
  updates_.push_back(&update);
  if (reported != nullptr || extra != nullptr) statistics_.push_back({reported, extra, brings.share});
}

void Engine::plan(Step& step, bool closes, bool folding) {
  contributions_.clear(), updates_.clear(), statistics_.clear(), trained_.clear();
  bool still = true;
  for (Given& one : given_) {
    const Answer& answer = *one.answer;
    if (answer.kind == Answer::kClose) break;
    with(one.brings, answer.update, answer.reported.get(), answer.extra.get());
    if (!folding) continue;
    contributions_.back().norm = kLargestElement;  // the pass finds larger elements
    trained_.push_back({&answer.update, answer.base});
    still = still && answer.still;
  }
  Given& first = given_.front();
  if (!closes && !folding && (!first.counts || first.findings.waits)) return;  // it changes nothing, or not now
  step.takes = true;
  bool ends = closes;
  if (settings_.ordered) {
    ends = ends || static_cast<int64_t>(waiting_.size()) + 1 == direction_->is.sums->room();
    step.keeps = !ends;
    step.takes = step.ends_round = ends;
    in_order(closes ? nullptr : &first);
  }
  step.outcome = planned(ends, first.once);
  if (folding) direction_->is.sums->plan_fold(still);
  step.along_sum = step.outcome == Outcome::kStep && (folding || updates_.empty());
  if (step.keeps) statistics_.clear();  // they count when the round ends
}

// What the direction plans. Rows that turn out to be lost are given up first, which is an operation of its own.
Outcome Engine::planned(bool closes, bool aside) {
  for (;;) {
    try {
      return direction_->plan(contributions_, closes, aside);
    } catch (const RowsLost& lost) {
      give_up(lost.slots);
    }
  }
}

// The updates of an ordered round: those that wait, and one more, by their clients.
void Engine::in_order(Given* last) {
  struct One {
    const ClientId* client;
    Contribution brings;
    const Update* update;
    const Reported* reported;
    const void* extra;
  };
  std::vector<One> all;
  for (Waiting& one : waiting_)
    all.push_back({&one.client, one.brings, &one.update, one.reported.get(), one.extra.get()});
  if (last != nullptr) {
    const Answer& answer = *last->answer;
    all.push_back({&answer.client, last->brings, &answer.update, answer.reported.get(), answer.extra.get()});
  }
  std::stable_sort(all.begin(), all.end(), [](const One& a, const One& b) { return *a.client < *b.client; });
  contributions_.clear(), updates_.clear(), statistics_.clear();
  for (One& one : all) {
    one.brings.now = ledger_.now;
    with(one.brings, *one.update, one.reported, one.extra);
  }
}

void Engine::write_receipts(const Step& step, bool applied, bool folding) {
  for (Given& one : given_) {
    Answer& answer = *one.answer;
    const bool makes = step.outcome != Outcome::kKept && (!folding || &one == &given_.back());
    const double weight = one.counts ? one.brings.weight : 0.0;
    Receipt& receipt = answer.receipt;
    receipt.applied = makes && applied;
    receipt.version = ledger_.now + makes;
    receipt.delay = answer.kind == Answer::kClose ? 0 : ledger_.now - one.task.version;
    receipt.task = answer.kind == Answer::kClose ? 0 : one.task.id;
    receipt.step_size = std::nan("");
    if (makes && step.outcome == Outcome::kStep)
      receipt.step_size = direction_->is.immediate ? step.lr * weight * direction_->scale(one.brings) : step.lr;
    receipt.norm = folding ? std::nan("") : one.findings.reported_norm.value_or(one.norm);
    receipt.weight = weight;
    receipt.sequence = 0;
    if (!one.record || answer.kind == Answer::kClose) continue;
    receipt.sequence = log_->next();
    one.operation.known = !std::isnan(receipt.norm) || answer.later;
    one.operation.decided = {receipt.applied, receipt.version, receipt.step_size, receipt.weight, receipt.norm};
    log::decide(*one.record, one.operation);
    one.record->later = answer.later, one.record->scales = direction_->is.immediate;
    one.record->waits = log_->waits(receipt.applied);
    if (void* const place = row_place(one)) direction_->is.rows->copy_row_to(place);
  }
}

// Whether the outcome is the one that the log tells.
void Engine::check_outcome(const Given& given) const {
  const log::Decided* const was = given.answer->decided;
  const Receipt& now = given.answer->receipt;
  const bool closes = given.answer->kind == Answer::kClose;
  if (was == nullptr || std::isnan(now.norm)) return;
  if (!closes && !same(was->norm, now.norm))
    throw Refusal(Why::kDamaged, "its numbers are not those that were counted: their norm was " +
                                     std::to_string(was->norm) + " then, and is " + std::to_string(now.norm));
  const bool equal = was->applied == now.applied && was->version == now.version &&
                     same(was->step_size, now.step_size) && (closes || same(was->weight, now.weight));
  if (equal) return;
  throw Refusal(Why::kSetting, "the outcome differs from the recorded one: the rule or the model differs (version " +
                                   std::to_string(was->version) + " then, " + std::to_string(now.version) + " now)");
}

// Adds trained models to the sum. False: one of them is not fit, and nothing has changed.
bool Engine::fold(Step& step) {
  const std::vector<bool> fit = direction_->is.sums->run_fold(trained_);
  const auto unfit = std::find(fit.begin(), fit.end(), false);
  fit_ = static_cast<size_t>(unfit - fit.begin());
  if (unfit != fit.end()) return false;
  if (step.outcome == Outcome::kStep) direction_->run(*runner_, {}, step.kernel);
  return true;
}

// Calls the planned kernels. Nothing has changed until all that they need is ready.
template <typename Act>
void Engine::run(Act act) {
  if (runner_->at_once()) return act();
  try {
    runner_->obey(given_.front().findings.verdict);
    act();
    runner_->prepare();
    // What only this step may be the last to hold.
    runner_->hold(model_.owner);
    for (const Given& one : given_) runner_->hold(one.base.owner);
    runner_->launch();
  } catch (...) {
    runner_->forget();
    direction_->cancel();
    throw;
  }
}

// Whether the step's kernel may be the one that reads the sender's memory. It then reads it once, and the norm is known
// when it is done: so nothing may depend on the norm, and what it writes must be memory that nobody reads. A small
// update is copied instead, because a copy stays in the cache.
bool Engine::may_read_once(const Given& given) const {
  const Answer& answer = *given.answer;
  return settings_.size >= kWorthReadingOnce && direction_->is.reads_once && given.counts && !answer.is_private &&
         answer.base == nullptr && !answer.is_whole() &&
         (answer.kind == Answer::kUpdate || answer.kind == Answer::kSum) && runner_->at_once() && !log_ &&
         !settings_.ordered && settings_.clip_norm == 0.0 && !prepares(answer) && !own_step() &&
         (optimizer_.nbytes() == 0 || !direction_->would_step(answer.count));  // moments move in place
}

// Calls the planned kernel, and checks what it has read before anything counts.
void Engine::run_once(Step& step) {
  Given& given = given_.front();
  ReadsOnce reader;
  direction_->run(reader, updates_, step.kernel);
  if (!std::isfinite(reader.squares)) throw Refusal(Why::kNotFinite, "update: NaN or infinity");
  given.norm = given.brings.norm = contributions_.front().norm = std::sqrt(reader.squares);
  direction_->measured(contributions_);
  check_bounds(step);
}

// The part of a step that is the extension's. It works on a vector that nobody else holds, so it may fail.
void Engine::finish(Step& step) {
  if (step.outcome != Outcome::kStep) return;
  if (own_step()) {
    Extension::Stepped found = extension_->step(step.out, model_, step.lr, ledger_.steps + 1);
    step.out = std::move(found.model);
    step.moves = std::move(found.change);
  }
  const Findings& findings = given_.front().findings;
  if (findings.finishes) findings.change->finish(step.out, settings_.size);
}

// Keeps an update until its round is complete.
void Engine::keep(Given& given) noexcept {
  Answer& answer = *given.answer;
  store::Owner& owner = answer.copy ? answer.copy : answer.owner;
  waiting_.push_back({std::move(answer.client), given.brings, std::move(answer.update), std::move(owner),
                      std::move(answer.reported), std::move(answer.extra)});
}

// One step: of one answer, of several trained models in one pass (`folding`), or of the end of a round. Returns how
// many answers it took. 0: nothing has changed, and `fit_` models may be taken in one pass.
size_t Engine::step(Answer* answers, size_t count, bool folding) {
  check_log();
  fit_ = 0;
  const InOrder order(*runner_);
  struct Clears {
    std::vector<Given>& given;
    ~Clears() { given.clear(); }
  } const clears{given_};
  const bool closes = answers->kind == Answer::kClose;

  // -- find, inspect, prepare
  for (size_t i = 0; i < count; ++i) {
    given_.emplace_back();
    Given& one = given_.back();
    one.answer = &answers[i];
    if (closes) break;
    try {
      find(one);
      if (folding && !one.counts) throw Refusal(Why::kSetting, "dropped");
    } catch (const Refusal&) {
      if (i == 0 && folding) return 0;
      if (i == 0) throw;
      given_.pop_back();  // it is found again as the first answer
      break;
    }
    if (folding) continue;
    one.once = may_read_once(one);
    if (!one.once) inspect(one);
    prepare(one);
  }

  // -- plan
  Step step;
  plan(step, closes, folding);
  if (closes && step.outcome == Outcome::kKept) return 0;
  const store::Vector into = step.along_sum ? direction_->is.sums->folded() : store::Vector{};
  Given& first = given_.front();
  try {
    if (step.takes || step.keeps)
      plan_step(step, into && runner_->at_once() ? &into : nullptr, first.findings.finishes);
  } catch (const Refusal& refused) {
    if (folding && refused.why == Why::kTooLarge) return 0;  // the bounds assume the largest elements
    throw;
  }
  if (first.once) run_once(step);
  const bool applied = step.applied(lr());
  std::unique_ptr<Change> statistics;
  if (first.counts && extension_ && extension_->asks.statistics)
    statistics = extension_->statistics(statistics_, name_of(step.outcome, applied));
  write_receipts(step, applied, folding);
  check_outcome(first);
  if (closes && log_) {
    log::Operation end;
    end.kind = log::kCloseRound;
    const Receipt& said = answers->receipt;
    end.decided = {said.applied, said.version, said.step_size, 0.0, 0.0};
    first.record = log::record_of(*log_, end);
  }
  if (cut_ && step.takes && !closes)
    cut_->before(direction_->is.rows ? direction_->is.rows->writes(first.brings.client) : -1);
  if (step.keeps) waiting_.reserve(waiting_.size() + 1);

  // -- get ready, run
  if (folding) {
    if (!fold(step)) return 0;
  } else if (step.takes && !first.once) {
    run([&] { direction_->run(*runner_, updates_, step.kernel); });
  }
  finish(step);

  // -- commit. What was there before is let go when everything has changed, because that may run Python's finalizers.
  if (step.takes) direction_->commit();
  if (step.out && step.out.data == into.data) direction_->is.sums->hand_over();
  commit(step);
  if (first.findings.change) first.findings.change->commit();
  if (statistics) {
    statistics->commit();
    if (statistics->state) std::swap(state_, statistics->state);
  }
  if (step.ends_round) waiting_.clear();
  for (Given& one : given_) {
    if (!closes) {
      if (one.findings.next_steps > 0) ledger_.tell_next(one.task.client, one.findings.next_steps);
      const Receipt& said = one.answer->receipt;
      if (one.answer->offset >= 0) ledger_.offset = one.answer->offset;
      ledger_.close(one.task.client, one.task.version, Ids::pack(said.version, said.applied));
    }
    if (one.record) log_->push(std::move(one.record));
  }
  if (step.keeps) keep(first);
  return given_.size();
}

void Engine::commit(Step& step) noexcept {
  if (step.outcome != Outcome::kKept) enough_since_ = std::nan("");
  if (step.outcome == Outcome::kStep) {
    shared_ = false;
    if (step.out) std::swap(model_, step.out);
    if (step.optimizer) std::swap(optimizer_, *step.optimizer);
    ++ledger_.steps;
  }
  if (step.outcome != Outcome::kKept) ++ledger_.now;
  if (!step.takes) return;
  model_bound_ = direction_->model_bound = step.bounds.model;
  optimizer_.bounds = step.bounds.moments;
  if (step.moves) step.moves->commit();
}

// -- the plan of a step ----------------------------------------------------------------------------------------------

// Prepares a step; nothing of it is visible yet: its learning rate, the vector of the next version, the optimizer's
// struct. `copies`: the step may still fail after its kernels.
void Engine::plan_step(Step& step, const store::Vector* into, bool copies) {
  step.lr = lr();
  const Staleness& staleness = settings_.staleness;
  if (step.outcome == Outcome::kStep && staleness.rate != Staleness::kSame) {
    std::vector<int64_t> delays;
    for (const int64_t start : direction_->versions()) delays.push_back(ledger_.now - start);
    step.lr = staleness.rate == Staleness::kAskRate ? extension_->rate(lr(), delays) : staleness.rate_of(lr(), delays);
  }
  check_bounds(step);
  if (step.outcome != Outcome::kStep) return;
  if (own_step()) {  // only computes the direction, as a vector
    step.out = memory_->vector(settings_.size);
    memory_->zero(step.out.data, settings_.size * static_cast<int64_t>(sizeof(float)));
    step.kernel = {place_in<Sgd>(Optimizers{}), {}, {}, step.out.data, step.out.data};
    step.kernel.hyper.lr = 1.0f;
    return;
  }
  if (copies) step.optimizer = optimizer_.copy();
  // Python that runs before the commit may still hand this version out.
  const bool readable = shared_ || !runner_->at_once() || (extension_ && extension_->asks.statistics);
  if (readable || copies || given_.front().once) step.out = into != nullptr ? *into : memory_->vector(settings_.size);
  const OptimizerState& with = step.optimizer ? *step.optimizer : optimizer_;
  step.kernel = with.planned(ledger_.steps, step.lr, model_.data, step.out ? step.out.data : model_.data);
}

// Computes upper bounds of all elements after this step, and refuses an update that might not stay finite. An update
// that waits for others is checked as if the step were taken now.
void Engine::check_bounds(Step& step) {
  const auto refuse = [this](const std::string& what) {
    const char* const type = settings_.largest_model < kLargestModel ? "the model's own type" : "float32";
    throw Refusal(Why::kTooLarge, "the update is too large: " + what + " could leave the range of " + type);
  };
  if (!(direction_->kept_bound() <= kLargestSum)) refuse("the sum of updates");
  for (bool measured = false;; measured = true) {
    const double drag = optimizer_.settings.drag() * model_bound_;
    const double d = direction_->bound() + drag;
    Bounds next{model_bound_, optimizer_.bounds};
    const double keep = std::max(1.0, std::abs(optimizer_.settings.keep(step.lr)));
    if (!own_step()) {
      next.model *= keep;
      const double along = direction_->growth(step.lr) + std::abs(step.lr) * drag;
      next.model += optimizer_.growth(step.lr, d, along, next.moments);
    }
    const bool fits = std::max(d, keep) <= kLargestElement &&
                      next.model <= std::min(kLargestModel, settings_.largest_model) && next.moments.m <= kLargestSum &&
                      next.moments.v <= kLargestMoment;
    if (fits) {
      step.bounds = step.outcome == Outcome::kStep ? next : Bounds{model_bound_, optimizer_.bounds};
      return;
    }
    if (measured) refuse(d <= kLargestElement ? "the model or the optimizer's moments" : "the square of the direction");
    measure();
  }
}

// Replaces the bounds, which otherwise only grow, by measured values. This is a pass over the vectors, and rarely
// needed.
void Engine::measure() {
  const InOrder order(*runner_);
  const auto of = [&](const store::Vector& model) {
    if (extension_ && extension_->asks.bounds) return extension_->bounds(model, optimizer_);
    return Bounds{largest_of(model, settings_.size, settings_.largest_model), optimizer_.measured()};
  };
  Bounds found = of(model_);
  if (direction_->is.blends)
    for (const store::Vector& kept : ledger_.all_kept()) found.model = std::max(found.model, of(kept).model);
  model_bound_ = direction_->model_bound = found.model;
  optimizer_.bounds = found.moments;
}

}  // namespace fastagg::engine
