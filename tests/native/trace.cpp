// Checks the bits of everything that csrc/cpu computes, without Python: trace FILE [--write | --few].
//
// Each case hashes the results of a few calls. It runs with every instruction set of this build that the processor has,
// with vectors of every width, with one and two threads, and with the ends of every range of the tuning. All of these,
// on every architecture and with every compiler, must give the hashes in FILE. With --few, for an emulator, vectors
// have one width: the first two settings have both ends of every other range.
//
// Inputs are made from integers, so that they do not depend on library functions.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../../csrc/cpu/combine.h"
#include "../../csrc/cpu/cpu.h"
#include "../../csrc/cpu/kernels.h"
#include "../../csrc/cpu/pool.h"
#include "../../csrc/cpu/tuning.h"
#include "../../csrc/engine/on_cpu.h"
#include "../../csrc/engine/robust.h"
#include "../../csrc/math/distill.h"

namespace {

using namespace fastagg;

// ---- inputs

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint32_t next() {  // splitmix64
    state_ += 0x9E3779B97F4A7C15ull;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return static_cast<uint32_t>((z ^ (z >> 31)) >> 32);
  }

  // Any sign and mantissa, 2^-12..2^3. Some are 0, -0, denormal or small.
  uint32_t bits() {
    const uint32_t word = next(), rare = next();
    const uint32_t sign = word & 0x80000000u;
    if (rare % 16 == 0) return sign;
    if (rare % 64 == 1) return sign | (word & 0x007fffffu);
    if (rare % 64 == 2) return sign | (word & 0x00ffffffu) | (60u << 23);
    return sign | (word & 0x007fffffu) | ((115u + (rare >> 8) % 16) << 23);
  }

  float value() { return float_from_bits(bits()); }

  uint16_t half() {  // fp16, finite
    const uint32_t word = next();
    return static_cast<uint16_t>((word & 0x83ffu) | ((word >> 16) % 20 << 10));
  }

 private:
  uint64_t state_;
};

// Memory at `shift` elements after a multiple of 64 bytes, so that both kinds of stores are tested.
template <typename T>
class Array {
 public:
  explicit Array(int64_t size, int64_t shift = 0) : size_(size), memory_(static_cast<size_t>(size + shift) + 64) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(memory_.data());
    offset_ = static_cast<size_t>(((begin + 63) / 64 * 64 - begin) / sizeof(T)) + static_cast<size_t>(shift);
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* data() { return memory_.data() + offset_; }
  T& operator[](int64_t i) { return data()[i]; }
  int64_t size() const { return size_; }

 private:
  int64_t size_;
  size_t offset_;
  std::vector<T> memory_;
};
using Floats = Array<float>;
using Bytes = Array<uint8_t>;

void fill(Floats& values, Random& random) {
  for (int64_t i = 0; i < values.size(); ++i) values[i] = random.value();
}

void fill_positive(Floats& values, Random& random) {
  for (int64_t i = 0; i < values.size(); ++i) values[i] = float_from_bits(random.bits() & 0x7fffffffu);
}

