// Takes a server step (cpu.h). If rows, moments and model are fp32, a step is one fused loop. With other types, and for
// noise, weight decay, waiting updates and terms, stages run one after the other over blocks of 1,024 elements.
#include <utility>

#include "../math/noise.h"
#include "blocks.h"
#include "combine.h"
#include "cpu.h"

namespace fastagg::cpu {
namespace {

// Adds the stored elements of a top-k, times `by`, to a block. The result has the same bits as if the top-k's zeros
// were added, too. Adding +0 (`by` > 0) only turns a negative zero into +0, and adding -0 changes nothing.
// `signed_zeros`: whether the block may have negative zeros. Returns false, with nothing added, if the product of `by`
// and a stored element is zero.
bool add_sparse(const Wire& wire, float by, int64_t at, int64_t n, float* out, bool* signed_zeros) {
  const int32_t* const last = wire.indices + wire.count;
  const int32_t* const first = std::lower_bound(wire.indices, last, static_cast<int32_t>(at));
  const int32_t* const end = std::lower_bound(first, last, at + n, [](int32_t a, int64_t b) { return a < b; });
  for (const int32_t* next = first; next != end; ++next)
    if (by * value_of(wire, next - wire.indices) == 0.0f) return false;
  if (by > 0.0f && std::exchange(*signed_zeros, false))
    for (int64_t i = 0; i < n; ++i) out[i] += 0.0f;
  for (const int32_t* next = first; next != end; ++next) out[*next - at] += by * value_of(wire, next - wire.indices);
  return true;
}

// Computes a block of acc + by_0*held_0 + by_1*held_1 + ... over `count` updates, in order, into `out`. Returns the
// address of the sum. If count is 0, that is acc, which may be null.
const float* add_block(const Kernels& table, const std::vector<WeightedUpdate>& held, size_t count, const float* acc,
                       int64_t at, int64_t n, float* out) {
  bool signed_zeros = true;
  for (size_t k = 0; k < count; ++k) {
    const Piece& piece = held[k].update->pieces.front();
    const Wire* const wire = piece.dtype == kEncoded ? static_cast<const Wire*>(piece.data) : nullptr;
    if (wire != nullptr && acc == out && wire->indices != nullptr && held[k].by != 0.0f &&
        add_sparse(*wire, held[k].by, at, n, out, &signed_zeros))
      continue;
    if (const int format = wire != nullptr && acc == out ? wire_facts(wire->format).row : -1; format >= 0) {
      const Row row{const_cast<uint8_t*>(wire->codes) + at * format_facts(format).bits / 8,
                    shifted(const_cast<float*>(wire->scales), at / kScaleBlock)};
      // add_row computes the same directly from the codes. It prefetches whatever the tuning says, because no
      // processor's prefetcher follows so many streams of memory.
      table.add_row[format](out, row, held[k].by, n, 2 * kBlock);
      continue;
    }
    BlockReader reader(*held[k].update, table, at);
    Run run{};
    run.update = reader.block(at, n);
    run.gain = held[k].by;
    run.weight = run.scale = 1.0f;
    run.acc = acc, run.out = out, run.n = n;
    table.fused[acc == nullptr ? kAlongSingle : kAlongFlush][kGives](run);
    acc = out;
  }
  return acc;
}

// A server step. `whole_` has a fused loop's arguments for all elements. run_at() makes a block's arguments from
// `whole_`.
class BlockStep {
 public:
  BlockStep(const Update& update, const Direction& direction, const Optimizer& optimizer)
      : update_(update), direction_(direction), optimizer_(optimizer), table_(kernels()) {
    whole_.gain = static_cast<float>(direction.gain);
    whole_.weight = static_cast<float>(direction.weight);
    whole_.scale = whole_.acc_scale = direction.buffer.scale;
    whole_.acc = direction.buffer.acc;
    whole_.base = direction.base;
    whole_.sum = direction.sum.values;
    whole_.entering = direction.sum.entering;
    whole_.leaving = direction.sum.leaving;
    whole_.dither = sum_dither(direction.row.key.step);
    whole_.sum_scale = direction.sum.scale;
    whole_.hyper = optimizer.hyper;
    whole_.m = optimizer.moments.m;
    whole_.v = optimizer.moments.v;
    whole_.vhat = optimizer.moments.vhat;
    whole_.x = optimizer.x;
    whole_.out = optimizer.steps() ? optimizer.x_out : direction.buffer.out;
    whole_.ahead = tuning().prefetch;
    const bool past = bypasses(update.size * bytes());
    whole_.stream_out = past && whole_.out != whole_.x && whole_.out != whole_.acc && aligned(whole_.out);
    if (is_plain()) {
      whole_.read = static_cast<const float*>(direction.row.read.data);
      whole_.write = static_cast<float*>(direction.row.write.data);
      whole_.stream_write = past && whole_.write != whole_.read && aligned(whole_.write);
    }
  }

