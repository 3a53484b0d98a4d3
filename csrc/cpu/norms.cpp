// Computes norms of an arriving update (cpu.h), also while the update is copied or added. Norms decide whether an
// update is refused or clipped, and in some rules how far the model moves.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "../math/reduce.h"
#include "blocks.h"
#include "cpu.h"

namespace fastagg::cpu {
namespace {

using TensorSums = std::array<double, 3>;

double total_of_groups(const std::vector<TensorSums>& groups, size_t which) {
  return fastagg::total_of_groups(groups.size(), [&](size_t g) { return groups[g][which]; });
}

// Memory for a strand (math/reduce.h). padded() returns `from` itself if count is n, otherwise a copy with zeros up to
// n values. The zeros do not change the sums.
struct alignas(64) Strand {
  float values[kStrand];

  const float* padded(const float* from, int64_t count, int64_t n) {
    if (count == n) return from;
    std::memcpy(values, from, static_cast<size_t>(count) * sizeof(float));
    std::memset(values + count, 0, static_cast<size_t>(n - count) * sizeof(float));
    return values;
  }
};

// Returns elements at..at+count-1 of an update as floats: in place if possible, otherwise assembled in `scratch`.
const float* strand_of(const Update& update, const Kernels& table, int64_t at, int64_t count, Strand& scratch) {
  const auto piece = piece_at(update, at);
  if (is_plain(update, *piece) && at + count <= piece->begin + piece->size)
    return static_cast<const float*>(piece->data) + (at - piece->begin);
  if (piece->dtype == kEncoded) {
    decode(table, *static_cast<const Wire*>(piece->data), at, scratch.values, count);
    return scratch.values;
  }
  for_each_run(update, table, at, at + count, [&](const float* values, int64_t from, int64_t n) {
    std::memcpy(scratch.values + (from - at), values, static_cast<size_t>(n) * sizeof(float));
  });
  return scratch.values;
}

// Copies elements at..at+count-1 to the same place of `to`. Both updates must have the same types there.
void copy_range(const Update& update, const Update& to, int64_t at, int64_t count) {
  auto from = piece_at(update, at), into = piece_at(to, at);
  for (const int64_t end = at + count; at < end;) {
    while (at >= from->begin + from->size) ++from;
    while (at >= into->begin + into->size) ++into;
    const int64_t n = std::min({end, from->begin + from->size, into->begin + into->size}) - at;
    const int64_t item = from->dtype == kFloat32 ? 4 : 2;
    auto* const place = static_cast<char*>(const_cast<void*>(into->data)) + (at - into->begin) * item;
    std::memcpy(place, static_cast<const char*>(from->data) + (at - from->begin) * item, static_cast<size_t>(n * item));
    at += n;
  }
}

// Returns the address of elements at..at+count-1 if they can be read in place in a single piece, else null.
float* plain_at(const Update& update, int64_t at, int64_t count) {
  const auto piece = piece_at(update, at);
  if (!is_plain(update, *piece) || at + count > piece->begin + piece->size) return nullptr;
  return static_cast<float*>(const_cast<void*>(piece->data)) + (at - piece->begin);
}

// Returns how many strands a thread takes at a time: a whole group, or fewer if several threads share a small update.
// With fewer strands, a thread mostly reads the elements that the same thread steps later. If cores share no cache,
// moving cache lines between them costs time.
int64_t strands_at_a_time(int64_t strands) {
  int64_t per = threads() > 1 && strands > 8 ? 2 : kGroupStrands;
  while (per < kGroupStrands && per * 8 * threads() < strands) per *= 2;
  return per;
}

// Returns the sums of each group, in reduce.h's order. `used` is the number of sums, and `bytes` the number of bytes
// that are touched per element. sums(values, at, count, out) sums one strand. before(at, count, out) is called first.
// `before` returns whether it has summed the strand itself.
//
// The pass is limited by memory. Some processors prefetch only within a page. For these processors, a thread reads a
// group's strands from several places in turn (tuning.h, `places`). The strands' sums are still added in order.
template <typename Of, typename Before>
std::vector<TensorSums> group_sums(const Update& update, int used, int64_t bytes, Of sums, Before before) {
  const int64_t strands = (update.size + kStrand - 1) / kStrand, per = strands_at_a_time(strands);
  std::vector<TensorSums> groups(static_cast<size_t>((update.size + kGroup - 1) / kGroup), TensorSums{});
  std::vector<TensorSums> strand_sums(per < kGroupStrands ? static_cast<size_t>(strands) : 0);
  const Kernels& table = kernels();
  const int64_t turns = std::max<int64_t>(per / tuning().places, 1);
  const auto add = [&](const TensorSums* of_strands, int64_t first, int64_t last) {
    TensorSums& total = groups[static_cast<size_t>(first / kGroupStrands)];
    for (int64_t s = first; s < last; ++s)
      for (int k = 0; k < used; ++k) total[static_cast<size_t>(k)] += of_strands[s - first][static_cast<size_t>(k)];
  };
  auto part = [&](int64_t index) {
    const int64_t first = index * per, last = std::min(strands, first + per);
    TensorSums whole[kGroupStrands];
    TensorSums* const out = strand_sums.empty() ? whole : &strand_sums[static_cast<size_t>(first)];
    Strand scratch;
    for (int64_t turn = 0; turn < turns; ++turn)
      for (int64_t s = first + turn; s < last; s += turns) {
        const int64_t at = s * kStrand, count = std::min(kStrand, update.size - at);
        double* const sum = out[s - first].data();
        if (!before(at, count, sum)) sums(strand_of(update, table, at, count, scratch), at, count, sum);
      }
    if (strand_sums.empty()) add(whole, first, last);
  };
  // Even small updates are shared between threads. A pass that only reads takes no cache lines from other cores.
  parallel((strands + per - 1) / per, std::max(update.size * bytes, kWorthSharing), part);
  for (int64_t first = 0; !strand_sums.empty() && first < strands; first += kGroupStrands)
    add(&strand_sums[static_cast<size_t>(first)], first, std::min(strands, first + kGroupStrands));
  return groups;
}

template <typename Of>
std::vector<TensorSums> group_sums(const Update& update, int used, int64_t bytes, Of sums) {
  return group_sums(update, used, bytes, sums, [](int64_t, int64_t, double*) { return false; });
}

int64_t whole_rows(int64_t count) { return (count + 127) / 128 * 128; }

void squares_of_strand(const float* values, int64_t, int64_t count, double* out) {
  Strand padded;
  const int64_t n = whole_rows(count);
  kernels().squares(padded.padded(values, count, n), n, tuning().prefetch, out);
}

// Reads a strand once, into `copy`. Returns the strand's sum of squares.
double copied(const Update& update, int64_t at, int64_t count, Strand& copy) {
  const int64_t ahead = tuning().prefetch, whole = whole_rows(count);
  const float* const from = plain_at(update, at, count);
  double sums[kSums];
  if (from != nullptr && whole == count) {
    kernels().copy_squares(from, copy.values, count, ahead, sums);
    return sums[0];
  }
  for_each_run(update, kernels(), at, at + count, [&](const float* values, int64_t start, int64_t n) {
    std::memcpy(copy.values + (start - at), values, static_cast<size_t>(n) * sizeof(float));
  });
  std::memset(copy.values + count, 0, static_cast<size_t>(whole - count) * sizeof(float));
  kernels().squares(copy.values, whole, ahead, sums);
  return sums[0];
}

auto squares_and(Tensors* tensors) {
  return [=](const float* values, int64_t at, int64_t count, double* out) {
    squares_of_strand(values, at, count, out);
    if (tensors != nullptr) tensors->add(values, at, count);
  };
}

struct Products {
  double own = 0.0, both = 0.0, model = 0.0;      // the products u.u, u.x, x.x
  float least = HUGE_VALF, largest = -HUGE_VALF;  // the smallest and the largest element of u

