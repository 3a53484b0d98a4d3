// A server's operations: what starts a change, and what executes it again.
#include "engine.h"

#include <algorithm>
#include <cmath>

#include "../cpu/cpu.h"
#include "../math/optimizers.h"

namespace fastagg::engine {
namespace {

constexpr int64_t kOverdueAtATime = 8;        // limits the time of one call
constexpr uint32_t kDownloads = kServer - 1;  // whose rounding a key is of

double largest_of(const store::Vector& model, int64_t size, double most) {
  Update update;
  update.add(model.data, size, kFloat32);
  const double norm = std::sqrt(cpu::sum_squares(update));
  if (norm < std::min(1e37, most / 2)) return norm;
  double largest = 0.0;
  for (int64_t i = 0; i < size; ++i) largest = std::max<double>(largest, std::abs(model.data[i]));
  return largest;
}

log::Operation operation_of(log::Kind kind, const ClientId& client, int64_t version) {
  log::Operation made;
  made.kind = kind, made.client = client, made.version = version;
  return made;
}

}  // namespace

Engine::Engine(const Settings& settings, std::shared_ptr<DirectionState> direction, const OptimizerSettings& optimizer,
               uint64_t seed, std::shared_ptr<store::Memory> memory, std::shared_ptr<Runner> runner,
               std::shared_ptr<Extension> extension, store::Vector model)
    : settings_(settings),
      direction_(std::move(direction)),
      optimizer_(optimizer, extension && extension->asks.step ? 0 : settings.size, seed, memory),
      ledger_(settings.clients, settings.keeps_versions),
      memory_(std::move(memory)),
      runner_(std::move(runner)),
      inspector_(inspector_of(settings_, *direction_, *runner_)),
      extension_(std::move(extension)),
      model_(std::move(model)) {
  direction_->is.runner = runner_.get();
  const InOrder order(*runner_);  // the caller has made the model on its stream
  if (!steps_in_python())
    runner_->load(optimizer_.planned(0, optimizer_.settings.lr, model_.data, model_.data),
                  {direction_->is.rows ? direction_->is.rows->format : -1, direction_->is.privacy != nullptr,
                   direction_->is.tensors != nullptr, direction_->is.combines});
}

Engine::~Engine() { runner_->settle(); }

// -- operations ------------------------------------------------------------------------------------------------------

store::Vector Engine::kept_now() const {
  if (!settings_.keeps_versions) return {};
  return model_;
}

Engine::Sent Engine::sent_now(int format) {
  const double rate = optimizer_.ahead();
  if (rate == 0.0 && format < 0) return {model_, nullptr};
  if (const auto found = sent_.find(format); found != sent_.end()) return found->second;
  constexpr double kRounded = 1.01;  // what rounding makes larger
  const auto fits = [&] {
    const double most = model_bound_ + std::abs(rate) * optimizer_.bounds.m;
    return (format < 0 ? 1.0 : kRounded) * most <= std::min(kLargestModel, settings_.largest_model);
  };
  if (!fits()) measure();
  if (!fits())
    throw Refusal(Why::kTooLarge, std::string(format < 0 ? "look_ahead" : "format") +
                                      ": the model that is sent could leave the range of its type" +
                                      (rate == 0.0 ? "" : "; set a smaller lr"));
  if (format < 0) return sent_[format] = {ahead_now(), nullptr};
  if (!runner_->synchronous())
    throw Refusal(Why::kSetting, "format: this server's model is on a CUDA device, and only one on the CPU is rounded");
  if (settings_.keeps_versions)
    throw Refusal(Why::kSetting,
                  "format: this rule compares an update with the version that was sent, and its client had a rounded "
                  "one; send it as it is");
  Sent made{memory_->vector(settings_.size),
            store::Encoded::make(static_cast<WireFormat>(format), kValuesFp32, settings_.size, 0)};
  Update whole;
  whole.add(sent_now(kAsItIs).model.data, settings_.size, kFloat32);
  cpu::encode(whole, *made.encoded, {optimizer_.seed(), static_cast<uint64_t>(ledger_.now), kDownloads});
  cpu::accumulate(made.encoded->update(), nullptr, 1.0f, made.model.data);
  return sent_[format] = made;
}

// Where the model would be if the momentum went on.
store::Vector Engine::ahead_now() {
  const double rate = optimizer_.ahead();
  const store::Vector made = memory_->vector(settings_.size);
  Update momentum;
  momentum.add(optimizer_.m(), settings_.size, kFloat32);
  Optimizer moves{place_in<Sgd>(Optimizers{}), {}, {}, model_.data, made.data};
  moves.hyper.lr = static_cast<float>(rate);
  const InOrder order(*runner_);
  runner_->step(momentum, {}, moves);
  if (!runner_->synchronous()) {
    runner_->hold(made.owner);
    runner_->prepare();
    runner_->launch();
  }
  return made;
}

// What a direction wants to know of each tensor of the next update.
cpu::Tensors* Engine::tensors() {
  if (direction_->is.tensors) direction_->is.tensors->m = optimizer_.m();
  return direction_->is.tensors;
}

std::vector<store::Vector> Engine::held_before() const {
  std::vector<store::Vector> found;
  for (const auto& [format, sent] : sent_) found.push_back(sent.model);
  for (const Before& one : before_)
    if (store::Owner owner = one.owner.lock()) found.push_back({std::move(owner), one.data});
  return found;
}

int64_t Engine::apply(const log::Operation& operation) {
  records.check();
  log::Queued record = records.of(operation);
  int64_t ended = 0;
  switch (operation.kind) {
    case log::kForget:
      if (operation.version < 0) {
        ledger_.forget(operation.client);
      } else {
        const Ledger::Found task = ledger_.find(operation.client, operation.version);
        ledger_.close(task.client, task.version);
      }
      break;
    case log::kExpire: ended = ledger_.expire_before(operation.version); break;
    case log::kRate:
      if (!std::isfinite(operation.rate)) throw Refusal(Why::kDamaged, "a learning rate that is no number");
      optimizer_.settings.lr = operation.rate;
      sent_.clear();
      break;
    case log::kIncarnation: ledger_.begin_incarnation(operation.version, operation.incarnation); break;
    default: throw Refusal(Why::kDamaged, "an operation that cannot be executed here");
  }
  records.add(std::move(record));
  return ended;
}

Task Engine::send(const log::Operation& operation, int format) {
  records.check();
  const int64_t now = ledger_.now;
  const bool hands_on = operation.kind == log::kHandOn;
  if (!hands_on && operation.version != now)
    throw Refusal(Why::kDamaged, "the server sent version " + std::to_string(operation.version) +
                                     " then, but sends version " + std::to_string(now) + " now");
  const ClientId& client = operation.client;
  const store::Vector kept = hands_on ? ledger_.kept(operation.version) : kept_now();
  if (hands_on && (operation.version < 0 || operation.version > now || (settings_.keeps_versions && !kept)))
    throw Refusal(Why::kDamaged, "a task of version " + std::to_string(operation.version) + ", which nobody has");
  const Sent sent = hands_on ? Sent{model_, nullptr} : sent_now(format);
  Task task{client,
            operation.version,
            ledger_.local_steps(client, settings_.local_steps),
            ledger_.incarnation_of(operation.version),
            operation.task == 0 ? ledger_.next_id(client, operation.version) : operation.task,
            sent.model,
            sent.encoded,
            state_};
  const DirectionState::Traits& is = direction_->is;
  if (is.privacy) {
    ledger_.check_alone(client, operation.version);
    ledger_.participation.check(client, ledger_.steps, is.privacy->setting.separation, is.privacy->setting.most);
  }
  if (is.ages) is.ages->before_sending(operation.version);
  log::Operation named = operation;
  named.task = task.id;
  log::Queued made = records.of(named);
  const int64_t place = ledger_.send(client, operation.version, task.local_steps, kept, task.id);
  if (is.rows) is.rows->expect(place);
  if (is.ages) is.ages->sent(place, operation.version);
  shared_ = shared_ || sent.model.data == model_.data;
  records.add(std::move(made));
  return task;
}

int64_t Engine::end_overdue(int64_t most) {
  const int64_t before = ledger_.expired();
  for (int64_t seen = 0; seen != most; ++seen) {
    const auto one = ledger_.overdue();
    if (!one) break;
    log::Queued task, client;
    if (one->ends) task = records.of(operation_of(log::kForget, one->client, one->version));
    if (one->forgets) client = records.of(operation_of(log::kForget, one->client, -1));
    ledger_.pass(*one);
    records.add(std::move(task));
    records.add(std::move(client));
  }
  return ledger_.expired() - before;
}

Task Engine::dispatch(const ClientId& client, int format) {
  const Locked locked(lock);
  records.check();
  follow();
  ledger_.check(client);
  end_overdue(kOverdueAtATime);
  return send(operation_of(log::kDispatch, client, ledger_.now), format);
}

Task Engine::hand_on(const ClientId& from, int64_t version, const ClientId& to) {
  const Locked locked(lock);
  ledger_.find(from, version);
  return send(operation_of(log::kHandOn, to, version));
}

void Engine::forget(const ClientId& client, std::optional<int64_t> version) {
  const Locked locked(lock);
  apply(operation_of(log::kForget, client, version ? ledger_.find(client, *version).version : -1));
}

int64_t Engine::expire(std::optional<int64_t> before) {
  const Locked locked(lock);
  records.check();
  const int64_t ended = end_overdue(-1);
  if (!before) return ended;
  return ended + apply(operation_of(log::kExpire, {}, *before));
}

void Engine::set_rate(double lr) {
  const Locked locked(lock);
  log::Operation operation = operation_of(log::kRate, {}, -1);
  operation.rate = lr;
  apply(operation);
}

// Rows on a disk are damaged: their clients begin anew. The sum is made anew from the other rows.
void Engine::give_up(const std::vector<int64_t>& slots) {
  records.check();
  if (!direction_->is.rows) throw Refusal(Why::kDamaged, "rows on a disk were lost, and this server has none");
  log::Operation operation = operation_of(log::kLost, {}, -1);
  operation.slots = slots;
  log::Queued record = records.of(operation);
  direction_->is.rows->give_up(slots);
  records.add(std::move(record));
}

void Engine::begin_incarnation(int64_t version, uint64_t number) {
  const Locked locked(lock);
  log::Operation operation = operation_of(log::kIncarnation, {}, version);
  operation.incarnation = number;
  apply(operation);
}

void Engine::limit(const Limits& limits) {
  const Locked locked(lock);
  ledger_.limits = limits;
  ledger_.renew();
  enough_since_ = std::nan("");
  is_due();  // the time of a round that was restored begins
}

// -- answers ---------------------------------------------------------------------------------------------------------

bool Engine::prepares(const Answer& answer) const {
  return extension_ && (extension_->asks.prepare || answer.control || answer.extra);
}

Ledger::Found Engine::find(const Answer& answer) const {
  const ClientId& client = answer.client;
  const std::optional<uint64_t>& incarnation = answer.incarnation;
  if (answer.offset >= 0 && answer.offset <= ledger_.offset)
    throw Refusal(Why::kAlreadyCounted, "client " + shown(client) + ": the answer at offset " +
                                            std::to_string(answer.offset) +
                                            " was counted already, or skipped: the server has come to offset " +
                                            std::to_string(ledger_.offset) + "; go on behind it (server.offset)");
  const Ledger::Found task = ledger_.find(client, answer.version, answer.task);
  if (incarnation && ledger_.incarnation_of(task.version) != *incarnation)
    throw Refusal(Why::kStaleIncarnation,
                  "client " + shown(client) + ": its task (version " + std::to_string(task.version) + ", incarnation " +
                      std::to_string(*incarnation) +
                      ") was sent before the server was restarted, or by another server, and its version is lost; drop "
                      "this answer and send a new task: server.dispatch(" +
                      shown(client) + ")");
  return task;
}

Engine::Result Engine::receive(Answer* answers, size_t count) {
  const Locked locked(lock, true);
  Result result;
  while (result.done < count) {
    Answer* const next = answers + result.done;
    try {
      const size_t taken = take(next, count - result.done);
      result.done += taken;
      is_due();  // the round's time begins
      for (size_t i = 0; i < taken; ++i)
        next[i].copy.reset();  // so that the next one is copied to memory that is in a cache
    } catch (const Refusal& refused) {
      result.refused = refused;
      return result;
    } catch (...) {
      result.failed = std::current_exception();
      return result;
    }
  }
  return result;
}

// Takes as many answers as fit one pass, at least one.
size_t Engine::take(Answer* answers, size_t count) {
  for (size_t group = Several::together(*this, answers, count); group > 0;) {
    Several several(*this);
    if (const size_t taken = several.take(answers, group); taken > 0) return taken;
    group = several.fit();
  }
  // A round that has no room for a sum ends first, if that is the rule.
  const Sums* const sums = direction_->is.sums;
  if (answers->kind == Answer::kSum && sums && sums->closes_before(answers->count)) {
    OneAnswer(*this).look_at(*answers);
    Receipt receipt;
    EndOfRound(*this).take(&receipt);
  }
  OneAnswer(*this).take(*answers);
  return 1;
}

bool Engine::is_due() {
  const Sums* const sums = direction_->is.sums;
  const double grace = sums ? sums->grace(0) : HUGE_VAL;
  if (!(grace < HUGE_VAL)) return false;
  const double time = ledger_.own_time();
  if (std::isnan(enough_since_)) enough_since_ = time;
  return time - enough_since_ >= grace;
}

bool Engine::close_round(Receipt* receipt, bool if_due) {
  const Locked locked(lock);
  if (!settings_.closes_early || (if_due && !is_due())) return false;
  try {
    return EndOfRound(*this).take(receipt);
  } catch (const Refusal& refused) {
    if (!if_due || refused.why != Why::kTooLarge) throw;
    return false;  // whoever called does something else, and the round goes on
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
    for (const auto& [version, kept] : ledger_.all_kept()) found.model = std::max(found.model, of(kept).model);
  model_bound_ = direction_->model_bound = found.model;
  optimizer_.bounds = found.moments;
}

// -- recovery --------------------------------------------------------------------------------------------------------

void Engine::execute(const log::Operation& operation, Answer* answer) {
  const Locked locked(lock);
  Receipt receipt;
  switch (operation.kind) {
    case log::kCloseRound:
      if (!settings_.closes_early)
        throw Refusal(Why::kDamaged, "the end of a round, and this server's rule has no rounds");
      if (!EndOfRound(*this).take(&receipt, operation.known ? &operation.decided : nullptr))
        throw Refusal(Why::kDamaged, "the end of a round in which nothing had come");
      return;
    case log::kAnswer:
    case log::kRow: OneAnswer(*this).take(*answer); return;
    case log::kLost: give_up(operation.slots); return;
    case log::kDispatch:
    case log::kHandOn: send(operation); return;
    default: apply(operation);
  }
}

}  // namespace fastagg::engine