  double run_once() {
    const auto loop = loops_for(update_.size * bytes()).fused[along()][act()];
    return read_once(update_, [&](const float* values, int64_t at, int64_t n) {
      if (!in_scratch_) return loop(run_at(values, at, n));
      for (int64_t i = 0; i < n; i += kBlock)
        finish(along(), run_at(values + i, at + i, std::min(kBlock, n - i)), at + i);
    });
  }

  void run() {
    const bool caches = direction_.kind == kMean || direction_.kind == kCalibrated;
    const bool stages = direction_.buffer.held != nullptr || (caches && (!is_plain() || !direction_.sum.terms.empty()));
    const bool limits = caches && facts_.scaled && direction_.buffer.held == nullptr;  // `cached` limits by itself
    const auto loop = loops_for(update_.size * bytes()).fused[along()][act()];
    for_each_part(update_.size, bytes(), [&](int64_t begin, int64_t end) {
      if (direction_.kind == kMean && direction_.row.coded.data != nullptr) {
        for (int64_t at = begin; at < end; at += kBlock) entered(at, std::min(kBlock, end - at));
      } else if (stages || in_scratch_) {
        BlockReader reader(update_, table_, begin, limits);
        for (int64_t at = begin; at < end; at += kBlock) {
          const int64_t n = std::min(kBlock, end - at);
          if (direction_.buffer.held != nullptr)
            along_held(reader, at, n);
          else if (stages)
            cached(reader, at, n);
          else
            on_model(at, n, [&](auto place) {
              each_turn(reader.block(at, n), at, n, [&](FusedDirection from, Run& part, int64_t first) {
                place(part, first);
                optimize(from, part, first);
              });
            });
        }
      } else if (direction_.turns != nullptr) {
        const Kernels& loops = loops_for(update_.size * bytes());
        for_each_run(update_, table_, begin, end, [&](const float* values, int64_t at, int64_t n) {
          each_turn(values, at, n, [&](FusedDirection from, Run& part, int64_t) { loops.fused[from][act()](part); });
        });
      } else {
        const auto run_loop = [&](const float* values, int64_t at, int64_t n) {
          Run run = run_at(values, at, n);
          run.limit = limit_bits(update_);
          loop(run);
        };
        for_each_run(update_, table_, begin, end, run_loop, true);
      }
    });
    if (caches && is_plain()) clear_padding();
  }

 private:
  bool is_noisy() const { return optimizer_.steps() && direction_.noise.deviation > 0.0f; }
  bool is_plain() const { return direction_.row.format == kPlainRows; }

  FusedDirection along() const {
    switch (direction_.kind) {
      case kFlush: return kAlongFlush;
      case kBlend: return kAlongBlend;
      case kMean: return whole_.read != nullptr && whole_.write != nullptr ? kAlongReplace : kAlongEnter;
      case kCalibrated: return optimizer_.steps() ? kAlongCalibrated : kAlongBuffered;
      default: return kAlongSingle;
    }
  }

  int act() const { return optimizer_.steps() ? optimizer_.kind : direction_.kind == kMean ? kMoves : kGives; }

  // Returns about how many bytes the step touches per element, to decide on threads and on stores past the caches.
  int64_t bytes() const {
    int64_t vectors = 1;
    for (const void* vector :
         {static_cast<const void*>(whole_.acc), static_cast<const void*>(whole_.base),
          static_cast<const void*>(whole_.sum), static_cast<const void*>(whole_.x), static_cast<const void*>(whole_.m),
          static_cast<const void*>(whole_.v), static_cast<const void*>(whole_.vhat),
          static_cast<const void*>(direction_.row.read.data)})
      vectors += vector != nullptr;
    vectors += whole_.out != whole_.x;
    if (direction_.buffer.held != nullptr) vectors += static_cast<int64_t>(direction_.buffer.held->size());
    return 4 * (vectors + static_cast<int64_t>(direction_.sum.terms.size()) + (optimizer_.moments.coded() ? 4 : 0) +
                (optimizer_.half.x != nullptr ? 1 : 0));
  }