  bool are_misformed(double share, bool is_trained) const {
    if (least == largest) return false;  // equal elements, such as those of a test, show nothing
    const double apart = own - 2.0 * both + model, opposite = own + 2.0 * both + model;
    return is_trained ? own < share * share * apart : std::min(apart, opposite) < share * share * own;
  }
};

constexpr int64_t kMostCompared = 1024;

// Returns elements begin..end-1: in place if they are fp32 in a single piece, otherwise copied to `scratch`.
const float* floats_of(const Update& update, int64_t begin, int64_t end, float* scratch) {
  const Piece& piece = *piece_at(update, begin);
  const int64_t offset = begin - piece.begin;
  if (is_plain(update, piece) && offset + end - begin <= piece.size)
    return static_cast<const float*>(piece.data) + offset;
  for_each_run(update, kernels(), begin, end, [&](const float* values, int64_t at, int64_t n) {
    std::memcpy(scratch + (at - begin), values, static_cast<size_t>(n) * sizeof(float));
  });
  return scratch;
}

// Returns the products over evenly spaced runs of `length` elements, at most kMostCompared elements in all. In an
// encoded update each run begins at a scale block, because decoding must begin there.
Products products_of(const Update& numbers, const Update& x, int64_t runs, int64_t length) {
  Products sum;
  const int64_t apart = numbers.size / runs;
  float of_numbers[kMostCompared], of_x[kMostCompared];
  for (int64_t run = 0; run < runs; ++run) {
    int64_t begin = run * apart;
    if (numbers.pieces.front().dtype == kEncoded) begin -= begin % kScaleBlock;
    const int64_t end = std::min(begin + length, numbers.size);
    const float* const own = floats_of(numbers, begin, end, of_numbers);
    const float* const model = floats_of(x, begin, end, of_x);
    for (int64_t i = 0; i < end - begin; ++i) {
      const double u = own[i], of_model = model[i];
      sum.least = std::min(sum.least, own[i]), sum.largest = std::max(sum.largest, own[i]);
      sum.own += u * u, sum.both += u * of_model, sum.model += of_model * of_model;
    }
  }
  return sum;
}

}  // namespace

bool is_misformed(const Update& numbers, const Update& x, bool is_trained) {
  constexpr int64_t kFewest = 16, kRuns = 64;
  if (numbers.size < kFewest) return false;
  // A few elements are compared first, with a wider limit. This comparison is enough for most answers.
  if (!products_of(numbers, x, kFewest, 1).are_misformed(0.5, is_trained)) return false;
  const bool all = numbers.size <= kMostCompared;
  return products_of(numbers, x, all ? 1 : kRuns, kMostCompared / (all ? 1 : kRuns)).are_misformed(0.1, is_trained);
}

Tensors::Tensors(std::vector<int64_t> ends) : ends_(std::move(ends)) {
  size_t count = 0;
  for (size_t i = 0; i < ends_.size(); ++i) {
    first_.push_back(count);
    count += static_cast<size_t>((ends_[i] - 1) / kStrand - begin(i) / kStrand + 1);
  }
  parts_.resize(count);
}

void Tensors::add(const float* values, int64_t at, int64_t count) {
  static constexpr Strand kZeros{};
  const Kernels& table = kernels();
  auto tensor = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), at) - ends_.begin());
  for (const int64_t end = at + count; at < end; ++tensor) {
    const int64_t length = std::min(end, ends_[tensor]) - at, n = whole_rows(length);
    Strand of_update, of_m;
    double sums[kSums];
    table.apart(of_update.padded(values, length, n), of_m.padded(m + at, length, n), kZeros.values, true, n,
                tuning().prefetch, sums);
    parts_[first_[tensor] + static_cast<size_t>(at / kStrand - begin(tensor) / kStrand)] = {sums[0], sums[1], sums[2]};
    values += length, at += length;
  }
}

