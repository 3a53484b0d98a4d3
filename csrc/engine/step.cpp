// The three kinds of transactions (transaction.h), and the stages from `plan` on. inspect.cpp has the earlier stages.
#include <algorithm>
#include <cmath>

#include "../cpu/cpu.h"
#include "../cpu/tuning.h"
#include "../math/optimizers.h"
#include "../store/encoded.h"
#include "core.h"
#include "on_cpu.h"

namespace fastagg::engine {
namespace {

constexpr int64_t kWorthReadingOnce = int64_t{1} << 13;  // in elements; smaller copies stay in the L1 cache

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Checks that the outcome `now` is the recorded outcome `was`. Checks nothing if `was` is null (outside of a recovery),
// or if the norm is not known. `answers`: whether the outcome is an answer's; false: a round's end.
void check_outcome(const log::RecordFields* was, const Receipt& now, bool answers) {
  if (was == nullptr || std::isnan(now.norm)) return;
  if (answers && !same(was->norm, now.norm))
    throw Refusal(Why::kDamaged, "its numbers are not those that were counted: their norm was " +
                                     std::to_string(was->norm) + " then, and is " + std::to_string(now.norm));
  const bool equal = (was->applied != 0) == now.applied && was->version_after == now.version &&
                     same(was->step_size, now.step_size) && (!answers || same(was->weight, now.weight));
  if (equal) return;
  throw Refusal(Why::kSetting, "the outcome differs from the recorded one: the rule or the model differs (version " +
                                   std::to_string(was->version_after) + " then, " + std::to_string(now.version) +
                                   " now)");
}

double rate_of(const Core& of) {
  const Staleness& staleness = of.settings.staleness;
  if (!staleness.changes_rate()) return of.optimizer.settings.lr;
  std::vector<int64_t> delays;
  for (const int64_t start : of.direction->versions()) delays.push_back(of.ledger.now - start);
  const double lr = of.optimizer.settings.lr;
  return staleness.rate ? staleness.rate_of(lr, delays) : of.extension->rate(lr, delays);
}

}  // namespace

Stages::Stages(Core& core) : core_(core), order_(core.place), pending_(core.scratch.pending) {
  core_.records.check();
  step_.bounds = {core_.model.bound, core_.optimizer.bounds};
}

bool Transaction::execute() {
  if (!find()) return false;
  inspect();
  prepare();
  if (!plan()) return false;
  if (!read()) return false;
  if (step_.finishes) run(), finish();
  decide();
  conclude();
  if (!step_.has_run) run();
  commit();
  return true;
}

PendingAnswer& Stages::add(Answer& answer) {
  PendingAnswer& pending = pending_.emplace_back();
  pending.answer = pending.brings.answer = &answer;
  if (store::is_encoded(answer.update)) answer.is_private = true;
  return pending;
}

// -- one answer

bool AnswerTransaction::find() {
  find_task(add(answer_));
  check_participants(answer_);
  compare_form(pending());
  reads_once_ = may_read_once();
  return true;
}

void AnswerTransaction::inspect() {
  if (!reads_once_) inspect_update(pending());
}

void AnswerTransaction::prepare() { ask_extension(pending()); }

bool AnswerTransaction::plan() {
  const bool changes = pending().counts && !pending().findings.waits;
  if (changes) plan_direction(false, reads_once_ ? ReadMode::kReadOnce : ReadMode::kMeasured);
  return true;  // an answer that changes nothing still ends its task
}

// Calls the planned kernel, which writes only to memory that nobody reads. Then checks the update that the kernel read.
bool AnswerTransaction::read() {
  if (!reads_once_) return true;
  TransactionScratch& scratch = core_.scratch;
  SinglePassRunner reader;
  core_.direction->run(reader, step_.kernel);
  step_.has_run = true;
  if (!std::isfinite(reader.squares)) throw Refusal(Why::kNotFinite, "update: NaN or infinity");
  pending().norm = pending().brings.norm = scratch.contributions.front().norm = std::sqrt(reader.squares);
  core_.direction->measured(scratch.contributions);
  check_bounds();
  return true;
}

void AnswerTransaction::decide() {
  const double norm = pending().findings.reported_norm.value_or(pending().norm);
  write_receipt(pending(), step_.outcome != Outcome::kKept, norm);
  check_outcome(answer_.decided, answer_.receipt, true);
}

void AnswerTransaction::check() {
  find_task(add(answer_));
  core_.inspector->look_at(answer_);
  pending_.clear();
}

// Whether only the step's kernel reads the sender's memory. The kernel reads the memory once, and the norm is known
// only afterwards. So nothing may depend on the norm, and the kernel may write only to memory that nobody reads. A
// small update is inspected first. So is an update that is better added to the sum or to the model in place
// (cpu/tuning.h).
bool AnswerTransaction::may_read_once() const {
  const Settings& settings = core_.settings;
  const DirectionState& direction = *core_.direction;
  const bool steps = direction.would_step(answer_.count);
  const bool in_place = answer_.still && cpu::holds_two(settings.size) && !(steps && keeps_version());
  return settings.size >= kWorthReadingOnce && direction.is.reads_once && pending_.front().counts &&
         (steps || !cpu::adds_in_place(settings.size)) && !in_place && !answer_.is_private && !answer_.base &&
         (answer_.kind == Answer::kUpdate || answer_.kind == Answer::kSum) && !core_.place.device && !core_.records &&
         core_.clip_norm() == 0.0 && !core_.prepares(answer_) && !core_.steps_in_python() &&
         (core_.optimizer.nbytes() == 0 || !steps);  // a step with moments would change them in place
}

// -- a batch

size_t BatchTransaction::capacity(const Core& core, const Answer* answers, size_t count) {
  const Sums* const sums = core.direction->is.sums;
  if (!core.settings.folds || core.records || !sums || !sums->folds) return 0;
  const auto largest = std::min(count, static_cast<size_t>(sums->room()));
  const bool models = answers->kind == Answer::kModel;
  const auto fits = [&](const Answer& answer) {
    const bool updates = answer.kind == Answer::kUpdate && !answer.is_private && !store::is_encoded(answer.update);
    return (models ? answer.kind == Answer::kModel : updates) && !core.prepares(answer);
  };
  size_t taken = 0;
  int64_t offset = core.ledger.offset;
  while (taken < largest && fits(answers[taken])) {
    const int64_t next = answers[taken].offset;
    if (next >= 0 && next <= offset) break;  // this answer was counted or skipped already
    offset = std::max(offset, next);
    // A batch has one answer of each client, because a second answer's task is found after the first has counted.
    const auto is_its = [&](const Answer& other) { return other.client == answers[taken].client; };
    if (std::any_of(answers, answers + taken, is_its)) break;
    ++taken;
  }
  return models || taken > 1 ? taken : 0;
}

bool BatchTransaction::find() {
  for (size_t i = 0; i < count_; ++i) {
    PendingAnswer& pending = add(answers_[i]);
    try {
      find_task(pending);
      check_participants(answers_[i]);
      compare_form(pending);
      if (!pending.counts) throw Refusal(Why::kSetting, "dropped");
    } catch (const Refusal&) {  // the answer will be executed again, in a transaction of its own
      pending_.pop_back();
      break;
    }
    // The norms are not known yet. For models the plan assumes the largest allowed element, and `fold` checks the
    // elements. For updates `fold` computes the norms.
    if (has_models()) pending.brings.norm = kLargestElement;
    pending.brings.base = answers_[i].base.data;
  }
  return !pending_.empty();
}

bool BatchTransaction::plan() {
  const bool still =
      std::all_of(answers_, answers_ + pending_.size(), [](const Answer& answer) { return answer.still; });
  try {
    plan_direction(false, !has_models() ? ReadMode::kUpdates : still ? ReadMode::kStillModels : ReadMode::kModels);
  } catch (const Refusal&) {  // the plan's assumption may be too large: each answer is executed alone instead
    return false;
  }
  return true;
}

bool BatchTransaction::read() {
  std::vector<double> squares(has_models() ? 0 : pending_.size());
  Contributions& contributions = core_.scratch.contributions;
  try {
    fit_ = core_.direction->is.sums->fold(has_models() ? nullptr : &squares);
    if (fit_ < pending_.size()) return false;
    for (size_t i = 0; i < pending_.size(); ++i)
      pending_[i].norm = has_models() ? std::nan("") : contributions[i].norm = std::sqrt(squares[i]);
    if (!has_models()) core_.direction->measured(contributions), check_bounds();
  } catch (const Refusal&) {
    fit_ = 0;
    return false;
  }
  return true;
}

void BatchTransaction::decide() {
  for (PendingAnswer& pending : pending_)
    write_receipt(pending, step_.outcome != Outcome::kKept && &pending == &pending_.back(), pending.norm);
}

// -- the end of a round

bool RoundEndTransaction::plan() {
  plan_direction(true, ReadMode::kMeasured);
  return step_.outcome != Outcome::kKept;  // kKept: the round has no update
}

void RoundEndTransaction::decide() {
  receipt_ = {};
  receipt_.applied = applied();
  receipt_.version = core_.ledger.now + 1;
  if (steps()) receipt_.step_size = step_.lr;
  check_outcome(recorded_, receipt_, false);
  log::Operation end;
  end.kind = log::kCloseRound;
  end.applied = receipt_.applied, end.version_after = receipt_.version, end.step_size = receipt_.step_size;
  step_.record = core_.records.of(end);
}

// -- plan

// Plans the direction's step and the next version. Nobody else can see the plan.
void Stages::plan_direction(bool closes, ReadMode mode) {
  TransactionScratch& scratch = core_.scratch;
  scratch.contributions.clear();
  for (PendingAnswer& pending : pending_) {
    scratch.contributions.push_back(pending.brings);
    scratch.contributions.back().update = &pending.answer->update;
  }
  if (Privacy* const privacy = core_.direction->is.privacy) {
    const int64_t makes = core_.ledger.now + 1;
    privacy->begin(core_.ledger.incarnations.of(makes), makes);
  }
  step_.outcome = core_.direction->plan(scratch.contributions, closes, mode);
  step_.planned = true;
  step_.lr = steps() ? rate_of(core_) : core_.optimizer.settings.lr;
  check_bounds();
  if (steps()) plan_step(mode);
}

// Whether a step must leave the current version as it is. Python code that runs before the commit (statistics) may
// still give the current version to somebody.
bool Stages::keeps_version() const {
  return core_.model.is_held() || core_.place.device || (core_.extension && core_.extension->asks.statistics);
}

// Allocates the next version's vector, unless the step is in place. Fills in `step_.kernel`.
void Stages::plan_step(ReadMode mode) {
  const int64_t size = core_.settings.size;
  core_.model.make_room();
  if (core_.steps_in_python()) {  // then the kernel only writes the direction to a vector
    step_.finishes = true;
    step_.next = core_.place.memory->vector(size);
    core_.place.memory->zero(step_.next.data, size * static_cast<int64_t>(sizeof(float)));
    step_.kernel = {place_in<Sgd>(Optimizers{}), {}, {}, step_.next.data, step_.next.data};
    step_.kernel.hyper.lr = 1.0f;
    return;
  }
  step_.finishes = !pending_.empty() && pending_.front().findings.finishes;
  if (step_.finishes) step_.moments = core_.optimizer.copy();
  const store::Vector& x = core_.model.current;
  const Sums* const sums = core_.direction->is.sums;
  if (sums && !core_.place.device && x.dtype == kFloat32) step_.sum = sums->along();
  // The memory of a complete sum becomes the next version. The memory of a version that was sent is then released.
  const bool hands_over = core_.model.shared && step_.sum;
  if (hands_over || keeps_version() || step_.finishes || mode == ReadMode::kReadOnce)
    step_.next = step_.sum ? step_.sum : core_.place.memory->vector(size, x.dtype);
  const OptimizerState& with = step_.moments ? *step_.moments : core_.optimizer;
  step_.kernel = with.planned(core_.ledger.steps, step_.lr, x, step_.next ? step_.next : x);
}

// Computes upper bounds of all elements after this step. Refuses an update after which an element might not be finite.
// An update that waits for others is checked as if the step were made now.
void Stages::check_bounds() {
  const Settings& settings = core_.settings;
  const DirectionState& direction = *core_.direction;
  const OptimizerSettings& optimizer = core_.optimizer.settings;
  const auto refuse = [&](const std::string& what) {
    const char* const type = settings.largest_model < kLargestModel ? "the model's own type" : "float32";
    throw Refusal(Why::kTooLarge, "the update is too large: " + what + " could leave the range of " + type);
  };
  if (!(direction.kept_bound() <= kLargestSum)) refuse("the sum of updates");
  for (bool measured = false;; measured = true) {
    const Bounds now{core_.model.bound, core_.optimizer.bounds};
    const double drag = optimizer.drag() * now.model, keep = std::max(1.0, std::abs(optimizer.keep(step_.lr)));
    const double d = direction.bound() + drag;
    Bounds next = now;
    if (!core_.steps_in_python()) {
      const double along = direction.growth(step_.lr) + std::abs(step_.lr) * drag;
      next.model = next.model * keep + core_.optimizer.growth(step_.lr, d, along, next.moments);
      if (core_.model.current.dtype == kBFloat16) next.model *= kRounded;
    }
    const bool fits = std::max(d, keep) <= kLargestElement &&
                      next.model <= std::min(kLargestModel, settings.largest_model) && next.moments.m <= kLargestSum &&
                      next.moments.v <= kLargestMoment;
    step_.bounds = steps() ? next : now;
    if (fits) return;
    if (measured) refuse(d <= kLargestElement ? "the model or the optimizer's moments" : "the square of the direction");
    core_.measure();
  }
}

// -- conclude

bool Stages::applied() const { return steps() && (step_.lr != 0.0 || core_.optimizer.settings.lr == 0.0); }

// Writes an answer's receipt, and its outcome into the log record. `ends`: whether this answer makes a new version.
void Stages::write_receipt(PendingAnswer& pending, bool ends, double norm) {
  const DirectionState& direction = *core_.direction;
  place_participants(pending);
  Receipt& receipt = pending.answer->receipt;
  const double weight = pending.counts ? pending.findings.reported_weight.value_or(pending.brings.weight) : 0.0;
  receipt = {};
  receipt.applied = ends && applied();
  receipt.version = core_.ledger.now + ends;
  receipt.delay = core_.ledger.now - pending.task.version;
  receipt.task = pending.task.id;
  if (ends && steps())
    receipt.step_size = direction.is.immediate ? step_.lr * weight * direction.scale(pending.brings) : step_.lr;
  receipt.norm = norm;
  receipt.weight = weight;
  core_.records.decide(pending);
}

// Computes the model's new statistics. If a row will change that a running checkpoint has not saved yet, copies the row
// for the checkpoint. On the CPU no later work may fail.
void Transaction::conclude() {
  const bool counts = pending_.empty() || pending_.front().counts;
  if (counts && core_.extension && core_.extension->asks.statistics) {
    std::vector<Statistics>& all = core_.scratch.statistics;
    all.clear();
    const auto add = [&](const Contribution& contribution) {
      all.push_back({contribution.answer->reported.get(), contribution.answer->extra.get(), contribution.share,
                     contribution.moves});
    };
    if (step_.planned) {
      for (const Contribution& contribution : core_.direction->counted(core_.scratch.contributions)) add(contribution);
    } else {
      add(pending_.front().brings);
    }
    const char* const name = applied() ? "step" : step_.outcome != Outcome::kKept ? "drop" : "keep";
    const Sums* const sums = core_.direction->is.sums;
    step_.statistics = core_.extension->statistics(all, sums ? sums->shares : std::vector<double>{}, name);
  }
  if (const RowKeeper* const rows = core_.direction->is.rows; rows && core_.cut && step_.planned && !pending_.empty())
    core_.cut->before(rows->writes(pending_.front().brings.client));
}

// -- run and commit

// Calls the planned kernels. On a device nothing changes until `launch` starts the kernels.
void Transaction::run() {
  if (!step_.planned) return;
  step_.has_run = true;
  Device* const device = core_.place.device.get();
  try {
    core_.direction->run(*core_.place.runner, step_.kernel);
    if (device == nullptr) return;
    // The kernels read this memory. Perhaps nobody else holds the memory after this transaction.
    device->hold(core_.model.current.owner);
    for (const PendingAnswer& pending : pending_) device->hold(pending.base.owner);
    device->launch();
  } catch (...) {
    core_.direction->cancel();
    throw;
  }
}

// Runs the extension's part of a step. The extension may fail, because only a vector changes that nobody else holds.
void Transaction::finish() {
  if (core_.steps_in_python()) {
    Extension::StepResult stepped =
        core_.extension->step(step_.next, core_.model.current, step_.lr, core_.ledger.steps + 1);
    step_.next = std::move(stepped.model);
    step_.change = std::move(stepped.change);
  }
  if (pending_.empty()) return;
  const Findings& findings = pending_.front().findings;
  if (findings.finishes) findings.change->finish(step_.next, core_.settings.size);
}

// The previous version is released with the transaction, after the commit. An earlier release could run Python
// finalizers inside the commit.
void Transaction::commit() noexcept {
  for (const PendingAnswer& pending : pending_)
    for (const int64_t place : pending.participants)
      if (pending.counts) core_.ledger.participation.count(place, core_.ledger.steps, core_.ledger.now);
  if (step_.planned) {
    core_.direction->commit();
    if (step_.next && step_.next.data == step_.sum.data) core_.direction->is.sums->hand_over();
  }
  if (steps()) {
    core_.model.advance(step_.next);
    if (step_.moments) std::swap(core_.optimizer, *step_.moments);
    ++core_.ledger.steps;
  }
  if (step_.planned) {
    core_.model.bound = core_.direction->model_bound = step_.bounds.model;
    core_.optimizer.bounds = step_.bounds.moments;
  }
  if (step_.outcome != Outcome::kKept) {
    core_.enough_since = std::nan("");
    ++core_.ledger.now;
  }
  if (step_.change) step_.change->commit();
  if (step_.statistics) {
    step_.statistics->commit();
    if (step_.statistics->state) std::swap(core_.model.state, step_.statistics->state);
  }
  for (PendingAnswer& pending_answer : pending_) {
    if (pending_answer.is_misformed) ++core_.misformed, core_.last_misformed = pending_answer.answer;
    if (pending_answer.findings.change) pending_answer.findings.change->commit();
    if (pending_answer.findings.next_steps > 0)
      core_.ledger.roster.tell_next(pending_answer.task.client, pending_answer.findings.next_steps);
    const Answer& answer = *pending_answer.answer;
    if (answer.offset >= 0) core_.ledger.offset = answer.offset;
    core_.ledger.close(pending_answer.task.client, pending_answer.task.version,
                       Ids::pack(answer.receipt.version, answer.receipt.applied));
    core_.records.add(std::move(pending_answer.record));
  }
  core_.records.add(std::move(step_.record));
}

}  // namespace fastagg::engine