  // Returns the arguments of a fused loop over the n elements from `at` on. `values` are the update's elements there.
  Run run_at(const float* values, int64_t at, int64_t n) const {
    Run run = whole_;
    run.update = values;
    run.n = n;
    run.acc = shifted(whole_.acc, at);
    run.base = shifted(whole_.base, at);
    run.read = shifted(whole_.read, at);
    run.write = shifted(whole_.write, at);
    run.sum = shifted(whole_.sum, at);
    run.m = shifted(whole_.m, at);
    run.v = shifted(whole_.v, at);
    run.vhat = shifted(whole_.vhat, at);
    run.x = shifted(whole_.x, at);
    run.out = shifted(whole_.out, at);
    run.stream_out = whole_.stream_out && aligned(run.out);
    run.stream_write = whole_.stream_write && aligned(run.write);
    return run;
  }

  // Calls act(along, run, at) for the part of each tensor in n elements from `at` on. Without turns, calls `act` once.
  template <typename Act>
  void each_turn(const float* values, int64_t at, int64_t n, Act act) const {
    if (direction_.turns == nullptr) {
      Run run = run_at(values, at, n);
      return act(along(), run, at);
    }
    const auto before = [](int64_t position, const Turn& turn) { return position < turn.end; };
    auto turn = std::upper_bound(direction_.turns->begin(), direction_.turns->end(), at, before);
    for (const int64_t end = at + n; at < end; ++turn) {
      const int64_t length = std::min(end, turn->end) - at;
      Run run = run_at(values, at, length);
      run.weight = turn->weight, run.turn = turn->along;
      act(turn->along == 0.0f ? kAlongSingle : kAlongTurned, run, at);
      values += length, at += length;
    }
  }

  Row row_at(const Row& row, int64_t at) const {
    if (row.data == nullptr) return {};
    return {static_cast<char*>(row.data) + at * facts_.bits / 8, shifted(row.scales, at / kScaleBlock)};
  }

  // Calls act(place), where place(run, at) sets the models that a run reads and writes. For a bf16 model, both are fp32
  // blocks in scratch. After `act` returns, the written block is rounded to bf16.
  template <typename Act>
  void on_model(int64_t at, int64_t n, Act act) const {
    const HalfModel& half = optimizer_.half;
    if (half.x == nullptr) return act([](Run&, int64_t) {});
    Scratch x, out;
    table_.widen_bf16(half.x + at, x.values, n);
    act([&](Run& run, int64_t first) { run.x = x.values + (first - at), run.out = out.values + (first - at); });
    const int64_t whole = padded(n);
    std::memset(out.values + n, 0, static_cast<size_t>(whole - n) * sizeof(float));
    alignas(64) uint32_t words[4 * kCalls];
    table_.random_words(half.key, at / kBlock, words, nullptr);
    alignas(64) uint16_t last[kBlock];
    uint16_t* const to = whole == n ? half.x_out + at : last;
    table_.change[kHalfRows]({out.values, 1.0f, words, {to, nullptr}, whole, 0, out.values});
    if (to == last) std::memcpy(half.x_out + at, last, static_cast<size_t>(n) * sizeof(uint16_t));
  }

  // Steps a block of the model along the direction that `from` computes. The model may be fp32 or bf16.
  void finish(FusedDirection from, const Run& run, int64_t at) {
    if (optimizer_.half.x == nullptr) return optimize(from, run, at);
    on_model(at, run.n, [&](auto place) {
      Run wide = run;
      place(wide, at);
      optimize(from, wide, at);
    });
  }