void fill(Bytes& values, Random& random) {
  for (int64_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint8_t>(random.next());
}

enum Arrives : int { kWhole = 0, kPieces, kHalf16, kBrain16, kArrivals };
constexpr const char* kArrivalNames[kArrivals] = {"fp32", "pieces", "fp16", "bf16"};

// An update: in one piece, in three odd pieces of different types, or in a narrow type.
class Arrival {
 public:
  Arrival(int64_t size, Arrives how, Random& random)
      : floats_(size, how == kPieces ? 1 : 0), halves_(size, how == kPieces ? 1 : 0) {
    fill(floats_, random);
    const Dtype narrow = how == kHalf16 ? kFloat16 : kBFloat16;
    for (int64_t i = 0; i < size; ++i)
      halves_[i] = narrow == kFloat16 ? random.half() : static_cast<uint16_t>(random.bits() >> 16);
    const int64_t first = size / 3 | 1, second = size / 2;
    if (how == kPieces && first < second) {
      update.add(floats_.data(), first, kFloat32);
      update.add(halves_.data() + first, second - first, kBFloat16);
      update.add(floats_.data() + second, size - second, kFloat32);
    } else if (how == kWhole || how == kPieces) {
      update.add(floats_.data(), size, kFloat32);
    } else {
      update.add(halves_.data(), size, narrow);
    }
  }

  Update update;

 private:
  Floats floats_;
  Array<uint16_t> halves_;
};

// ---- hashes

class Hash {
 public:
  void word(uint64_t word) {
    state_ = (state_ ^ word) * 0x100000001B3ull;
    state_ ^= state_ >> 29;
  }
  void value(float value) {  // the processor decides which NaN an operation gives
    word(value != value ? 0x7fc00000u : bits_of(value));
  }
  void value(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    word(value != value ? 0x7ff8000000000000u : bits);
  }
  template <typename T>
  void values(Array<T>& all) {
    for (int64_t i = 0; i < all.size(); ++i) value(all[i]);
  }
  void values(Bytes& all) {
    int64_t i = 0;
    for (; i + 8 <= all.size(); i += 8) {
      uint64_t eight;
      std::memcpy(&eight, all.data() + i, sizeof eight);
      word(eight);
    }
    for (; i < all.size(); ++i) word(all[i]);
  }
  uint64_t state() const { return state_; }

 private:
  uint64_t state_ = 0xCBF29CE484222325ull;
};

// ---- steps

struct Kind {
  const char* name;
  DirectionKind direction;
  bool rows, steps, turned = false;
};
constexpr Kind kKinds[] = {
    {"single", kSingle, false, true},        {"flush", kFlush, false, true},
    {"blend", kBlend, false, true},          {"mean", kMean, true, true},
    {"calibrated", kCalibrated, true, true}, {"sum", kMean, true, false},
    {"buffered", kCalibrated, true, false},  {"turned", kSingle, false, true, true},
};

struct Place {
  int64_t size;
  Arrives how;
};

// The client has no row, has a row that changes, has a row and a term, or leaves.
struct Visit {
  int64_t read, write, term;
};
constexpr Visit kVisits[] = {{-1, 0, -1}, {0, 1, 0}, {1, 1, 0}, {-1, 2, 2}, {1, -1, 2}};

constexpr int64_t kSlotsKept = 3;

void run_steps(const Kind& kind, int optimizer_kind, bool coded, int format, const Place& place, Hash& hash) {
  Random random(static_cast<uint64_t>(place.size * 31 + optimizer_kind * 7 + format));
  const int64_t n = place.size, whole = padded(n), blocks = whole / kScaleBlock, shift = place.how == kPieces ? 1 : 0;
  Floats x(n, shift), out(n, shift), m(n, shift), v(n, shift), vhat(n, shift), base(n, shift), acc(n, shift);
  Floats acc_out(n, shift), sum(n, shift), units(2 * blocks), scales(kSlotsKept * blocks);
  Bytes coded_m(whole), coded_v(whole), coded_vhat(whole), rows_data(kSlotsKept * whole * 4);
  for (Floats* one : {&x, &m, &base, &acc, &sum}) fill(*one, random);
  for (Floats* one : {&v, &vhat}) fill_positive(*one, random);
  for (Bytes* one : {&coded_m, &coded_v, &coded_vhat}) fill(*one, random);
  for (int64_t i = 0; i < 2 * blocks; ++i) units[i] = float_from_bits((i < blocks ? 103u : 87u) << 23);
  Rows rows{format, n, kSlotsKept, rows_data.data(), scales.data()};
  if (rows.row_scales() == 0) rows.scales = nullptr;

  Optimizer optimizer;
  if (kind.steps) {
    optimizer.kind = optimizer_kind;
    optimizer.hyper = {0.07f, 0.9f, 0.1f, 0.99f, 0.01f, 0.001f, 1.25f};
    visit_at(optimizer_kind, Optimizers{}, [&](auto one) {
      using Of = decltype(one);
      Moments& held = optimizer.moments;
      if (coded) {
        held.coded_m = coded_m.data();
        held.coded_v = Of::kV ? coded_v.data() : nullptr;
        held.coded_vhat = Of::kVhat ? coded_vhat.data() : nullptr;
        held.units_m = units.data();
        held.units_v = Of::kV ? units.data() + blocks : nullptr;
      } else {
        held.m = Of::kM ? m.data() : nullptr;
        held.v = Of::kV ? v.data() : nullptr;
        held.vhat = Of::kVhat ? vhat.data() : nullptr;
      }
    });
  }

  uint64_t arrival = 1234567890123ull;
  const int visits = kind.rows ? static_cast<int>(sizeof kVisits / sizeof kVisits[0]) : 2;
  for (int turn = 0; turn < visits; ++turn, ++arrival) {
    const Arrival arrives(n, place.how, random);
    const Visit& visit = kVisits[turn];
    Direction direction;
    direction.kind = kind.direction;
    direction.gain = turn % 2 == 0 ? 1.0 : 0.7;
    direction.weight = kind.direction == kMean ? 1.0 : 0.37;
    const std::vector<Turn> turns{{n / 3, 0.37f, 0.0f}, {n / 2, 0.21f, 0.43f}, {n, 0.37f, -0.6f}};
    if (kind.turned) direction.turns = &turns;
    direction.base = base.data();
    direction.buffer = {kind.rows && turn == 0 ? nullptr : acc.data(), nullptr, 0.3f};
    if (kind.rows) {
      direction.row = {format, rows.row(visit.read), rows.row(visit.write), {987654321987ull, arrival, 17}};
      if (kind.steps || kind.direction == kMean) direction.sum = {sum.data(), 1.0f, 0.8f, 0.2f, {}};
      if (direction.sum.values != nullptr && visit.term >= 0)
        direction.sum.terms.push_back({rows.row(visit.term), -0.45f});
      if (direction.sum.values != nullptr && turn == 2) direction.sum.terms.push_back({rows.row(1), 0.6f});
    }
    // Once in another vector, and once in place.
    if (!kind.steps) direction.buffer.out = turn == 1 ? acc_out.data() : acc.data();
    optimizer.x = turn == 1 ? out.data() : x.data();
    optimizer.x_out = turn == 0 || turn == 1 ? out.data() : x.data();
    optimizer.moments.key = {55555ull << 32 | 77, arrival, 0};
    cpu::step(arrives.update, direction, optimizer);
  }
  for (Floats* one : {&x, &out, &m, &v, &vhat, &acc, &acc_out, &sum, &units, &scales}) hash.values(*one);
  for (Bytes* one : {&coded_m, &coded_v, &coded_vhat, &rows_data}) hash.values(*one);

  // Reads back what was stored.
  if (!kind.steps && kind.direction == kMean) {
    const float weights[kSlotsKept] = {0.3f, 0.0f, 0.9f};
    const int64_t all = (n + kBlock - 1) / kBlock;
    cpu::recompute_sum(rows, weights, sum.data(), 0, all, 1);
    hash.values(sum);
    const float others[kSlotsKept] = {-0.1f, 1.0f, 0.0f};
    cpu::recompute_sum(rows, others, sum.data(), all > 1 ? 1 : 0, all, 2);
    hash.values(sum);
    for (int64_t slot = 0; slot < kSlotsKept; ++slot) {
      cpu::read_row(rows, slot, x.data());
      hash.values(x);
    }
  }
}

// Every size in every place, except for the long size: it is in only one place, which differs between cases.
std::vector<Place> places(int64_t number) {
  std::vector<Place> found;
  for (int how = 0; how < kArrivals; ++how) {
    found.push_back({1, static_cast<Arrives>(how)});
    found.push_back({257, static_cast<Arrives>(how)});
    found.push_back({1025, static_cast<Arrives>(how)});
  }
  found.push_back({70001, static_cast<Arrives>(number % kArrivals)});
  return found;
}

// ---- the rest

void run_passes(const Place& place, Hash& hash) {
  Random random(static_cast<uint64_t>(place.size));
  const int64_t n = place.size;
  const Arrival one(n, place.how, random), other(n, kPieces, random);
  Floats acc(n), out(n), x(n), base(n);
  for (Floats* given : {&acc, &x, &base}) fill(*given, random);
  cpu::accumulate(one.update, nullptr, 0.7f, out.data());
  hash.values(out);
  cpu::accumulate(one.update, acc.data(), 0.3f, out.data());
  hash.values(out);
  cpu::accumulate(one.update, acc.data(), -1.0f, acc.data());
  hash.values(acc);

  std::vector<std::atomic<int32_t>> largest(2);
  cpu::fold({{one.update, base.data(), 0.3f}, {other.update, nullptr, 0.6f}}, acc.data(), out.data(), largest);
  hash.values(out);
  largest[0] = largest[1] = 0;
  x[n / 2] = float_from_bits(0x7f800000u);
  cpu::fold({{one.update, x.data(), 0.3f}, {other.update, base.data(), 0.6f}}, nullptr, out.data(), largest);
  hash.values(out);
  hash.word((largest[0] < 0x7f800000 ? 2u : 0u) | (largest[1] < 0x7f800000 ? 1u : 0u));
  x[n / 2] = 0.25f;

  hash.value(cpu::sum_squares(one.update));
  for (const bool inner : {false, true}) {
    const cpu::Distances found = cpu::distances(one.update, x.data(), base.data(), inner);
    for (const double number : {found.moved, found.update, found.inner}) hash.value(number);
  }
  const int64_t item = one.update.pieces[0].dtype == kFloat32 ? 4 : 2;
  if (place.how != kPieces) {
    Bytes copied(n * item);
    cpu::copy(one.update, n / 3, n - n / 3, item, copied.data());
    hash.values(copied);
  }
}

template <typename T>
void run_distill(int64_t classes, Hash& hash) {
  Random random(static_cast<uint64_t>(classes));
  const int64_t rows = 37;
  Array<T> teacher(rows * classes), student(rows * classes), probs(rows * classes), gradient(rows * classes);
  Array<int64_t> labels(rows), which(rows);
  Array<double> entropy(rows);
  for (int64_t i = 0; i < rows * classes; ++i) {
    teacher[i] = static_cast<T>(random.value());
    student[i] = static_cast<T>(random.value());
  }
  for (int64_t i = 0; i < rows; ++i) which[i] = static_cast<int64_t>(random.next() % static_cast<uint32_t>(rows));
  cpu::soft_targets(teacher.data(), 0.4, rows, classes, probs.data(), labels.data(), entropy.data());
  for (int64_t i = 0; i < rows; ++i) hash.word(static_cast<uint64_t>(labels[i]));
  hash.values(probs);
  hash.values(entropy);
  labels[rows / 2] = kIgnored;
  for (const int64_t* rows_of_teacher :
       {static_cast<const int64_t*>(nullptr), static_cast<const int64_t*>(which.data())}) {
    const cpu::DistillationLoss found = cpu::distill(student.data(), probs.data(), labels.data(), entropy.data(),
                                                     rows_of_teacher, rows, rows, classes, 0.1, 0.8, gradient.data());
    hash.value(found.loss);
    hash.value(found.alpha);
    hash.values(gradient);
  }
}

// Steps along a buffer with noise, of which `past` vectors follow earlier noise.
void run_noise(int past, const Place& place, Hash& hash) {
  Random random(static_cast<uint64_t>(place.size));
  const int64_t n = place.size, shift = place.how == kPieces ? 1 : 0;
  Floats x(n, shift), out(n, shift), acc(n, shift), one(n), other(n);
  for (Floats* all : {&x, &acc, &one, &other}) fill(*all, random);
  for (uint32_t step = 0; step < 2; ++step) {
    const Arrival arrives(n, place.how, random);
    Direction direction;
    direction.kind = kFlush;
    direction.buffer.acc = acc.data();
    direction.buffer.scale = direction.noise.scale = 0.25f;
    for (uint32_t& word : direction.noise.key.words) word = random.next();
    direction.noise.deviation = 0.75f;
    direction.noise.count = past;
    direction.noise.past[0] = {one.data(), 0.3f, 0.95f}, direction.noise.past[1] = {other.data(), 0.2f, 0.4f};
    Optimizer optimizer;
    optimizer.kind = place_in<Sgd>(Optimizers{});
    optimizer.hyper.lr = 0.07f;
    optimizer.x = x.data(), optimizer.x_out = step == 0 ? out.data() : x.data();
    cpu::step(arrives.update, direction, optimizer);
    for (Floats* all : {&x, &out, &one, &other}) hash.values(*all);
  }
}

void run_crc(bool in_software, Hash& hash) {
  Random random(1);
  Bytes bytes(70001);
  fill(bytes, random);
  for (const int64_t count : {0, 1, 7, 8, 9, 255, 12287, 12288, 12295, 40000, 70000})
    hash.word(cpu::crc32c(bytes.data() + 1, count, static_cast<uint32_t>(count), in_software));
}

// Two of the rows are so near that their distance is added up itself.
void run_combine(int64_t count, Hash& hash) {
  Random random(static_cast<uint64_t>(count));
  const int64_t size = 70001;
  std::vector<std::unique_ptr<Floats>> rows;
  std::vector<Update> updates(static_cast<size_t>(count));
  std::vector<WeightedUpdate> held;
  for (int64_t k = 0; k < count; ++k) {
    rows.push_back(std::make_unique<Floats>(size, k % 3));
    fill(*rows.back(), random);
  }
  for (int64_t i = 0; i < size && count > 1; ++i) (*rows[1])[i] = (*rows[0])[i] * (1.0f + 0x1p-20f);
  std::vector<float> weights(static_cast<size_t>(count));
  for (size_t k = 0; k < weights.size(); ++k) {
    weights[k] = k < 2 || k % 4 != 3 ? 1.0f : 1.0f / static_cast<float>(k);
    updates[k].add(rows[k]->data(), size, kFloat32);
  }
  for (size_t k = 0; k < weights.size(); ++k) held.push_back({&updates[k], weights[k]});
  for (int kind = 0; kind < CombineKinds::kCount; ++kind)
    for (const int64_t n : {int64_t{1}, int64_t{63}, int64_t{1000}, kBlock}) {
      std::vector<const float*> from;
      for (const auto& row : rows) from.push_back(row->data() + n);
      Floats out(n);
      cpu::combine_rows({kind, (count - 1) / 3}, from.data(), count, weights.data(), n, out.data());
      hash.values(out);
    }
  engine::CpuRunner runner;
  for (const double square : engine::squared_distances(held, size, runner)) hash.value(square);
}

// ---- all of it

using Lines = std::vector<std::string>;

template <typename Run>
void line(Lines& lines, const std::string& name, Run run) {
  Hash hash;
  run(hash);
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash.state()));
  lines.push_back(name + " " + text);
}

