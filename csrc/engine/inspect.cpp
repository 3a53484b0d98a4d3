// An answer before its step is planned: its task, its bytes, its norm and its weight. It may be refused here.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "../cpu/cpu.h"
#include "../math/fixed.h"
#include "engine.h"

namespace fastagg::engine {
namespace {

constexpr int64_t kLargestOverflow = int64_t{1} << 20;  // limits the memory for their versions

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

Update update_at(const std::vector<log::Part>& parts) {
  Update update;
  for (const log::Part& part : parts)
    if (part.role == log::kParameters)
      update.add(part.data, static_cast<int64_t>(part.count), static_cast<Dtype>(part.dtype));
  return update;
}

// The other parts of an answer, besides its parameters.
void describe_rest(const Answer& answer, log::Operation& to) {
  if (answer.reported && answer.reported->size > 0)
    to.parts.push_back({log::kBuffers, kFloat32, static_cast<uint64_t>(answer.reported->size)});
  if (answer.reported && !answer.reported->counters.empty())
    to.parts.push_back({log::kCounter, log::kInt64, answer.reported->counters.size()});
  if (answer.control) to.parts.push_back({log::kControl, kFloat32, static_cast<uint64_t>(answer.control_size)});
  if (answer.kind == Answer::kSum) to.parts.push_back({log::kUpdates, log::kInt64, 1});
  if (answer.offset >= 0) to.parts.push_back({log::kOffset, log::kInt64, 1});
}

void copy_rest(const Answer& answer, const log::Operation& to) {
  for (const log::Part& part : to.parts) {
    const void* from = nullptr;
    if (part.role == log::kBuffers) from = answer.reported->values.data;
    if (part.role == log::kCounter) from = answer.reported->counters.data();
    if (part.role == log::kControl) from = answer.control.data;
    if (part.role == log::kUpdates) from = &answer.count;
    if (part.role == log::kOffset) from = &answer.offset;
    if (from != nullptr) std::memcpy(const_cast<uint8_t*>(part.data), from, part.nbytes());
  }
}

}  // namespace

// Finds the task that an answer refers to, and what it counts for.
void Transaction::find(Given& given) {
  Answer& answer = *given.answer;
  given.task = of_.find(answer);
  of_.direction_->check(answer.client, given.task.version, of_.ledger_.now);
  const Sums* const sums = of_.direction_->is.sums;
  if (answer.kind == Answer::kSum && answer.count > std::max(sums ? sums->room() : 0, kLargestOverflow))
    throw Refusal(Why::kSetting, "receive_partial: a sum of " + std::to_string(answer.count) +
                                     " updates, and a step takes at most " + std::to_string(kLargestOverflow) +
                                     " more than its buffer's size: let leaves take more often");
  if (answer.is_whole() != (answer.kind == Answer::kSum && sums && sums->unit > 0.0))
    throw Refusal(Why::kSetting, "receive_partial: an exact sum belongs to a buffer with exact=, and only there");
  Contribution& brings = given.brings;
  brings.client = given.task.client;
  brings.start = given.task.version;
  brings.now = of_.ledger_.now;
  brings.share = share_of(answer);
  brings.count = answer.count;
  brings.total = answer.total;
  given.counts = brings.share > 0.0 || sums;  // without samples it only takes a place in a round
  if (!of_.prepares(answer)) weigh(given);
}

void Transaction::weigh(Given& given) {
  Contribution& brings = given.brings;
  const int64_t delay = brings.now - brings.start;
  if (of_.settings_.staleness.weight != Staleness::kAskWeight) {
    brings.weight = of_.settings_.staleness.weight_of(delay);
  } else if (const auto weight = of_.extension_->weight(delay); weight) {
    brings.weight = *weight;
  } else {
    given.counts = false;
  }
}

// What an answer counts for in a mean.
double Transaction::share_of(const Answer& answer) const {
  if (answer.kind == Answer::kSum) return 1.0;
  if (!of_.settings_.weighs_by_samples) return 1.0;
  if (std::isnan(answer.samples))
    throw Refusal(
        Why::kSetting,
        "num_samples: needed with weighting=\"samples\", got None; write receive(..., num_samples=len(data))");
  return std::min(answer.samples, of_.settings_.max_samples);
}

// Reads the update, once: into memory of the engine's own, which is the record's where there is one.
void Transaction::inspect(Given& given) {
  Answer& answer = *given.answer;
  const bool prepared = of_.prepares(answer), here = of_.runner_->synchronous();
  const Rows row = of_.direction_->is.rows ? of_.direction_->is.rows->coded : Rows{};
  const bool as_row = row.size > 0 && here && !prepared && !answer.blob;
  if (answer.kind == Answer::kRow) {
    check_row(given, as_row ? row : Rows{});
    given.brings.row = answer.row;
    answer.update.size = of_.settings_.size;
  }
  const Update& logged = here ? answer.update : answer.on_host;
  if (of_.log_) note(given, row, as_row);
  if (!here) {
    if (of_.log_) {
      const Update copy = update_at(given.operation.parts);
      cpu::copy(logged, copy);
      if (answer.in_host) answer.update = copy;  // what the device is sent is what the record holds
    }
    if (!prepared) judge(given);
    return;
  }
  given.norm = answer.norm;
  if (answer.kind == Answer::kRow) return;
  // An extension and an ordered round keep what they read, and the record's memory is used again.
  const bool into_record = given.record && !as_row && !answer.blob, kept = prepared || of_.direction_->is.keeps;
  const double squares = absorb(answer, into_record && !kept ? &given.operation : nullptr);
  if (into_record && kept) cpu::copy(answer.update, update_at(given.operation.parts));
  if (!std::isfinite(squares)) throw Refusal(Why::kNotFinite, "update: NaN or infinity");
  given.norm = std::sqrt(squares);
}

// Makes the record of an answer. It has room for the numbers, or for the row that they become.
void Transaction::note(Given& given, const Rows& row, bool as_row) {
  const Answer& answer = *given.answer;
  const Update& logged = of_.runner_->synchronous() ? answer.update : answer.on_host;
  log::Operation& operation = given.operation;
  operation = {};
  operation.kind = as_row ? log::kRow : log::kAnswer;
  operation.client = answer.client;
  operation.version = given.task.version;
  operation.incarnation = of_.ledger_.incarnation_of(given.task.version);
  operation.share = answer.kind == Answer::kSum ? answer.total : given.brings.share;
  if (answer.blob) {
    const log::Blob& blob = *answer.blob;
    operation.streamed = log::Streamed{blob.number, blob.nbytes, blob.crc, blob.dtype};
  } else if (!as_row) {
    operation.parts = answer.base == nullptr
                          ? parts_of(logged)
                          : std::vector<log::Part>{{log::kParameters, kFloat32, static_cast<uint64_t>(logged.size)}};
  }
  describe_rest(answer, operation);
  if (as_row && given.counts)  // a dropped update becomes no row
    operation.parts.push_back(
        {log::kRowRole, static_cast<uint8_t>(row.format), static_cast<uint64_t>(row.packed_bytes())});
  given.record = log::record_of_answer(*of_.log_, operation);
  copy_rest(answer, operation);
  given.record->blob = answer.blob;
}

// Checks a row from a log: an answer whose update had this norm.
void Transaction::check_row(const Given& given, const Rows& held) const {
  const Answer& answer = *given.answer;
  // By so much at most an encoded row's numbers are larger than those of its update: bf16 rounds up by less than 2^-7,
  // and a scale is never below the smallest normal number (math/rows.h).
  constexpr double kRounded = 1.01, kLeast = 1e-35;
  const auto refuse = [](const std::string& text) { throw Refusal(Why::kDamaged, text); };
  if (held.size == 0)
    refuse(
        "it holds an encoded row, and this server takes none: open the folder with a server on the CPU that has "
        "the same cache, and call its checkpoint()");
  if (!(answer.norm >= 0.0 && std::isfinite(answer.norm))) refuse("the norm of its update is no number");
  if (!given.counts) return;  // the update was dropped, and became no row
  if (answer.row == nullptr) refuse("the row is missing");
  if (answer.format != held.format || static_cast<int64_t>(answer.row_nbytes) != held.packed_bytes())
    refuse("it holds a row of another format or size than this server's");
  if (!(largest_in(held, answer.row) <= kRounded * std::abs(given.brings.weight) * answer.norm + kLeast))
    refuse("its row's numbers are not finite, or larger than the update's norm allows");
}

// The sum of squares of an update.
double Transaction::squares_of(const Answer& answer) const {
  if (!answer.is_whole()) return cpu::sum_squares(answer.update);
  const auto* terms = static_cast<const int64_t*>(answer.update.pieces.front().data);
  const cpu::FixedNorm found = cpu::norm_of_fixed(terms, answer.update.size);
  if (found.largest > fixed_limit(answer.count))
    throw Refusal(Why::kTooLarge, "an exact sum that " + std::to_string(answer.count) + " updates cannot have");
  return found.squares * of_.direction_->is.sums->unit * of_.direction_->is.sums->unit;
}

// Copies an update, less the model that it was trained from if it is one, and returns the sum of squares of the copy.
double Transaction::absorb(Answer& answer, log::Operation* record) {
  Update& update = answer.update;
  if (answer.is_private) return squares_of(answer);
  std::vector<log::Part> parts;
  if (answer.base != nullptr) {
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
  const Update copy = update_at(record != nullptr ? record->parts : parts);
  double squares = 0.0;
  if (answer.is_whole()) {
    void* const to = const_cast<void*>(copy.pieces.front().data);
    std::memcpy(to, update.pieces.front().data, static_cast<size_t>(update.size) * sizeof(int64_t));
    Answer own;
    own.kind = answer.kind, own.count = answer.count, own.update = copy;
    squares = squares_of(own);
  } else if (answer.base == nullptr) {
    squares = cpu::absorb(update, copy);
  } else {
    std::vector<std::atomic<int32_t>> largest(1);
    auto* out = static_cast<float*>(const_cast<void*>(copy.pieces.front().data));
    cpu::fold({{update, answer.base, 1.0f}}, nullptr, out, largest);
    squares = cpu::sum_squares(copy);
  }
  update = copy;
  answer.copy = std::move(memory);
  return squares;
}

// Asks the device for an update's norm, and waits for it, unless kernels obey the verdict.
void Transaction::judge(Given& given) {
  Answer& answer = *given.answer;
  const double clip_norm = answer.kind == Answer::kSum ? 0.0 : of_.settings_.clip_norm;
  std::shared_ptr<Judgement> found = of_.runner_->judge(
      {answer.update, answer.owner, answer.in_host, of_.direction_->is.keeps, !of_.settings_.defers, clip_norm});
  answer.in_host = false;
  given.norm = std::nan("");
  if (of_.settings_.defers) {
    given.findings.verdict = of_.runner_->verdict();
    answer.later = std::move(found);
    return;
  }
  const double squares = found->wait().norm2;
  if (!std::isfinite(squares)) throw Refusal(Why::kNotFinite, "update: NaN or infinity");
  given.norm = std::sqrt(squares);
}

Question Transaction::question_of(const Given& given) const {
  const Answer& answer = *given.answer;
  const Sums* const sums = of_.direction_->is.sums;
  return {answer.client,
          given.task.version,
          of_.ledger_.now,
          given.task.local_steps,
          given.norm,
          given.brings.share,
          sums ? sums->room() : 0,
          sums ? sums->total() : 0.0,
          answer.update,
          answer.copy ? answer.copy : answer.owner,
          of_.model_,
          given.base,
          answer.control,
          answer.control_size,
          answer.reported,
          answer.extra};
}

// What the extension finds out about an update, its weight and its clipping.
void Transaction::prepare(Given& given) {
  Answer& answer = *given.answer;
  Contribution& brings = given.brings;
  if (of_.prepares(answer) && given.counts) {
    given.base = of_.ledger_.kept(given.task.version);
    given.findings = of_.extension_->prepare(question_of(given));
    const Findings& found = given.findings;
    if (found.verdict != nullptr) answer.later = of_.runner_->coming(found.verdict);
    given.norm = found.norm.value_or(given.norm);
    brings.share = found.share.value_or(brings.share);
    if (found.update) answer.update = *found.update;
    given.counts = !found.drops;
    if (found.weight) {
      brings.weight = *found.weight;
    } else if (given.counts) {
      weigh(given);
    }
  }
  brings.norm = given.norm;
  if (of_.settings_.clip_norm > 0.0 && given.norm > of_.settings_.clip_norm && !given.findings.unclipped &&
      answer.kind != Answer::kSum) {
    brings.gain = of_.settings_.clip_norm / given.norm;
    brings.norm = of_.settings_.clip_norm;
  }
  if (std::isnan(brings.norm)) brings.norm = 0.0;  // the device will compute the norm and judge the update
  if (!of_.direction_->is.blends) return;
  given.base = of_.ledger_.kept(given.task.version);
  brings.base = given.base.data;
}

}  // namespace fastagg::engine
