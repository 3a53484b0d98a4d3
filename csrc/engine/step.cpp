// The three kinds of transactions, and what is behind an answer's inspection: plan, run and commit.
#include <algorithm>
#include <cmath>

#include "../cpu/cpu.h"
#include "../math/optimizers.h"
#include "../store/encoded.h"
#include "core.h"
#include "on_cpu.h"

namespace fastagg::engine {
namespace {

constexpr int64_t kWorthReadingOnce = int64_t{1} << 13;

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Whether the outcome is the one that the log tells.
void check_outcome(const log::Decided* was, const Receipt& now, bool answers) {
  if (was == nullptr || std::isnan(now.norm)) return;
  if (answers && !same(was->norm, now.norm))
    throw Refusal(Why::kDamaged, "its numbers are not those that were counted: their norm was " +
                                     std::to_string(was->norm) + " then, and is " + std::to_string(now.norm));
  const bool equal = (was->applied != 0) == now.applied && was->version == now.version &&
                     same(was->step_size, now.step_size) && (!answers || same(was->weight, now.weight));
  if (equal) return;
  throw Refusal(Why::kSetting, "the outcome differs from the recorded one: the rule or the model differs (version " +
                                   std::to_string(was->version) + " then, " + std::to_string(now.version) + " now)");
}

double rate_of(const Core& of) {
  const Staleness& staleness = of.settings.staleness;
  if (staleness.rate == Staleness::kSame) return of.optimizer.settings.lr;
  std::vector<int64_t> delays;
  for (const int64_t start : of.direction->versions()) delays.push_back(of.ledger.now - start);
  return staleness.rate == Staleness::kAskRate ? of.extension->rate(of.optimizer.settings.lr, delays)
                                               : staleness.rate_of(of.optimizer.settings.lr, delays);
}

}  // namespace

Transaction::Transaction(Core& of) : of_(of), order_(of.place), given_(of.scratch.given) {
  of.records.check();
  step_.bounds = {of.model.bound, of.optimizer.bounds};
}

Given& Transaction::add(Answer& answer) {
  Given& one = given_.emplace_back();
  one.answer = one.brings.answer = &answer;
  if (store::is_encoded(answer.update)) answer.is_private = true;
  return one;
}

// -- one answer

void OneAnswer::take(Answer& answer) {
  Given& one = add(answer);
  find(one);
  const bool once = may_read_once(one);
  if (!once) inspect(one);
  prepare(one);
  if (one.counts && !one.findings.waits) plan(false, once ? Way::kOnce : Way::kMeasured);
  if (once) read_once(one);
  if (step_.aside) run(), finish();
  decide(one, step_.outcome != Outcome::kKept, one.findings.reported_norm.value_or(one.norm));
  check_outcome(answer.decided, answer.receipt, true);
  conclude();
  if (step_.planned && !once && !step_.aside) run();
  commit();
}

void OneAnswer::look_at(Answer& answer) {
  find(add(answer));
  of_.inspector->look_at(answer);
  given_.clear();
}

// Whether the step's kernel may be the one that reads the sender's memory. It then reads it once, and the norm is known
// when it is done: so nothing may depend on the norm, and what it writes must be memory that nobody reads. A small
// update is copied instead, because a copy stays in the cache.
bool OneAnswer::may_read_once(const Given& given) const {
  const Answer& answer = *given.answer;
  const Settings& settings = of_.settings;
  const DirectionState& direction = *of_.direction;
  return settings.size >= kWorthReadingOnce && direction.is.reads_once && given.counts && !answer.is_private &&
         !answer.base && (answer.kind == Answer::kUpdate || answer.kind == Answer::kSum) && !of_.place.device &&
         !of_.records && of_.clip_norm() == 0.0 && !of_.prepares(answer) && !of_.steps_in_python() &&
         (of_.optimizer.nbytes() == 0 || !direction.would_step(answer.count));  // moments move in place
}

// Calls the planned kernel, and checks what it has read before anything counts.
void OneAnswer::read_once(Given& given) {
  Scratch& scratch = of_.scratch;
  ReadsOnce reader;
  of_.direction->run(reader, step_.kernel);
  if (!std::isfinite(reader.squares)) throw Refusal(Why::kNotFinite, "update: NaN or infinity");
  given.norm = given.brings.norm = scratch.contributions.front().norm = std::sqrt(reader.squares);
  of_.direction->measured(scratch.contributions);
  check_bounds();
}

// -- several in one pass

size_t Several::together(const Core& of, const Answer* answers, size_t count) {
  const Sums* const sums = of.direction->is.sums;
  if (!of.settings.folds || of.records || !sums || !sums->folds) return 0;
  const auto most = std::min(count, static_cast<size_t>(sums->room()));
  const bool models = answers->kind == Answer::kModel;
  const auto fits = [&](const Answer& one) {
    const bool updates = one.kind == Answer::kUpdate && !one.is_private && !store::is_encoded(one.update);
    return (models ? one.kind == Answer::kModel : updates) && !of.prepares(one);
  };
  size_t found = 0;
  int64_t offset = of.ledger.offset;
  while (found < most && fits(answers[found])) {
    const int64_t next = answers[found].offset;
    if (next >= 0 && next <= offset) break;  // an answer that came twice
    offset = std::max(offset, next);
    // Whether a client has a second open task is known only after its first answer counted.
    const auto is_its = [&](const Answer& other) { return other.client == answers[found].client; };
    if (std::any_of(answers, answers + found, is_its)) break;
    ++found;
  }
  return models || found > 1 ? found : 0;
}

size_t Several::take(Answer* answers, size_t count) {
  const bool models = answers->kind == Answer::kModel;
  bool still = true;
  for (size_t i = 0; i < count; ++i) {
    Given& one = add(answers[i]);
    try {
      find(one);
      if (!one.counts) throw Refusal(Why::kSetting, "dropped");
    } catch (const Refusal&) {  // it is found again as the first answer
      if (i == 0) return 0;
      given_.pop_back();
      break;
    }
    if (models) one.brings.norm = kLargestElement;  // the pass finds larger elements; of updates it finds the norm
    one.brings.base = answers[i].base.data;
    still = still && answers[i].still;
  }
  Sums& sums = *of_.direction->is.sums;
  try {
    plan(false, !models ? Way::kUpdates : still ? Way::kStillModels : Way::kModels);
    std::vector<double> squares(models ? 0 : given_.size());
    fit_ = sums.fold(models ? nullptr : &squares);
    if (fit_ < given_.size()) return 0;
    for (size_t i = 0; i < given_.size(); ++i)
      given_[i].norm = models ? std::nan("") : of_.scratch.contributions[i].norm = std::sqrt(squares[i]);
    if (!models) of_.direction->measured(of_.scratch.contributions), check_bounds();
  } catch (const Refusal&) {  // whose fault it is turns out one by one; bounds of models assume the largest elements
    return fit_ = 0;
  }
  for (Given& one : given_) decide(one, step_.outcome != Outcome::kKept && &one == &given_.back(), one.norm);
  conclude();
  run();
  commit();
  return fit_;
}

// -- the end of a round

bool EndOfRound::take(Receipt* receipt, const log::Decided* was) {
  plan(true, Way::kMeasured);
  if (step_.outcome == Outcome::kKept) return false;
  *receipt = {};
  receipt->applied = applied();
  receipt->version = of_.ledger.now + 1;
  if (steps()) receipt->step_size = step_.lr;
  check_outcome(was, *receipt, false);
  log::Operation end;
  end.kind = log::kCloseRound;
  end.decided = {1, receipt->applied, receipt->version, receipt->step_size};
  log::Queued record = of_.records.of(end);
  conclude();
  run();
  commit();
  of_.records.add(std::move(record));
  return true;
}

// -- plan

// What the answers make, and all that the step needs; nothing of it is visible yet.
void Transaction::plan(bool closes, Way way) {
  Scratch& scratch = of_.scratch;
  scratch.contributions.clear();
  for (Given& one : given_) {
    scratch.contributions.push_back(one.brings);
    scratch.contributions.back().update = &one.answer->update;
  }
  if (Privacy* const privacy = of_.direction->is.privacy) {
    const int64_t makes = of_.ledger.now + 1;
    privacy->begin(of_.ledger.incarnations.of(makes), makes);
  }
  while (!step_.planned) {
    try {
      step_.outcome = of_.direction->plan(scratch.contributions, closes, way);
      step_.planned = true;
    } catch (const RowsLost& lost) {  // which is an operation of its own
      of_.give_up(lost.slots);
    }
  }
  step_.lr = steps() ? rate_of(of_) : of_.optimizer.settings.lr;
  check_bounds();
  if (steps()) plan_step(way);
}

// The vector of the next version, and the optimizer's struct.
void Transaction::plan_step(Way way) {
  const int64_t size = of_.settings.size;
  of_.model.make_room();
  if (of_.steps_in_python()) {  // only computes the direction, as a vector
    step_.aside = true;
    step_.next = of_.place.memory->vector(size);
    of_.place.memory->zero(step_.next.data, size * static_cast<int64_t>(sizeof(float)));
    step_.kernel = {place_in<Sgd>(Optimizers{}), {}, {}, step_.next.data, step_.next.data};
    step_.kernel.hyper.lr = 1.0f;
    return;
  }
  step_.aside = !given_.empty() && given_.front().findings.finishes;
  if (step_.aside) step_.moments = of_.optimizer.copy();
  const store::Vector& x = of_.model.current;
  const Sums* const sums = of_.direction->is.sums;
  if (sums && !of_.place.device && x.dtype == kFloat32) step_.sum = sums->along();
  // Python that runs before the commit may still hand this version out.
  const bool readable = of_.model.shared || of_.place.device || (of_.extension && of_.extension->asks.statistics);
  if (readable || step_.aside || way == Way::kOnce)
    step_.next = step_.sum ? step_.sum : of_.place.memory->vector(size, x.dtype);
  const OptimizerState& with = step_.moments ? *step_.moments : of_.optimizer;
  step_.kernel = with.planned(of_.ledger.steps, step_.lr, x, step_.next ? step_.next : x);
}

// Computes upper bounds of all elements after this step, and refuses an update that might not stay finite. An update
// that waits for others is checked as if the step were taken now.
void Transaction::check_bounds() {
  const Settings& settings = of_.settings;
  const DirectionState& direction = *of_.direction;
  const OptimizerSettings& optimizer = of_.optimizer.settings;
  const auto refuse = [&](const std::string& what) {
    const char* const type = settings.largest_model < kLargestModel ? "the model's own type" : "float32";
    throw Refusal(Why::kTooLarge, "the update is too large: " + what + " could leave the range of " + type);
  };
  if (!(direction.kept_bound() <= kLargestSum)) refuse("the sum of updates");
  for (bool measured = false;; measured = true) {
    const Bounds now{of_.model.bound, of_.optimizer.bounds};
    const double drag = optimizer.drag() * now.model, keep = std::max(1.0, std::abs(optimizer.keep(step_.lr)));
    const double d = direction.bound() + drag;
    Bounds next = now;
    if (!of_.steps_in_python()) {
      const double along = direction.growth(step_.lr) + std::abs(step_.lr) * drag;
      next.model = next.model * keep + of_.optimizer.growth(step_.lr, d, along, next.moments);
      if (of_.model.current.dtype == kBFloat16) next.model *= kRounded;
    }
    const bool fits = std::max(d, keep) <= kLargestElement &&
                      next.model <= std::min(kLargestModel, settings.largest_model) && next.moments.m <= kLargestSum &&
                      next.moments.v <= kLargestMoment;
    step_.bounds = steps() ? next : now;
    if (fits) return;
    if (measured) refuse(d <= kLargestElement ? "the model or the optimizer's moments" : "the square of the direction");
    of_.measure();
  }
}

// -- conclude

bool Transaction::applied() const { return steps() && (step_.lr != 0.0 || of_.optimizer.settings.lr == 0.0); }

// Writes an answer's receipt, and the outcome into its record. `ends`: it is the one that makes a version.
void Transaction::decide(Given& given, bool ends, double norm) {
  const DirectionState& direction = *of_.direction;
  Receipt& receipt = given.answer->receipt;
  const double weight = given.counts ? given.brings.weight : 0.0;
  receipt = {};
  receipt.applied = ends && applied();
  receipt.version = of_.ledger.now + ends;
  receipt.delay = of_.ledger.now - given.task.version;
  receipt.task = given.task.id;
  if (ends && steps())
    receipt.step_size = direction.is.immediate ? step_.lr * weight * direction.scale(given.brings) : step_.lr;
  receipt.norm = norm;
  receipt.weight = weight;
  of_.records.decide(given);
}

// The last that may fail: statistics, and a row that a checkpoint has not written yet.
void Transaction::conclude() {
  const bool counts = given_.empty() || given_.front().counts;
  if (counts && of_.extension && of_.extension->asks.statistics) {
    std::vector<Statistics>& all = of_.scratch.statistics;
    all.clear();
    const auto add = [&](const Contribution& one) {
      if (one.answer->reported || one.answer->extra)
        all.push_back({one.answer->reported.get(), one.answer->extra.get(), one.share});
    };
    if (step_.planned) {
      for (const Contribution& one : of_.direction->counted(of_.scratch.contributions)) add(one);
    } else {
      add(given_.front().brings);
    }
    const char* const name = applied() ? "step" : step_.outcome != Outcome::kKept ? "drop" : "keep";
    step_.statistics = of_.extension->statistics(all, name);
  }
  if (const RowKeeper* const rows = of_.direction->is.rows; rows && of_.cut && step_.planned && !given_.empty())
    of_.cut->before(rows->writes(given_.front().brings.client));
}

// -- run and commit

// Calls the planned kernels. On a device nothing has changed until all that they need is ready.
void Transaction::run() {
  Device* const device = of_.place.device.get();
  try {
    of_.direction->run(*of_.place.runner, step_.kernel);
    if (device == nullptr) return;
    // What only this step may be the last to hold.
    device->hold(of_.model.current.owner);
    for (const Given& one : given_) device->hold(one.base.owner);
    device->launch();
  } catch (...) {
    of_.direction->cancel();
    throw;
  }
}

// The part of a step that is the extension's. It works on a vector that nobody else holds, so it may fail.
void Transaction::finish() {
  if (of_.steps_in_python()) {
    Extension::Stepped found = of_.extension->step(step_.next, of_.model.current, step_.lr, of_.ledger.steps + 1);
    step_.next = std::move(found.model);
    step_.change = std::move(found.change);
  }
  if (given_.empty()) return;
  const Findings& findings = given_.front().findings;
  if (findings.finishes) findings.change->finish(step_.next, of_.settings.size);
}

// What was there before is let go with this object, because that may run Python's finalizers.
void Transaction::commit() noexcept {
  for (const Given& one : given_)
    if (one.participant >= 0 && one.counts) of_.ledger.participation.count(one.participant, of_.ledger.steps);
  if (step_.planned) {
    of_.direction->commit();
    if (step_.next && step_.next.data == step_.sum.data) of_.direction->is.sums->hand_over();
  }
  if (steps()) {
    of_.model.advance(step_.next);
    if (step_.moments) std::swap(of_.optimizer, *step_.moments);
    ++of_.ledger.steps;
  }
  if (step_.planned) {
    of_.model.bound = of_.direction->model_bound = step_.bounds.model;
    of_.optimizer.bounds = step_.bounds.moments;
  }
  if (step_.outcome != Outcome::kKept) {
    of_.enough_since = std::nan("");
    ++of_.ledger.now;
  }
  if (step_.change) step_.change->commit();
  if (step_.statistics) {
    step_.statistics->commit();
    if (step_.statistics->state) std::swap(of_.model.state, step_.statistics->state);
  }
  for (Given& one : given_) {
    if (one.findings.change) one.findings.change->commit();
    if (one.findings.next_steps > 0) of_.ledger.roster.tell_next(one.task.client, one.findings.next_steps);
    const Answer& answer = *one.answer;
    if (answer.offset >= 0) of_.ledger.offset = answer.offset;
    of_.ledger.close(one.task.client, one.task.version, Ids::pack(answer.receipt.version, answer.receipt.applied));
    of_.records.add(std::move(one.record));
  }
}

}  // namespace fastagg::engine