// Optimizers first..last-1 with every kind; what does not step comes with the first.
void trace_steps(int first, int last, int64_t number, Lines& lines) {
  for (const Kind& kind : kKinds)
    for (int format = 0; format < (kind.rows ? RowFormats::kCount : 1); ++format)
      for (int optimizer = first; optimizer < (kind.steps ? last : 1); ++optimizer)
        for (const bool coded : {false, true}) {
          std::string name = kind.name;
          if (kind.rows) name += std::string(" ") + format_facts(format).name;
          bool owns = false, fits = true;
          if (kind.steps)
            visit_at(optimizer, Optimizers{}, [&](auto one) {
              owns = !decltype(one)::kPlain;
              fits = !kind.turned || (!coded && decltype(one)::kM);
              name += std::string(" ") + decltype(one)::kName;
            });
          if ((coded && !owns) || !fits) continue;
          line(lines, name + (coded ? " 8-bit" : ""), [&](Hash& hash) {
            for (const Place& place : places(number)) run_steps(kind, optimizer, coded, format, place, hash);
          });
          ++number;
        }
}

Lines trace() {
  Lines lines;
  constexpr int kLater = place_in<Nesterov>(Optimizers{});  // a line's sizes follow from its number, and stay
  trace_steps(0, kLater, 0, lines);
  trace_steps(kLater, Optimizers::kCount, 0, lines);
  for (int how = 0; how < kArrivals; ++how)
    line(lines, std::string("passes ") + kArrivalNames[how], [&](Hash& hash) {
      for (const Place& place : places(how))
        if (place.how == how) run_passes(place, hash);
    });
  for (const int64_t classes : {1, 2, 10, 127, 129, 1000, 1300}) {
    line(lines, "distill fp32 " + std::to_string(classes), [&](Hash& hash) { run_distill<float>(classes, hash); });
    line(lines, "distill fp64 " + std::to_string(classes), [&](Hash& hash) { run_distill<double>(classes, hash); });
  }
  for (const int past : {0, 2})
    line(lines, "noise " + std::to_string(past), [&](Hash& hash) {
      for (int how = 0; how < kArrivals; ++how)
        for (const Place& place : places(how)) run_noise(past, place, hash);
    });
  line(lines, "crc32c", [](Hash& hash) { run_crc(false, hash); });
  line(lines, "crc32c by table", [](Hash& hash) { run_crc(true, hash); });
  for (const int64_t count : {1, 2, 5, 10, 16, 17, 50, 70, 300})
    line(lines, "combine " + std::to_string(count), [&](Hash& hash) { run_combine(count, hash); });
  return lines;
}