std::vector<int64_t> Tensors::begins() const {
  std::vector<int64_t> ends;
  for (size_t i = 0; i < ends_.size(); ++i)
    for (int64_t at = begin(i); at < ends_[i]; at = (at / kStrand + 1) * kStrand) ends.push_back(at);
  ends.push_back(ends_.empty() ? 0 : ends_.back());
  return ends;
}

Tensors::TensorSums Tensors::of(size_t tensor) const {
  TensorSums total{};
  const size_t last = tensor + 1 < first_.size() ? first_[tensor + 1] : parts_.size();
  for (size_t i = first_[tensor]; i < last; ++i)
    total = {total.update + parts_[i].update, total.m + parts_[i].m, total.inner + parts_[i].inner};
  return total;
}

double sum_squares(const Update& update, Tensors* tensors) {
  const Piece* const only = update.pieces.size() == 1 ? update.pieces.data() : nullptr;
  const Wire* const wire = only != nullptr && only->dtype == kEncoded ? static_cast<const Wire*>(only->data) : nullptr;
  if (tensors == nullptr && wire != nullptr && wire->indices != nullptr) {
    std::vector<TensorSums> groups(static_cast<size_t>((update.size + kGroup - 1) / kGroup));
    const auto squares = kernels().squares_topk[wire->values];
    auto group = [&](int64_t g) { groups[static_cast<size_t>(g)][0] = squares(*wire, g * kGroup); };
    parallel(static_cast<int64_t>(groups.size()), std::max(8 * wire->count, kWorthSharing), group);
    return total_of_groups(groups, 0);
  }
  return total_of_groups(group_sums(update, 1, tensors == nullptr ? 4 : 8, squares_and(tensors)), 0);
}