  // Steps an fp32 block. With 8-bit moments, noise or weight decay, the direction is first computed in scratch.
  void optimize(FusedDirection from, const Run& run, int64_t at) {
    const bool coded = optimizer_.moments.coded();
    if (!coded && !decays_ && !is_noisy()) return table_.fused[from][act()](run);
    Scratch direction, x;
    Run gives = run, steps = run;
    gives.out = direction.values;
    gives.stream_out = false;
    table_.fused[from][kGives](gives);
    if (is_noisy()) add_noise(direction, run, at);
    steps.update = direction.values;
    steps.gain = steps.weight = 1.0f;
    steps.limit = kNoLimit;
    if (decays_) {
      FASTAGG_NO_CARRY
      for (int64_t i = 0; i < run.n; ++i) {
        x.values[i] = run.x[i];
        decay(direction.values[i], x.values[i], optimizer_.hyper);
      }
      steps.x = x.values;
    }
    if (coded)
      coded_along(direction, steps, at);
    else
      table_.fused[kAlongSingle][optimizer_.kind](steps);
  }

  // Adds noise to the direction, updates the past noise (plan.h), and prefetches memory for the next stages.
  void add_noise(Scratch& direction, const Run& run, int64_t at) const {
    const Noise& noise = direction_.noise;
    const float* const update = run.update == nullptr ? nullptr : run.update + kBlock;
    const float* const acc = run.acc == nullptr ? nullptr : run.acc + kBlock;
    if (noise.count == 0)
      return table_.noise(
          {noise.key, at / kBlock, noise.deviation * noise.scale, direction.values, {update, acc, run.x}});
    Scratch fresh{};
    table_.noise({noise.key, at / kBlock, noise.deviation, fresh.values, {update, acc, run.x}});
    for (int k = 0; k < noise.count; ++k) {
      const PastNoise& past = noise.past[k];
      FASTAGG_NO_CARRY
      for (int64_t i = 0; i < run.n; ++i)
        fresh.values[i] = without_past(fresh.values[i], past.omega, past.values[at + i]);
    }
    for (int k = 0; k < noise.count; ++k) {
      const PastNoise& past = noise.past[k];
      FASTAGG_NO_CARRY
      for (int64_t i = 0; i < run.n; ++i)
        past.values[at + i] = next_past(past.values[at + i], past.theta, fresh.values[i]);
    }
    FASTAGG_NO_CARRY
    for (int64_t i = 0; i < run.n; ++i)
      direction.values[i] = with_noise(direction.values[i], noise.scale, fresh.values[i]);
  }

  // Steps a block with 8-bit moments. The kernel needs whole scale blocks. So a vector's end is padded with zeros.
  void coded_along(Scratch& direction, const Run& run, int64_t at) {
    Scratch x, out;
    const int64_t n = run.n, whole = padded(n);
    const size_t bytes = static_cast<size_t>(n) * sizeof(float), rest = static_cast<size_t>(whole - n) * sizeof(float);
    const auto words = [at](uint8_t* base) { return reinterpret_cast<uint32_t*>(shifted(base, at)); };
    CodedBlock block{direction.values,
                     run.x,
                     run.out,
                     words(optimizer_.moments.coded_m),
                     words(optimizer_.moments.coded_v),
                     words(optimizer_.moments.coded_vhat),
                     optimizer_.moments.units_m + at / kScaleBlock,
                     shifted(optimizer_.moments.units_v, at / kScaleBlock),
                     whole,
                     tuning().prefetch};
    if (rest > 0) {
      std::memset(direction.values + n, 0, rest);
      block.x = x.padded(run.x, n);
      block.x_out = out.values;
    }
    table_.coded[optimizer_.kind](block, optimizer_.hyper, optimizer_.moments.key, at / kScaleBlock);
    if (rest > 0) std::memcpy(run.out, out.values, bytes);
  }

