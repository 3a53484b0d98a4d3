#include "engine.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "../cpu/cpu.h"
#include "../math/fixed.h"
#include "../math/optimizers.h"
#include "on_cpu.h"

namespace fastagg::engine {
namespace {

constexpr int64_t kOverdueAtATime = 8;                  // limits the time of one call
constexpr int64_t kLargestOverflow = int64_t{1} << 20;  // limits the memory for their versions
constexpr int64_t kWorthReadingOnce = int64_t{1} << 13;

// On a device: what is asked for meanwhile comes after all before, and is marked.
class InOrder {
 public:
  explicit InOrder(Runner& runner) : runner_(runner) { runner_.begin(); }
  InOrder(const InOrder&) = delete;
  InOrder& operator=(const InOrder&) = delete;
  ~InOrder() { runner_.end(); }

 private:
  Runner& runner_;
};

const char* name_of(Outcome outcome, bool applied) {
  return applied ? "step" : outcome != Outcome::kKept ? "drop" : "keep";
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

double largest_of(const store::Vector& model, int64_t size) {
  Update update;
  update.add(model.data, size, kFloat32);
  const double norm = std::sqrt(cpu::sum_squares(update));
  if (norm < 1e37) return norm;
  double largest = 0.0;
  for (int64_t i = 0; i < size; ++i) largest = std::max<double>(largest, std::abs(model.data[i]));
  return largest;
}

// The largest magnitude in an encoded row. NaN or infinity if a number in the row is.
double largest_in(const Rows& one, const void* row) {
  const Facts facts = format_facts(one.format);
  if (!facts.scaled) {  // bf16: the order of the bits is that of the magnitudes
    uint16_t most = 0;
    const auto* values = static_cast<const uint16_t*>(row);
    for (int64_t i = 0; i < padded(one.size); ++i) most = std::max<uint16_t>(most, values[i] & 0x7fff);
    const uint32_t bits = static_cast<uint32_t>(most) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  double largest = 0.0;
  const auto* scales = reinterpret_cast<const float*>(static_cast<const char*>(row) + one.row_bytes());
  for (int64_t i = 0; i < one.row_scales(); ++i) {
    const double scale = std::abs(static_cast<double>(scales[i]));
    if (!(scale <= largest)) largest = scale;  // NaN stays
  }
  return largest * ((1 << (facts.bits - 1)) - 1);
}

// The runs of pieces of one type, as one piece each: how a copy of the update lies in memory.
std::vector<log::Part> parts_of(const Update& update) {
  std::vector<log::Part> parts;
  for (const Piece& piece : update.pieces) {
    const auto dtype = static_cast<uint8_t>(piece.dtype);
    if (parts.empty() || parts.back().dtype != dtype) parts.push_back({log::kParameters, dtype, 0});
    parts.back().count += static_cast<uint64_t>(piece.size);
  }
  return parts;
}

Update update_at(const std::vector<log::Part>& parts, int64_t origin) {
  Update update;
  update.origin = origin;
  for (const log::Part& part : parts)
    if (part.role == log::kParameters)
      update.add(part.data, static_cast<int64_t>(part.count), static_cast<Dtype>(part.dtype));
  return update;
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
      extension_(std::move(extension)),
      model_(std::move(model)) {
  if (runner_->at_once()) return;
  const InOrder order(*runner_);  // the caller has made the model on its stream
  if (!own_step()) runner_->load(optimizer_.planned(0, optimizer_.settings.lr, model_.data, model_.data));
}

Engine::~Engine() { runner_->settle(); }

// -- operations ------------------------------------------------------------------------------------------------------

// Refuses a call that could not be acknowledged.
void Engine::check_log() const {
  if (log_) log_->check();
}

Engine::Note Engine::note(const log::Operation& operation) {
  Note made;
  if (log_) made.entry = log::record_of(*log_, operation);
  if (told_ == nullptr) return made;
  told_->reserve(told_->size() + 2);
  made.told = operation;
  return made;
}

void Engine::add(Note note) noexcept {
  if (note.entry) log_->push(std::move(note.entry));
  if (note.told) told_->push_back(std::move(*note.told));
}

store::Vector Engine::kept_now() const {
  if (!settings_.keeps_versions) return {};
  return extension_ && extension_->asks.keep ? extension_->keep() : model_;
}

// What an operation does that is no answer.
Engine::Applied Engine::apply(const log::Operation& operation) {
  check_log();
  Applied found;
  switch (operation.kind) {
    case log::kDispatch:
    case log::kHandOn: found.task = send(operation); break;
    case log::kForget: {
      Note made = note(operation);
      if (operation.version < 0) {
        ledger_.forget(operation.client);
      } else {
        const Ledger::Found task = ledger_.find(operation.client, operation.version);
        ledger_.close(task.client, task.version);
      }
      add(std::move(made));
      break;
    }
    case log::kExpire: {
      Note made = note(operation);
      found.ended = ledger_.expire_before(operation.version);
      add(std::move(made));
      break;
    }
    case log::kRate: {
      if (!std::isfinite(operation.rate)) throw Refusal(Why::kDamaged, "a learning rate that is no number");
      Note made = note(operation);
      optimizer_.settings.lr = operation.rate;
      add(std::move(made));
      break;
    }
    case log::kIncarnation: {
      if (follows()) catch_up(operation.version - 1);
      Note made = note(operation);
      ledger_.begin_incarnation(operation.version, operation.incarnation);
      add(std::move(made));
      break;
    }
    default: throw Refusal(Why::kDamaged, "an operation that cannot be executed here");
  }
  return found;
}

Task Engine::send(const log::Operation& operation) {
  const int64_t now = ledger_.now;
  const bool hands_on = operation.kind == log::kHandOn;
  if (!hands_on && operation.version != now) {
    if (!follows() || operation.version < now)
      throw Refusal(Why::kDamaged, "the server sent version " + std::to_string(operation.version) +
                                       " then, but sends version " + std::to_string(now) + " now");
    catch_up(operation.version);
  }
  const ClientId& client = operation.client;
  const store::Vector kept = hands_on ? ledger_.kept(operation.version) : kept_now();
  if (hands_on && (operation.version < 0 || operation.version > now || (settings_.keeps_versions && !kept)))
    throw Refusal(Why::kDamaged, "a task of version " + std::to_string(operation.version) + ", which nobody has");
  Task task{client,
            operation.version,
            ledger_.local_steps(client, settings_.local_steps),
            ledger_.incarnation_of(operation.version),
            operation.task == 0 ? ledger_.next_id(client, operation.version) : operation.task,
            model_,
            state_};
  direction_->before_sending(operation.version);
  log::Operation named = operation;
  named.task = task.id;
  Note made = note(named);
  direction_->sent(ledger_.send(client, operation.version, task.local_steps, kept, task.id), operation.version);
  shared_ = true;
  add(std::move(made));
  return task;
}

int64_t Engine::end_overdue(int64_t most) {
  const int64_t before = ledger_.expired();
  for (int64_t seen = 0; seen != most; ++seen) {
    const auto one = ledger_.overdue();
    if (!one) break;
    Note task, client;
    log::Operation ended;
    ended.kind = log::kForget, ended.client = one->client, ended.version = one->version;
    if (one->ends) task = note(ended);
    ended.version = -1;
    if (one->forgets) client = note(ended);
    ledger_.pass(*one);
    add(std::move(task));
    add(std::move(client));
  }
  return ledger_.expired() - before;
}

Task Engine::dispatch(const ClientId& client) {
  const Inside inside(gate);
  check_log();
  follow();
  ledger_.check(client);
  end_overdue(kOverdueAtATime);
  log::Operation operation;
  operation.kind = log::kDispatch, operation.client = client, operation.version = ledger_.now;
  return *apply(operation).task;
}

Task Engine::hand_on(const ClientId& from, int64_t version, const ClientId& to) {
  const Inside inside(gate);
  ledger_.find(from, version);
  log::Operation operation;
  operation.kind = log::kHandOn, operation.client = to, operation.version = version;
  return *apply(operation).task;
}

void Engine::forget(const ClientId& client, std::optional<int64_t> version) {
  const Inside inside(gate);
  log::Operation operation;
  operation.kind = log::kForget, operation.client = client;
  operation.version = version ? ledger_.find(client, *version).version : -1;
  apply(operation);
}

int64_t Engine::expire(std::optional<int64_t> before) {
  const Inside inside(gate);
  check_log();
  const int64_t ended = end_overdue(-1);
  if (!before) return ended;
  log::Operation operation;
  operation.kind = log::kExpire, operation.version = *before;
  return ended + apply(operation).ended;
}

void Engine::set_rate(double lr) {
  const Inside inside(gate);
  log::Operation operation;
  operation.kind = log::kRate, operation.rate = lr;
  apply(operation);
}

void Engine::begin_incarnation(int64_t version, uint64_t number) {
  const Inside inside(gate);
  log::Operation operation;
  operation.kind = log::kIncarnation, operation.version = version, operation.incarnation = number;
  apply(operation);
}

void Engine::limit(const Limits& limits) {
  const Inside inside(gate);
  ledger_.limits = limits;
  lost_ = {};
  ledger_.renew();
}

// -- answers ---------------------------------------------------------------------------------------------------------

Engine::Result Engine::receive(Arrival* arrivals, size_t count) {
  const Inside inside(gate, true);
  Result result;
  while (result.done < count) {
    Arrival* const next = arrivals + result.done;
    size_t group = together(next, count - result.done);
    try {
      size_t taken = 0;
      while (group > 0 && taken == 0) {
        taken = step(next, group, true);
        group = fit_;
      }
      if (taken == 0) close_before(*next);
      if (taken == 0) taken = step(next, 1, false);
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

// Ends a round that has no room for a sum, if that is the rule. What can be known of the sum's fitness is known before.
void Engine::close_before(Arrival& arrival) {
  if (arrival.kind != Arrival::kSum || !direction_->closes_before(arrival.count)) return;
  Given given;
  given.arrival = &arrival;
  find(given);
  const bool here = runner_->at_once() && !(extension_ && extension_->asks.agree);
  if (here && !std::isfinite(squares_of(arrival))) throw Refusal(Why::kNotFinite, "update: NaN or infinity");
  Arrival end;
  end.kind = Arrival::kClose;
  step(&end, 1, false);
}

bool Engine::is_due() {
  const double grace = direction_->grace(static_cast<int64_t>(waiting_.size()));
  if (!(grace < HUGE_VAL)) return false;
  const double time = ledger_.own_time();
  if (std::isnan(enough_since_)) enough_since_ = time;
  return time - enough_since_ >= grace;
}

bool Engine::close_round(Receipt* receipt, bool if_due) {
  const Inside inside(gate);
  Arrival end;
  end.kind = Arrival::kClose;
  if (!settings_.closes_early || (if_due && !is_due())) return false;
  try {
    if (step(&end, 1, false) == 0) return false;
  } catch (const Refusal& refused) {
    if (!if_due || refused.why != Why::kTooLarge) throw;
    return false;  // whoever called does something else, and the round goes on
  }
  *receipt = end.receipt;
  return true;
}

// How many of these answers one pass can take: trained models of different clients that have room in the buffer.
size_t Engine::together(const Arrival* arrivals, size_t count) const {
  if (!settings_.folds || log_ || !direction_->folds()) return 0;
  const auto most = std::min(count, static_cast<size_t>(direction_->room()));
  size_t found = 0;
  int64_t offset = ledger_.offset;
  while (found < most && arrivals[found].kind == Arrival::kModel && !prepares(arrivals[found])) {
    const int64_t next = arrivals[found].offset;
    if (next >= 0 && next <= offset) break;  // an answer that came twice
    offset = std::max(offset, next);
    // Whether a client has a second open task is known only after its first answer counted.
    const auto is_its = [&](const Arrival& other) { return other.client == arrivals[found].client; };
    if (std::any_of(arrivals, arrivals + found, is_its)) break;
    ++found;
  }
  return found;
}

bool Engine::prepares(const Arrival& arrival) const {
  return extension_ && (extension_->asks.prepare || arrival.control || arrival.extra);
}

Ledger::Found Engine::find(const Arrival& answer) const {
  const ClientId& client = answer.client;
  const std::optional<uint64_t>& incarnation = answer.incarnation;
  if (answer.offset >= 0 && answer.offset <= ledger_.offset)
    throw Refusal(Why::kAlreadyCounted, "client " + shown(client) + ": the answer at offset " +
                                            std::to_string(answer.offset) +
                                            " was counted already, or passed over: the server has come to offset " +
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

// Finds the task that an answer refers to, and what it counts for.
void Engine::find(Given& given) {
  Arrival& arrival = *given.arrival;
  // The record of its task may be lost.
  if (follows() && arrival.decided != nullptr && arrival.version <= ledger_.now &&
      !ledger_.owes(arrival.client, arrival.version)) {
    store::Vector kept = ledger_.kept(arrival.version);
    if (!kept && arrival.version == lost_.first) kept = lost_.second;
    if (kept || !settings_.keeps_versions) ledger_.send(arrival.client, arrival.version, settings_.local_steps, kept);
  }
  given.task = find(arrival);
  direction_->check(arrival.client, given.task.version, ledger_.now);
  if (arrival.kind == Arrival::kSum && arrival.count > std::max(direction_->room(), kLargestOverflow))
    throw Refusal(Why::kSetting, "receive_partial: a sum of " + std::to_string(arrival.count) +
                                     " updates, and a step takes at most " + std::to_string(kLargestOverflow) +
                                     " more than its buffer's size: let leaves take more often");
  if (arrival.is_whole() != (arrival.kind == Arrival::kSum && direction_->unit() > 0.0))
    throw Refusal(Why::kSetting, "receive_partial: an exact sum belongs to a buffer with exact=, and only there");
  Contribution& brings = given.brings;
  brings.client = given.task.client;
  brings.start = given.task.version;
  brings.now = ledger_.now;
  brings.share = share_of(arrival);
  brings.count = arrival.count;
  brings.total = arrival.total;
  if (!prepares(arrival)) weigh(given);
}

void Engine::weigh(Given& given) {
  Contribution& brings = given.brings;
  const int64_t delay = brings.now - brings.start;
  if (settings_.staleness.weight != Staleness::kAskWeight) {
    brings.weight = settings_.staleness.weight_of(delay);
  } else if (const auto weight = extension_->weight(delay); weight) {
    brings.weight = *weight;
  } else {
    given.counts = false;
  }
}

// What an answer counts for in a mean.
double Engine::share_of(const Arrival& arrival) const {
  if (arrival.kind == Arrival::kSum) return 1.0;
  if (!settings_.weighs_by_samples) return 1.0;
  if (std::isnan(arrival.samples))
    throw Refusal(
        Why::kSetting,
        "num_samples: needed with weighting=\"samples\", got None; write receive(..., num_samples=len(data))");
  return std::min(arrival.samples, settings_.max_samples);
}

// Reads the update, once: into memory of the engine's own, which is the record's where there is one.
void Engine::inspect(Given& given) {
  Arrival& arrival = *given.arrival;
  const bool prepared = prepares(arrival), here = runner_->at_once();
  const Rows row = direction_->coded_row();
  const bool as_row = row.size > 0 && here && !prepared && !arrival.blob;
  log::Operation& operation = given.operation;
  if (arrival.kind == Arrival::kRow) {
    check_row(given, as_row ? row : Rows{});
    given.brings.row = arrival.row;
    arrival.update.size = settings_.size;
    arrival.update.origin = settings_.origin;
  }
  const Update& logged = here ? arrival.update : arrival.on_host;
  if (log_) {
    operation = {};
    operation.kind = as_row ? log::kRow : log::kAnswer;
    operation.client = arrival.client;
    operation.version = given.task.version;
    operation.incarnation = ledger_.incarnation_of(given.task.version);
    operation.share = arrival.kind == Arrival::kSum ? arrival.total : given.brings.share;
    if (arrival.blob) {
      const log::Blob& blob = *arrival.blob;
      operation.streamed = log::Streamed{blob.number, blob.nbytes, blob.crc, blob.dtype};
    } else if (!as_row) {
      operation.parts = arrival.base == nullptr
                            ? parts_of(logged)
                            : std::vector<log::Part>{{log::kParameters, kFloat32, static_cast<uint64_t>(logged.size)}};
    }
    describe_rest(arrival, operation);
    if (as_row && given.counts)  // a dropped update becomes no row
      operation.parts.push_back(
          {log::kRowRole, static_cast<uint8_t>(row.format), static_cast<uint64_t>(row.packed_bytes())});
    given.record = log::record_of_answer(*log_, operation);
    copy_rest(arrival, operation);
    given.record->blob = arrival.blob;
  }
  if (!here) {
    if (log_) {
      const Update copy = update_at(operation.parts, settings_.origin);
      cpu::copy(logged, copy);
      if (arrival.in_host) arrival.update = copy;  // what the device is sent is what the record holds
    }
    if (!prepared) judge(given);
    return;
  }
  given.norm = arrival.norm;
  if (arrival.kind == Arrival::kRow) return;
  // An extension and an ordered round keep what they read, and the record's memory is used again.
  const bool into_record = given.record && !as_row && !arrival.blob, kept = prepared || settings_.ordered;
  const double squares = absorb(arrival, into_record && !kept ? &operation : nullptr);
  if (into_record && kept) cpu::copy(arrival.update, update_at(operation.parts, settings_.origin));
  if (!std::isfinite(squares)) throw Refusal(Why::kNotFinite, "update: NaN or infinity");
  given.norm = std::sqrt(squares);
}

// The other parts of an answer, besides its parameters.
void Engine::describe_rest(const Arrival& arrival, log::Operation& to) const {
  if (arrival.reported && arrival.reported->size > 0)
    to.parts.push_back({log::kBuffers, kFloat32, static_cast<uint64_t>(arrival.reported->size)});
  if (arrival.reported && !arrival.reported->counters.empty())
    to.parts.push_back({log::kCounter, log::kInt64, arrival.reported->counters.size()});
  if (arrival.control) to.parts.push_back({log::kControl, kFloat32, static_cast<uint64_t>(settings_.size)});
  if (arrival.kind == Arrival::kSum) to.parts.push_back({log::kUpdates, log::kInt64, 1});
  if (arrival.offset >= 0) to.parts.push_back({log::kOffset, log::kInt64, 1});
  if (extension_ && extension_->asks.agree)
    to.parts.push_back({log::kMeasured, log::kInt64, sizeof(Measured) / sizeof(int64_t)});
}

void Engine::copy_rest(const Arrival& arrival, const log::Operation& to) const {
  for (const log::Part& part : to.parts) {
    const void* from = nullptr;
    if (part.role == log::kBuffers) from = arrival.reported->values.data;
    if (part.role == log::kCounter) from = arrival.reported->counters.data();
    if (part.role == log::kControl) from = arrival.control.data;
    if (part.role == log::kUpdates) from = &arrival.count;
    if (part.role == log::kOffset) from = &arrival.offset;
    if (from != nullptr) std::memcpy(const_cast<uint8_t*>(part.data), from, part.nbytes());
  }
}

// Where the record of an answer holds the row that its update becomes.
void* Engine::row_place(const Given& given) const {
  const log::Part* const row = given.operation.kind == log::kRow ? given.operation.part(log::kRowRole) : nullptr;
  return row == nullptr ? nullptr : const_cast<uint8_t*>(row->data);
}

// Checks a row from a log: an answer whose update had this norm.
void Engine::check_row(const Given& given, const Rows& held) const {
  const Arrival& arrival = *given.arrival;
  // By so much at most an encoded row's numbers are larger than those of its update: bf16 rounds up by less than 2^-7,
  // and a scale is never below the smallest normal number (math/rows.h).
  constexpr double kRounded = 1.01, kLeast = 1e-35;
  const auto refuse = [](const std::string& text) { throw Refusal(Why::kDamaged, text); };
  if (held.size == 0)
    refuse(
        "it holds an encoded row, and this server takes none: open the folder with a server on the CPU that has "
        "the same cache, and call its checkpoint()");
  if (!(arrival.norm >= 0.0 && std::isfinite(arrival.norm))) refuse("the norm of its update is no number");
  if (!given.counts) return;  // the update was dropped, and became no row
  if (arrival.row == nullptr) refuse("the row is missing");
  if (arrival.format != held.format || static_cast<int64_t>(arrival.row_nbytes) != held.packed_bytes())
    refuse("it holds a row of another format or size than this server's");
  if (!(largest_in(held, arrival.row) <= kRounded * std::abs(given.brings.weight) * arrival.norm + kLeast))
    refuse("its row's numbers are not finite, or larger than the update's norm allows");
}

// The sum of squares of an update.
double Engine::squares_of(const Arrival& arrival) const {
  if (!arrival.is_whole()) return cpu::sum_squares(arrival.update);
  const auto* terms = static_cast<const int64_t*>(arrival.update.pieces.front().data);
  const cpu::FixedNorm found = cpu::norm_of_fixed(terms, arrival.update.size);
  if (found.largest > fixed_limit(arrival.count))
    throw Refusal(Why::kTooLarge, "an exact sum that " + std::to_string(arrival.count) + " updates cannot have");
  return found.squares * direction_->unit() * direction_->unit();
}

// Copies an update, less the model that it was trained from if it is one, and returns the sum of squares of the copy.
double Engine::absorb(Arrival& arrival, log::Operation* record) {
  Update& update = arrival.update;
  if (arrival.is_private) return squares_of(arrival);
  std::vector<log::Part> parts;
  if (arrival.base != nullptr) {
    parts.push_back({log::kParameters, kFloat32, static_cast<uint64_t>(update.size)});
  } else if (record == nullptr) {
    parts = parts_of(update);
  }
  store::Owner memory;
  if (record == nullptr) {
    size_t nbytes = 0;
    for (const log::Part& part : parts) nbytes += part.nbytes() + log::gap_of(part.nbytes());
    memory = store::new_memory(static_cast<int64_t>(nbytes));
    const auto* at = static_cast<const uint8_t*>(memory.get());
    for (log::Part& part : parts) part.data = at, at += part.nbytes() + log::gap_of(part.nbytes());
  }
  const Update copy = update_at(record != nullptr ? record->parts : parts, settings_.origin);
  double squares = 0.0;
  if (arrival.is_whole()) {
    void* const to = const_cast<void*>(copy.pieces.front().data);
    std::memcpy(to, update.pieces.front().data, static_cast<size_t>(update.size) * sizeof(int64_t));
    Arrival own;
    own.kind = arrival.kind, own.count = arrival.count, own.update = copy;
    squares = squares_of(own);
  } else if (arrival.base == nullptr) {
    squares = cpu::absorb(update, copy);
  } else {
    std::vector<std::atomic<int32_t>> largest(1);
    auto* out = static_cast<float*>(const_cast<void*>(copy.pieces.front().data));
    cpu::fold({{update, arrival.base, 1.0f}}, nullptr, out, largest);
    squares = cpu::sum_squares(copy);
  }
  update = copy;
  arrival.copy = std::move(memory);
  return squares;
}

// Asks the device for an update's norm, and waits for it, unless kernels obey the verdict.
void Engine::judge(Given& given) {
  Arrival& arrival = *given.arrival;
  const double clip_norm = arrival.kind == Arrival::kSum ? 0.0 : settings_.clip_norm;
  std::shared_ptr<Judgement> found =
      runner_->judge({arrival.update, arrival.owner, arrival.in_host, settings_.ordered, !settings_.defers, clip_norm});
  arrival.in_host = false;
  given.norm = std::nan("");
  if (settings_.defers) {
    given.findings.verdict = runner_->verdict();
    arrival.later = std::move(found);
    return;
  }
  const double squares = found->wait().norm2;
  if (!std::isfinite(squares)) throw Refusal(Why::kNotFinite, "update: NaN or infinity");
  given.norm = std::sqrt(squares);
}

// What the extension finds out about an update, its weight and its clipping.
void Engine::prepare(Given& given) {
  Arrival& arrival = *given.arrival;
  Contribution& brings = given.brings;
  if (prepares(arrival)) {
    given.base = ledger_.kept(given.task.version);
    given.findings =
        extension_->prepare({arrival, given.task, ledger_.now, given.norm, brings.share, model_, given.base});
    const Findings& found = given.findings;
    if (const log::Part* const part = given.operation.part(log::kMeasured))
      std::memcpy(const_cast<uint8_t*>(part->data), &found.measured, sizeof found.measured);
    given.norm = found.norm.value_or(given.norm);
    brings.share = found.share.value_or(brings.share);
    if (found.update) arrival.update = *found.update;
    given.counts = !found.drops;
    if (found.weight) {
      brings.weight = *found.weight;
    } else if (given.counts) {
      weigh(given);
    }
  }
  brings.norm = given.norm;
  if (settings_.clip_norm > 0.0 && given.norm > settings_.clip_norm && !given.findings.unclipped &&
      arrival.kind != Arrival::kSum) {
    brings.gain = settings_.clip_norm / given.norm;
    brings.norm = settings_.clip_norm;
  }
  if (std::isnan(brings.norm)) brings.norm = 0.0;  // the device will compute the norm and judge the update
  if (!direction_->blends()) return;
  given.base = ledger_.kept(given.task.version);
  brings.base = given.base.data;
}

// Adds an answer to those that the step is planned with.
void Engine::with(const Contribution& brings, const Update& update, const Reported* reported, const void* extra) {
  contributions_.push_back(brings);
  contributions_.back().update = &update;
  updates_.push_back(&update);
  if (reported != nullptr || extra != nullptr) statistics_.push_back({reported, extra, brings.share});
}

void Engine::plan(Step& step, bool closes, bool folding) {
  contributions_.clear(), updates_.clear(), statistics_.clear(), trained_.clear();
  for (Given& one : given_) {
    const Arrival& arrival = *one.arrival;
    if (arrival.kind == Arrival::kClose) break;
    with(one.brings, arrival.update, arrival.reported.get(), arrival.extra.get());
    if (!folding) continue;
    contributions_.back().norm = kLargestElement;  // the pass finds larger elements
    trained_.push_back({&arrival.update, arrival.base});
  }
  Given& first = given_.front();
  if (!closes && !folding && (!first.counts || first.findings.waits)) return;  // it changes nothing, or not now
  step.takes = true;
  const log::Decided* const then = follows() ? first.arrival->decided : nullptr;
  bool ends = closes || (then != nullptr && !std::isnan(then->step_size));
  if (settings_.ordered) {
    ends = ends || static_cast<int64_t>(waiting_.size()) + 1 == direction_->room();
    step.keeps = !ends;
    step.takes = step.ends_round = ends;
    in_order(closes ? nullptr : &first);
  }
  step.outcome = direction_->plan(contributions_, ends);
  if (folding) direction_->plan_fold();
  step.along_sum = step.outcome == Outcome::kStep && (folding || updates_.empty());
  if (step.keeps) statistics_.clear();  // they count when the round ends
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
    const Arrival& arrival = *last->arrival;
    all.push_back({&arrival.client, last->brings, &arrival.update, arrival.reported.get(), arrival.extra.get()});
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
    Arrival& arrival = *one.arrival;
    const bool makes = step.outcome != Outcome::kKept && (!folding || &one == &given_.back());
    const double weight = one.counts ? one.brings.weight : 0.0;
    Receipt& receipt = arrival.receipt;
    receipt.applied = makes && applied;
    receipt.version = ledger_.now + makes;
    receipt.delay = arrival.kind == Arrival::kClose ? 0 : ledger_.now - one.task.version;
    receipt.task = arrival.kind == Arrival::kClose ? 0 : one.task.id;
    receipt.step_size = std::nan("");
    if (makes && step.outcome == Outcome::kStep)
      receipt.step_size = direction_->immediate() ? step.lr * weight : step.lr;
    receipt.norm = folding ? std::nan("") : one.findings.reported_norm.value_or(one.norm);
    receipt.weight = weight;
    receipt.sequence = 0;
    if (!one.record || arrival.kind == Arrival::kClose) continue;
    receipt.sequence = log_->next();
    one.operation.known = !std::isnan(receipt.norm);
    one.operation.decided = {receipt.applied, receipt.version, receipt.step_size, receipt.weight, receipt.norm};
    log::decide(*one.record, one.operation);
    one.record->waits = log_->waits(receipt.applied);
    if (void* const place = row_place(one)) direction_->copy_row_to(place);
  }
}

// Whether the outcome is the one that the log tells.
void Engine::check_outcome(const Given& given) const {
  const log::Decided* const was = given.arrival->decided;
  const Receipt& now = given.arrival->receipt;
  if (was == nullptr || std::isnan(now.norm)) return;
  if (!same(was->norm, now.norm))
    throw Refusal(Why::kDamaged, "its numbers are not those that were counted: their norm was " +
                                     std::to_string(was->norm) + " then, and is " + std::to_string(now.norm));
  const bool equal = was->applied == now.applied && was->version == now.version &&
                     same(was->step_size, now.step_size) && same(was->weight, now.weight);
  if (equal || follows()) return;
  throw Refusal(Why::kSetting, "the outcome differs from the recorded one: the rule or the model differs (version " +
                                   std::to_string(was->version) + " then, " + std::to_string(now.version) + " now)");
}

// Adds trained models to the sum. False: one of them is not fit, and nothing has changed.
bool Engine::fold(Step& step) {
  const std::vector<bool> fit = direction_->run_fold(trained_);
  const auto unfit = std::find(fit.begin(), fit.end(), false);
  fit_ = static_cast<size_t>(unfit - fit.begin());
  if (unfit != fit.end()) return false;
  if (step.outcome == Outcome::kStep) direction_->run(*runner_, {}, step.kernel);
  return true;
}

// Calls the planned kernels. Nothing has changed until all that they need is ready and the other ranks agree.
template <typename Act>
void Engine::run(Act act) {
  const bool asks = extension_ && extension_->asks.agree;
  if (runner_->at_once()) {
    if (asks) extension_->agree();
    return act();
  }
  try {
    runner_->obey(given_.front().findings.verdict);
    act();
    runner_->prepare();
    // What only this step may be the last to hold.
    runner_->hold(model_.owner);
    for (const Given& one : given_) runner_->hold(one.base.owner);
    if (asks) extension_->agree();
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
  const Arrival& arrival = *given.arrival;
  return settings_.size >= kWorthReadingOnce && direction_->sets_aside() && given.counts && !arrival.is_private &&
         arrival.base == nullptr && !arrival.is_whole() &&
         (arrival.kind == Arrival::kUpdate || arrival.kind == Arrival::kSum) && runner_->at_once() && !log_ &&
         !settings_.ordered && settings_.clip_norm == 0.0 && !prepares(arrival) && !own_step() &&
         !(extension_ && extension_->asks.agree);
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
  Arrival& arrival = *given.arrival;
  store::Owner& owner = arrival.copy ? arrival.copy : arrival.owner;
  waiting_.push_back({std::move(arrival.client), given.brings, std::move(arrival.update), std::move(owner),
                      std::move(arrival.reported), std::move(arrival.extra)});
}

// One step: of one answer, of several trained models in one pass (`folding`), or of the end of a round. Returns how
// many answers it took. 0: nothing has changed, and `fit_` models may be taken in one pass.
size_t Engine::step(Arrival* arrivals, size_t count, bool folding) {
  check_log();
  fit_ = 0;
  const InOrder order(*runner_);
  struct Clears {
    std::vector<Given>& given;
    ~Clears() { given.clear(); }
  } const clears{given_};
  const bool closes = arrivals->kind == Arrival::kClose;
  const log::Decided* const then = follows() ? arrivals->decided : nullptr;
  if (then != nullptr) follow(*then);

  // -- find, inspect, prepare
  for (size_t i = 0; i < count; ++i) {
    given_.emplace_back();
    Given& one = given_.back();
    one.arrival = &arrivals[i];
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
  const store::Vector into = step.along_sum ? direction_->folded() : store::Vector{};
  Given& first = given_.front();
  if (first.once && step.outcome == Outcome::kStep && optimizer_.nbytes() > 0) {  // moments move in place
    first.once = false;
    inspect(first);
    prepare(first);
    plan(step = {}, closes, folding);
  }
  if (first.once) direction_->plan_aside();
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
    first.record = log::record_of(*log_, end);
  }
  if (cut_ && step.takes && !closes) cut_->before(direction_->writes(first.brings.client));
  if (step.keeps) waiting_.reserve(waiting_.size() + 1);

  // -- get ready, run
  if (folding) {
    if (!fold(step)) return 0;
  } else if (step.takes && !first.once) {
    run([&] { direction_->run(*runner_, updates_, step.kernel); });
  } else if (extension_ && extension_->asks.agree) {
    extension_->agree();
  }
  finish(step);

  // -- commit
  if (folding || step.along_sum) {
    direction_->commit_fold(step.out && step.out.data == into.data);
  } else if (step.takes) {
    direction_->commit();
  }
  commit(step);
  if (first.findings.change) first.findings.change->commit();
  if (statistics) {
    statistics->commit();
    if (statistics->state) state_ = std::move(statistics->state);
  }
  if (step.ends_round) waiting_.clear();
  for (Given& one : given_) {
    if (!closes) {
      if (one.findings.next_steps > 0) ledger_.tell_next(one.task.client, one.findings.next_steps);
      const Receipt& said = one.arrival->receipt;
      ledger_.close(one.task.client, one.task.version, Ids::pack(said.version, said.applied));
      if (one.arrival->offset >= 0) ledger_.offset = one.arrival->offset;
    }
    if (one.record) log_->push(std::move(one.record));
  }
  if (then != nullptr) ledger_.now = then->version;
  if (step.keeps) keep(first);
  return given_.size();
}

void Engine::commit(Step& step) noexcept {
  if (step.outcome != Outcome::kKept) enough_since_ = std::nan("");
  if (step.outcome == Outcome::kStep) {
    if (step.out) model_ = std::move(step.out);
    if (step.optimizer) optimizer_ = std::move(*step.optimizer);
    shared_ = false;
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
  if (shared_ || copies || given_.front().once) step.out = into != nullptr ? *into : memory_->vector(settings_.size);
  const OptimizerState& with = step.optimizer ? *step.optimizer : optimizer_;
  step.kernel = with.planned(ledger_.steps, step.lr, model_.data, step.out ? step.out.data : model_.data);
}

// Computes upper bounds of all elements after this step, and refuses an update that might not stay finite. An update
// that waits for others is checked as if the step were taken now.
void Engine::check_bounds(Step& step) {
  const auto refuse = [](const std::string& what) {
    throw Refusal(Why::kTooLarge, "the update is too large: " + what + " could leave the range of float32");
  };
  if (!(direction_->kept_bound() <= kLargestSum)) refuse("the sum of updates");
  for (bool measured = false;; measured = true) {
    const double d = direction_->bound();
    Bounds next{model_bound_, optimizer_.bounds};
    if (!own_step()) next.model += optimizer_.growth(step.lr, d, direction_->growth(step.lr), next.moments);
    const bool fits = d <= kLargestElement && next.model <= kLargestModel && next.moments.m <= kLargestSum &&
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
    return Bounds{largest_of(model, settings_.size), optimizer_.measured()};
  };
  Bounds found = of(model_);
  if (direction_->blends())
    for (const store::Vector& kept : ledger_.all_kept()) found.model = std::max(found.model, of(kept).model);
  model_bound_ = direction_->model_bound = found.model;
  optimizer_.bounds = found.moments;
}

// -- recovery, and other ranks ---------------------------------------------------------------------------------------

std::optional<Task> Engine::execute(const log::Operation& operation, Arrival* answer) {
  const Inside inside(gate);
  Arrival end;
  end.kind = Arrival::kClose;
  switch (operation.kind) {
    case log::kCloseRound:
      if (!settings_.closes_early)
        throw Refusal(Why::kDamaged, "the end of a round, and this server's rule has no rounds");
      step(&end, 1, false);
      return std::nullopt;
    case log::kAnswer:
    case log::kRow: step(answer, 1, false); return std::nullopt;
    default: return apply(operation).task;
  }
}

void Engine::pass_over(const log::Operation* lost, bool is_whole) {
  const Inside inside(gate);
  follows_ = true;
  if (settings_.keeps_versions) {  // it may have been a task
    lost_ = {ledger_.now, kept_now()};
    shared_ = true;
  }
  if (lost == nullptr || (lost->kind != log::kAnswer && lost->kind != log::kRow)) return;
  if (ledger_.owes(lost->client, lost->version)) {
    const Ledger::Found task = ledger_.find(lost->client, lost->version);
    ledger_.close(task.client, task.version);
  }
  // A wrong version would make later operations impossible. If the record is not whole, they say the version.
  if (is_whole && lost->known) catch_up(lost->decided.version);
}

// Goes on to a version that a later operation of the log tells: what made the steps up to it is lost. Updates that
// waited for such a step have it now.
void Engine::catch_up(int64_t version) {
  if (ledger_.now >= version) return;
  Arrival end;
  end.kind = Arrival::kClose;
  try {
    if (settings_.closes_early) step(&end, 1, false);
  } catch (const Refusal&) {  // they wait for the next one
  }
  ledger_.now = version;
}

// Goes on to the version that an answer of the log came to.
void Engine::follow(const log::Decided& then) {
  if (then.version < ledger_.now)
    throw Refusal(Why::kDamaged, "the server came to version " + std::to_string(then.version) + " then, but has " +
                                     std::to_string(ledger_.now) + " already");
  const bool stepped = !std::isnan(then.step_size);
  // Without a buffer an answer that made no step may have made a version.
  if (stepped || settings_.closes_early) catch_up(then.version - stepped);
}

}  // namespace fastagg::engine
