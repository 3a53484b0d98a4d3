// An answer before its step is planned: its task, its bytes, its norm and its weight. It may be refused here.
#include <algorithm>
#include <cmath>

#include "../cpu/cpu.h"
#include "core.h"

namespace fastagg::engine {
namespace {

constexpr int64_t kLargestOverflow = int64_t{1} << 20;  // limits the memory for their versions

// The largest magnitude in an encoded row, infinity if a number is not finite. Scales alone do not tell it: a client
// may have sent the row, with codes that are smaller than they could be.
double largest_in(const Rows& one, const void* row) {
  constexpr int64_t kPart = 4 * kScaleBlock;
  auto* const codes = const_cast<char*>(static_cast<const char*>(row));  // they are only read
  auto* const scales = reinterpret_cast<float*>(codes + one.row_bytes());
  float values[kPart];
  double largest = 0.0;
  for (int64_t begin = 0; begin < one.size; begin += kPart) {
    const int64_t count = std::min(kPart, one.size - begin);
    const Rows before{one.format, begin, 1, nullptr, nullptr};
    cpu::read_row({one.format, count, 1, codes + before.row_bytes(), scales + before.row_scales()}, 0, values);
    for (int64_t i = 0; i < count; ++i)
      largest = std::max<double>(largest, std::isfinite(values[i]) ? std::abs(values[i]) : HUGE_VALF);
  }
  return largest;
}

void weigh(const Core& of, Given& given) {
  Contribution& brings = given.brings;
  const int64_t delay = brings.now - brings.start;
  if (of.settings.staleness.weight != Staleness::kAskWeight) {
    brings.weight = of.settings.staleness.weight_of(delay);
    given.counts = given.counts && !of.settings.staleness.drops(delay);
  } else if (const auto weight = of.extension->weight(delay); weight) {
    brings.weight = *weight;
  } else {
    given.counts = false;
  }
}

// What an answer counts for in a mean.
double share_of(const Settings& settings, const Answer& answer) {
  if (answer.kind == Answer::kSum || !settings.weighs_by_samples) return 1.0;
  if (std::isnan(answer.samples))
    throw Refusal(Why::kSetting,
                  "num_samples: needed with weighting=\"samples\" and \"tokens\", got None; write receive(..., "
                  "num_samples=len(data))");
  return std::min(answer.samples, settings.max_samples);
}

// Checks a row from a log: an answer whose update had this norm.
void check_row(const Given& given, const Rows& held) {
  const Answer& answer = *given.answer;
  // By so much at most an encoded row's numbers are larger than those of its update: bf16 rounds up by less than 2^-7,
  // and a scale is never below the smallest normal number (math/rows.h).
  constexpr double kLeast = 1e-35;
  const auto refuse = [](const std::string& text) { throw Refusal(Why::kDamaged, text); };
  if (held.size == 0)
    refuse(
        "it holds an encoded row, and this server takes none: open the folder with a server on the CPU that has "
        "the same cache, and call its checkpoint()");
  if (!(answer.norm >= 0.0 && std::isfinite(answer.norm))) refuse("the norm of its update is no number");
  if (!given.counts) return;  // the update was dropped, and became no row
  if (answer.row == nullptr) refuse("the row is missing");
  if (answer.row->dtype != held.format || static_cast<int64_t>(answer.row->nbytes()) != held.packed_bytes())
    refuse("it holds a row of another format or size than this server's");
  if (!(largest_in(held, answer.row->data) <= kRounded * std::abs(given.brings.weight) * answer.norm + kLeast))
    refuse("its row's numbers are not finite, or larger than the update's norm allows");
}

Question question_of(const Core& of, const Given& given) {
  const Answer& answer = *given.answer;
  const Sums* const sums = of.direction->is.sums;
  return {answer.client,
          given.task.version,
          of.ledger.now,
          given.task.local_steps,
          given.norm,
          given.brings.share,
          sums ? sums->room() : 0,
          sums ? sums->total() : 0.0,
          answer.update,
          answer.copy ? answer.copy : answer.owner,
          of.model.current,
          given.base,
          answer.control,
          answer.control_size,
          answer.reported,
          answer.extra};
}

}  // namespace

// Finds the task that an answer refers to, and what it counts for.
void Transaction::find_task(Given& given) {
  Answer& answer = *given.answer;
  given.task = core_.find(answer);
  core_.direction->check(answer.client, given.task.version, core_.ledger.now);
  const Sums* const sums = core_.direction->is.sums;
  if (core_.direction->is.privacy) {
    if (answer.kind == Answer::kSum)
      throw Refusal(Why::kSetting,
                    "receive_partial: a sum of clients' updates is not clipped one by one, and this "
                    "server is private; let clients answer it themselves");
    given.participant = core_.ledger.participation.place_for(answer.client);
  }
  if (answer.kind == Answer::kSum && answer.count > std::max(sums ? sums->room() : 0, kLargestOverflow))
    throw Refusal(Why::kSetting, "receive_partial: a sum of " + std::to_string(answer.count) +
                                     " updates, and a step takes at most " + std::to_string(kLargestOverflow) +
                                     " more than its buffer's size: let leaves take more often");
  if (answer.is_whole() != (answer.kind == Answer::kSum && sums && sums->unit > 0.0))
    throw Refusal(Why::kSetting, "receive_partial: an exact sum belongs to a buffer with exact=, and only there");
  Contribution& brings = given.brings;
  brings.client = given.task.client;
  brings.start = given.task.version;
  brings.now = core_.ledger.now;
  brings.share = share_of(core_.settings, answer);
  brings.count = answer.count;
  brings.total = answer.total;
  given.counts = brings.share > 0.0 || sums;  // without samples it only takes a place in a round
  if (!core_.prepares(answer)) weigh(core_, given);
}

// Reads the update, once: into memory of the engine's own, which is the record's where there is one.
void Transaction::inspect_update(Given& given) {
  Answer& answer = *given.answer;
  const Inspector& inspector = *core_.inspector;
  const bool prepared = core_.prepares(answer);
  Rows row;  // that the record holds in place of the update
  if (core_.direction->is.rows && !core_.place.device && !prepared && !answer.blob)
    row = core_.direction->is.rows->coded;
  if (answer.kind == Answer::kRow) {
    check_row(given, row);
    if (answer.row != nullptr) given.brings.row = answer.row->data;
    answer.update.size = core_.settings.size;
  }
  if (cpu::Tensors* const tensors = core_.direction->is.tensors) tensors->m = core_.optimizer.m();
  core_.records.begin(given, inspector.numbers(answer), row, core_.ledger);
  inspector.inspect(given, prepared);
}

// What the extension finds out about an update, its weight and its clipping.
void Transaction::ask_extension(Given& given) {
  Answer& answer = *given.answer;
  Contribution& brings = given.brings;
  if (core_.prepares(answer) && given.counts) {
    given.base = core_.ledger.kept.of(given.task.version);
    given.findings = core_.extension->prepare(question_of(core_, given));
    const Findings& found = given.findings;
    if (found.verdict != nullptr) answer.later = core_.place.device->coming(found.verdict);
    given.norm = found.norm.value_or(given.norm);
    brings.share = found.share.value_or(brings.share);
    if (found.update) answer.update = *found.update;
    given.counts = !found.drops;
    if (found.weight) {
      brings.weight = *found.weight;
    } else if (given.counts) {
      weigh(core_, given);
    }
  }
  brings.norm = given.norm;
  const double most = core_.clip_norm();
  if (given.findings.gain) {
    brings.moves = *given.findings.gain;
  } else if (most > 0.0 && given.norm > most && answer.kind != Answer::kSum) {
    brings.gain = brings.moves = most / given.norm;
    brings.norm = most;
  }
  if (const log::Part* const row = given.operation.part(log::kRowRole); row != nullptr && brings.row == nullptr) {
    core_.direction->is.rows->encode(answer.update, brings, const_cast<uint8_t*>(row->data));
    brings.row = row->data;
  }
  if (std::isnan(brings.norm)) brings.norm = 0.0;  // the device will compute the norm and judge the update
  if (!core_.direction->is.blends) return;
  given.base = core_.ledger.kept.of(given.task.version);
  brings.base = given.base.data;
}

}  // namespace fastagg::engine