double absorb(const Update& update, const Update& copy, Tensors* tensors) {
  const auto take = [&](int64_t at, int64_t count, double* out) {
    const float* const from = plain_at(update, at, count);
    float* const to = plain_at(copy, at, count);
    if (from == nullptr || to == nullptr || whole_rows(count) != count) {
      copy_range(update, copy, at, count);
      return false;  // group_sums then sums the copy
    }
    kernels().copy_squares(from, to, count, tuning().prefetch, out);
    if (tensors != nullptr) tensors->add(to, at, count);
    return true;
  };
  return total_of_groups(group_sums(copy, 1, 8, squares_and(tensors), take), 0);
}

double read_once(const Update& update, const Visit& visit) {
  const auto take = [&](int64_t at, int64_t count, double* out) {
    Strand copy;
    *out = copied(update, at, count, copy);
    visit(copy.values, at, count);
    return true;
  };
  return total_of_groups(group_sums(update, 1, 8, squares_of_strand, take), 0);
}

void fold_once(const std::vector<TrainedModel>& updates, const float* acc, float* acc_out,
               std::vector<double>& squares) {
  const Kernels& table = kernels();
  const int64_t size = updates.front().model.size, ahead = tuning().prefetch;
  const size_t count = updates.size(), groups = static_cast<size_t>((size + kGroup - 1) / kGroup);
  const bool past = bypasses(4 * size * static_cast<int64_t>(count + 2)) && acc_out != acc && aligned(acc_out);
  std::vector<double> sums(groups * count);  // each update's sum of squares, by group
  auto group = [&](int64_t index) {
    double* const totals = sums.data() + static_cast<size_t>(index) * count;
    Strand copies[kFolds], total;  // copies of updates, and the sum of all but the last fold
    for (int64_t at = index * kGroup, end = std::min(size, at + kGroup); at < end; at += kStrand) {
      const int64_t n = std::min(kStrand, end - at);
      const float* before = shifted(acc, at);
      for (size_t first = 0, folded = 0; first < count; first += folded) {
        // Without acc, the first update is stored. Adding it to zero would change the sign of a negative zero.
        folded = before == nullptr ? 1 : std::min<size_t>(kFolds, count - first);
        folded = folded == 3 ? 2 : folded;
        Fold fold{};
        for (size_t k = 0; k < folded; ++k) {
          totals[first + k] += copied(updates[first + k].model, at, n, copies[k]);
          fold.in[k] = copies[k].values, fold.weight[k] = updates[first + k].weight;
        }
        const bool last = first + folded == count;
        float* const out = last ? acc_out + at : total.values;
        if (before == nullptr) {
          Run run{};
          run.update = copies[0].values, run.gain = updates[first].weight, run.weight = run.scale = 1.0f;
          run.out = out, run.n = n;
          table.fused[kAlongSingle][kGives](run);
        } else {
          fold.count = static_cast<int>(folded), fold.acc = before, fold.out = out;
          fold.n = n, fold.ahead = before == total.values ? 0 : ahead, fold.stream_out = last && past;
          int32_t largest[kFolds];
          table.fold(fold, largest);
        }
        before = out;
      }
    }
  };
  parallel(static_cast<int64_t>(groups), std::max(size * static_cast<int64_t>(4 * count), kWorthSharing), group);
  for (size_t k = 0; k < count; ++k)
    squares[k] = fastagg::total_of_groups(groups, [&](size_t g) { return sums[g * count + k]; });
}

void copy(const Update& update, const Update& to) {
  for_each_part(update.size, 8, [&](int64_t begin, int64_t end) { copy_range(update, to, begin, end - begin); });
}

Distances distances(const Update& update, const float* x, const float* base, bool wants_inner) {
  const Kernels& table = kernels();
  const int64_t ahead = tuning().prefetch;
  const auto sums = [&](const float* values, int64_t at, int64_t count, double* out) {
    Strand of_update, of_x, of_base;
    const int64_t n = whole_rows(count);
    table.apart(of_update.padded(values, count, n), of_x.padded(x + at, count, n), of_base.padded(base + at, count, n),
                wants_inner, n, ahead, out);
  };
  const std::vector<TensorSums> groups = group_sums(update, wants_inner ? 3 : 2, 12, sums);
  return {total_of_groups(groups, 1), total_of_groups(groups, 0), wants_inner ? total_of_groups(groups, 2) : 0.0};
}

}  // namespace fastagg::cpu