// The settings of a run of the trace. They must not change any bit.
struct Setting {
  int threads;
  int64_t prefetch, cache, width, wide_below, group, places;
};
constexpr int64_t kHuge = int64_t{1} << 40;
constexpr Setting kSettings[] = {
    {1, 0, 0, 512, kHuge, 65536, 1}, {2, 512, 1, 512, 0, 4096, 4}, {2, 0, 1, 256, 0, 65536, 4},
    {1, 512, 0, 256, 0, 4096, 1},    {2, 512, 1, 128, 0, 4096, 1},
};

int differing(const Lines& expected, const Lines& found, const std::string& where) {
  int count = 0;
  for (size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
    const std::string wanted = i < expected.size() ? expected[i] : "nothing",
                      is = i < found.size() ? found[i] : "nothing";
    if (wanted == is || ++count > 5) continue;
    std::printf("%s: expected \"%s\", found \"%s\"\n", where.c_str(), wanted.c_str(), is.c_str());
  }
  if (count > 5) std::printf("%s: %d lines in all\n", where.c_str(), count);
  return count;
}

int run(const std::string& path, bool write, bool few) {
  Lines first;
  int bad = 0, runs = 0;
  std::string sets;
  for (const auto& [isa, supported] : cpu::isas()) {
    const std::string name = isa;
    if (!supported) {
      std::printf("%s: not on this processor\n", isa);
      continue;
    }
    cpu::select(isa);
    sets += " " + name;
    for (const Setting& set : kSettings) {
      if (few && &set - kSettings >= 2) break;
      cpu::set_threads(set.threads);
      cpu::set_tuning({"trace", set.prefetch, set.cache, set.width, set.wide_below, 50, set.group, set.places});
      const Lines found = trace();
      if (first.empty()) first = found;
      const std::string where = name + ", threads " + std::to_string(set.threads) + ", prefetch " +
                                std::to_string(set.prefetch) + ", cache " + std::to_string(set.cache) + ", width " +
                                std::to_string(set.width) + ", group " + std::to_string(set.group) + ", places " +
                                std::to_string(set.places);
      bad += differing(first, found, where) > 0 ? 1 : 0;
      ++runs;
    }
  }
  if (write) {
    std::ofstream file(path);
    for (const std::string& one : first) file << one << '\n';
  }
  Lines expected;
  std::ifstream file(path);
  for (std::string one; std::getline(file, one);) expected.push_back(one);
  bad += differing(expected, first, path) > 0 ? 1 : 0;
  std::printf("%s: %d cases, %d ways to run each (%s)\n", bad == 0 ? "same bits" : "DIFFERENT BITS",
              static_cast<int>(first.size()), runs, sets.c_str() + (sets.empty() ? 0 : 1));
  return bad == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** given) {
  const std::string how = count > 2 ? given[2] : "";
  if (count < 2 || (!how.empty() && how != "--write" && how != "--few")) {
    std::fprintf(stderr, "usage: trace FILE [--write | --few]\n");
    return 2;
  }
  return run(given[1], how == "--write", how == "--few");
}