  // Processes a block of a direction with rows, if the rows are not fp32 or there are terms. Rows are padded to whole
  // scale blocks, but other vectors are not. So a last block that ends within a scale block is copied.
  void cached(BlockReader& reader, int64_t at, int64_t n) {
    const int64_t whole = padded(n);
    const float* values = reader.block(at, n);
    Scratch input, sum;
    const bool partial = whole != n;
    if (partial) values = input.padded(values, n);
    Run run = run_at(values, at, n);
    if (facts_.scaled) run.limit = limit_bits(update_);
    const Row read = row_at(direction_.row.read, at), write = row_at(direction_.row.write, at);
    const float* ask = run.x != nullptr ? run.x + kBlock : values + kBlock;
    alignas(64) uint32_t words[4 * kCalls];
    if (facts_.random && write.data != nullptr && direction_.row.coded.data == nullptr)
      table_.random_words(direction_.row.key, at / kBlock, words, ahead_ != 0 ? values + kBlock : nullptr);
    if (direction_.kind == kCalibrated) {
      calibrated(run, read, write, words, ask, at);
      return;
    }
    size_t next = 0;
    if (write.data != nullptr) {
      float* total = run.sum;
      if (partial) sum.padded(run.sum, n), total = sum.values;
      // If the first term's row is the row being written, the term is added after the write.
      const bool termed =
          !direction_.sum.terms.empty() && direction_.sum.terms[0].row.data != direction_.row.write.data;
      const Term term = termed ? direction_.sum.terms[0] : Term{};
      next = termed ? 1 : 0;
      table_.change[direction_.row.format]({values, run.gain, words, write, whole, ahead_, ask, run.limit, read,
                                            row_at(term.row, at), run.entering, run.leaving, run.dither, term.weight,
                                            total});
      if (partial) std::memcpy(run.sum, sum.values, static_cast<size_t>(n) * sizeof(float));
    } else {
      Scratch old;
      Run enters = run;
      enters.read = decoded(read, old, n);
      enters.write = nullptr;
      table_.fused[kAlongEnter][kMoves](enters);
    }
    add_terms(next, run.sum, at, n);
    if (optimizer_.steps()) finish(kAlongSum, run, at);
  }

  // Steps a block along the combination of the waiting updates, or, without a Combiner, along the sum of acc, the
  // waiting updates and `reader`'s update.
  void along_held(BlockReader& reader, int64_t at, int64_t n) {
    const std::vector<WeightedUpdate>& held = *direction_.buffer.held;
    Scratch scratch;
    if (direction_.buffer.combine != nullptr) {
      const Desks::DeskPlace place(*direction_.buffer.desks);
      rows_at(held, table_, at, n, place);
      const auto count = static_cast<int64_t>(held.size());
      combine_rows(direction_.buffer.combine->how(count), place.rows(), count, direction_.buffer.desks->weights(), n,
                   scratch.values);
      Run run = run_at(scratch.values, at, n);
      run.gain = 1.0f, run.weight = run.scale;
      return finish(kAlongSingle, run, at);
    }
    const float* const acc = add_block(table_, held, held.size(), shifted(whole_.acc, at), at, n, scratch.values);
    Run run = run_at(reader.block(at, n), at, n);
    run.acc = acc;
    finish(kAlongFlush, run, at);
  }

  // Processes a block of a mean direction whose new row arrived encoded. The stages have the effect of `change`, but
  // copy the codes. The decoded codes are added to the sum, as `change` does, so the sum's bits are the same.
  void entered(int64_t at, int64_t n) {
    const Run run = run_at(nullptr, at, n);
    const Row coded = row_at(direction_.row.coded, at);
    Scratch fresh, old;
    Run enters = run;
    enters.update = decoded(coded, fresh, n);
    enters.gain = 1.0f;
    enters.read = decoded(row_at(direction_.row.read, at), old, n);
    enters.write = nullptr;
    table_.fused[kAlongEnter][kMoves](enters);
    copy_row(coded, direction_.row.write, at, n);
    add_terms(0, run.sum, at, n);
    if (optimizer_.steps()) finish(kAlongSum, run, at);
  }

  // Copies a block of a row to the same place of row `to`, unless `to` is null.
  void copy_row(const Row& block, const Row& to, int64_t at, int64_t n) const {
    if (to.data == nullptr) return;
    const Row place = row_at(to, at);
    std::memcpy(place.data, block.data, static_cast<size_t>(padded(n) * facts_.bits / 8));
    if (place.scales != nullptr)
      std::memcpy(place.scales, block.scales, static_cast<size_t>(padded(n) / kScaleBlock) * sizeof(float));
  }

  void calibrated(Run run, const Row& read, const Row& write, const uint32_t* words, const float* ask, int64_t at) {
    Scratch old;
    run.read = decoded(read, old, run.n);
    run.write = nullptr;
    if (direction_.row.coded.data != nullptr)
      copy_row(row_at(direction_.row.coded, at), direction_.row.write, at, run.n);
    else if (write.data != nullptr)
      table_.change[direction_.row.format]({run.update, run.gain, words, write, padded(run.n), ahead_, ask, run.limit});
    finish(along(), run, at);
    add_terms(0, run.sum, at, run.n);
  }

  const float* decoded(const Row& row, Scratch& scratch, int64_t n) const {
    if (row.data == nullptr) return nullptr;
    table_.decode[direction_.row.format](row, scratch.values, n, ahead_);
    return scratch.values;
  }

  void add_terms(size_t first, float* sum, int64_t at, int64_t n) const {
    for (size_t i = first; i < direction_.sum.terms.size(); ++i)
      table_.add_row[direction_.row.format](sum, row_at(direction_.sum.terms[i].row, at),
                                            direction_.sum.terms[i].weight, n, ahead_);
  }

  // Sets the padding of the written row to zero. The fused loop, unlike the stages, writes only the row's elements.
  void clear_padding() const {
    if (direction_.row.write.data == nullptr) return;
    const size_t rest = static_cast<size_t>(padded(update_.size) - update_.size) * sizeof(float);
    std::memset(static_cast<float*>(direction_.row.write.data) + update_.size, 0, rest);
  }

  const Update& update_;
  const Direction& direction_;
  const Optimizer& optimizer_;
  const Kernels& table_;
  const Facts facts_ = format_facts(direction_.row.format);
  Run whole_{};
  const int64_t ahead_ = prefetch_of_rows(update_.size * bytes());  // of stages on rows
  const bool decays_ = optimizer_.steps() && decays(optimizer_.hyper);
  // Whether each block of the direction or of the model passes through scratch in a step.
  const bool in_scratch_ = decays_ || is_noisy() || optimizer_.moments.coded() || optimizer_.half.x != nullptr;
};

// Computes out = acc + weight*values, or weight*values if acc is null.
struct Accumulation {
  Accumulation(const Update& update, const float* acc, float weight, float* out)
      : bytes(acc == nullptr ? 8 : 12),
        loop(loops_for(update.size * bytes).fused[acc == nullptr ? kAlongSingle : kAlongFlush][kGives]) {
    whole.limit = limit_bits(update);
    whole.gain = weight;
    whole.weight = whole.scale = 1.0f;
    whole.acc = acc, whole.out = out;
    whole.ahead = tuning().prefetch;
    whole.stream_out = bypasses(update.size * bytes) && acc != out && aligned(out);
  }
  void operator()(const float* values, int64_t at, int64_t n) const {
    Run run = whole;
    run.update = values;
    run.acc = shifted(whole.acc, at);
    run.out = whole.out + at;
    run.n = n;
    run.stream_out = whole.stream_out && aligned(run.out);
    loop(run);
  }

  const int64_t bytes;
  void (*const loop)(const Run& run);
  Run whole{};
};

}  // namespace

void step(const Update& update, const Direction& direction, const Optimizer& optimizer) {
  BlockStep(update, direction, optimizer).run();
}

double step_once(const Update& update, const Direction& direction, const Optimizer& optimizer) {
  return BlockStep(update, direction, optimizer).run_once();
}

void accumulate(const Update& update, const float* acc, float weight, float* acc_out) {
  const Accumulation sum(update, acc, weight, acc_out);
  const Kernels& table = kernels();
  for_each_part(update.size, sum.bytes,
                [&](int64_t begin, int64_t end) { for_each_run(update, table, begin, end, sum, true); });
}

double accumulate_once(const Update& update, const float* acc, float weight, float* acc_out) {
  return read_once(update, Accumulation(update, acc, weight, acc_out));
}

void add_held(const std::vector<WeightedUpdate>& held, const float* acc, float* acc_out) {
  const Kernels& table = kernels();
  const int64_t size = held.front().update->size, reads = static_cast<int64_t>(held.size());
  for_each_part(size, 4 * (reads + 2), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t n = std::min(kBlock, end - at);
      add_block(table, held, held.size(), shifted(acc, at), at, n, acc_out + at);
    }
  });
}

void copy(const Update& update, int64_t first, int64_t count, int64_t item, void* out) {
  for_each_part(count, 2 * item, [&](int64_t from, int64_t to) {
    const int64_t begin = first + from, end = first + to;
    for (const Piece& piece : update.pieces) {
      const int64_t start = std::max(begin, piece.begin), stop = std::min(end, piece.begin + piece.size);
      if (start < stop)
        std::memcpy(static_cast<char*>(out) + (start - first) * item,
                    static_cast<const char*>(piece.data) + (start - piece.begin) * item,
                    static_cast<size_t>((stop - start) * item));
    }
  });
}

}  // namespace fastagg::cpu
