#include "on_cuda.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "../cpu/combine.h"
#include "../cpu/cpu.h"
#include "../math/reduce.h"
#include "../store/encoded.h"
#include "core.h"

namespace fastagg::engine {
namespace {

template <typename T>
const T* at(const char* bytes, size_t place) {
  return reinterpret_cast<const T*>(bytes + place);
}

// Collects the kernels to launch, and copies of the arrays that these kernels read (`packed`).
class LaunchList : public Runner {
 public:
  explicit LaunchList(const Card& card) : card_(card) {}

  void step(const Update& update, const Direction& direction, const Optimizer& optimizer) override {
    if (direction.buffer.combine != nullptr) return combined(direction.buffer, optimizer);
    if (direction.turns != nullptr) {
      const size_t place = pack(direction.turns->data(), direction.turns->size(), update.size);
      const auto count = static_cast<int64_t>(direction.turns->size());
      launches.push_back([=, &update, gain = direction.gain](const cuda::LaunchPlace& where, const char* bytes) {
        cuda::turned_step(update, gain, {at<Turn>(bytes, place), count}, optimizer, where);
      });
      return;
    }
    launches.push_back([&update, direction, optimizer](const cuda::LaunchPlace& where, const char*) {
      cuda::step(update, direction, optimizer, where);
    });
  }

  std::vector<double> pair_sums(const std::vector<WeightedUpdate>& held, int64_t size, const uint8_t* wanted,
                                bool apart) override {
    const auto count = static_cast<int64_t>(held.size()), wide = (count + cuda::kSide - 1) / cuda::kSide;
    std::vector<int32_t> tiles(static_cast<size_t>(wide * wide));  // flags of all tiles, then the wanted tiles' numbers
    for (int64_t i = 0; i < count; ++i)
      for (int64_t k = i; k < count; ++k)
        if (wanted == nullptr || wanted[i * count + k] != 0)
          tiles[static_cast<size_t>(i / cuda::kSide * wide + k / cuda::kSide)] = 1;
    size_t listed = 0;
    for (size_t tile = 0; tile < tiles.size(); ++tile)
      if (tiles[tile] != 0) tiles[listed++] = static_cast<int32_t>(tile);
    const std::vector<cuda::HeldRow> rows = rows_of(held, nullptr);
    const size_t first = pack(rows.data(), rows.size(), size), second = pack(tiles.data(), listed, size);
    const std::vector<char> sent = std::exchange(packed, {});
    const auto in = static_cast<int64_t>(sent.size()), tile_count = static_cast<int64_t>(listed);
    const int64_t groups = (size + kGroup - 1) / kGroup;
    std::vector<double> totals(held.size() * held.size()), sums(listed * cuda::kSide * cuda::kSide * groups);
    const auto out = static_cast<int64_t>(sums.size() * sizeof(double));
    const store::Vector there = card_.memory->bytes(in), added = card_.memory->bytes(out);
    cuda::copy_now(there.data, sent.data(), in, card_.where());
    const auto* const bytes = reinterpret_cast<const char*>(there.data);
    cuda::pair_sums({at<cuda::HeldRow>(bytes, first), count, size},
                    {at<int32_t>(bytes, second), tile_count, apart, reinterpret_cast<double*>(added.data)},
                    card_.where());
    cuda::copy_now(sums.data(), added.data, out, card_.where());
    const double* next = sums.data();
    for (size_t tile = 0; tile < listed; ++tile)
      for (int64_t pair = 0; pair < cuda::kSide * cuda::kSide; ++pair, next += groups) {
        const int64_t i = tiles[tile] / wide * cuda::kSide + pair / cuda::kSide;
        const int64_t k = tiles[tile] % wide * cuda::kSide + pair % cuda::kSide;
        if (i < count && k < count)
          totals[static_cast<size_t>(i * count + k)] =
              total_of_groups(static_cast<size_t>(groups), [&](size_t g) { return next[g]; });
      }
    return totals;
  }

  void accumulate(const Update& update, const float* acc, double weight, float* out) override {
    launches.push_back([&update, acc, weight, out](const cuda::LaunchPlace& where, const char*) {
      cuda::accumulate(update, acc, weight, out, where);
    });
  }

  void recompute_sum(const Rows& rows, const float* weights, float* sum) override {
    const size_t place = pack(weights, static_cast<size_t>(rows.slots), rows.size);
    launches.push_back([rows, place, sum](const cuda::LaunchPlace& where, const char* bytes) {
      const cuda::Blocks blocks{0, (rows.size + kBlock - 1) / kBlock, 1};
      cuda::recompute_sum(rows, at<float>(bytes, place), sum, blocks, where);
    });
  }

  void add_rows(const Rows& rows, const std::vector<RowJob>& jobs, const float* weights, float weight) override {
    const bool has = weights != nullptr;
    std::vector<RowJob> sent = jobs;
    std::vector<float> weights_of_jobs;  // the weights of the slots in `jobs`, without the other slots
    for (RowJob& job : sent) {
      if (!has) break;
      job.shift = job.first_slot - static_cast<int64_t>(weights_of_jobs.size());
      weights_of_jobs.insert(weights_of_jobs.end(), weights + job.first_slot, weights + job.last_slot);
    }
    const auto count = static_cast<int64_t>(jobs.size());
    const size_t place = pack(sent.data(), sent.size(), count * kBlock);
    const size_t weighed = pack(weights_of_jobs.data(), weights_of_jobs.size(), count * kBlock);
    launches.push_back([=](const cuda::LaunchPlace& where, const char* bytes) {
      const float* all = has ? at<float>(bytes, weighed) : nullptr;
      cuda::add_rows(rows, at<RowJob>(bytes, place), count, all, weight, where);
    });
  }

  void settle_rows(const std::vector<RowJob>& jobs, float* sum, int64_t size) override {
    const auto count = static_cast<int64_t>(jobs.size());
    const size_t place = pack(jobs.data(), jobs.size(), count * kBlock);
    launches.push_back([=](const cuda::LaunchPlace& where, const char* bytes) {
      cuda::settle_rows(at<RowJob>(bytes, place), count, sum, size, where);
    });
  }

  void zero(void* memory, int64_t bytes) override {
    launches.push_back([=](const cuda::LaunchPlace& where, const char*) { cuda::zero(memory, bytes, where); });
  }

  void clear() noexcept { launches.clear(), packed.clear(), longest = 0; }

  std::vector<std::function<void(const cuda::LaunchPlace& where, const char* bytes)>> launches;
  std::vector<char> packed;
  int64_t longest = 0;  // the most elements that a kernel processes while it reads `packed`

 private:
  // Appends values to `packed`. `size`: the number of elements that the kernel processes. The kernel reads the values
  // again for each block of elements. Returns the byte offset of the first value.
  template <typename T>
  size_t pack(const T* values, size_t count, int64_t size) {
    longest = std::max(longest, size);
    const size_t place = (packed.size() + kApart - 1) / kApart * kApart, bytes = count * sizeof(T);
    packed.resize(place + bytes);
    std::memcpy(packed.data() + place, values, bytes);
    return place;
  }

  // Returns the updates as kernels read them. `weights`: the factors of the updates. Null: each update's own factor.
  std::vector<cuda::HeldRow> rows_of(const std::vector<WeightedUpdate>& held, const float* weights) {
    std::vector<cuda::HeldRow> rows;
    for (size_t k = 0; k < held.size(); ++k) {
      cuda::HeldRow& row = rows.emplace_back();
      row.by = weights != nullptr ? weights[k] : held[k].by;
      if (const Wire* const wire = store::wire_in(*held[k].update)) {
        row.wire = *wire;
        continue;
      }
      Update update = *held[k].update;
      store::Owner owner;
      const bool kept = reinterpret_cast<uintptr_t>(update.pieces.front().data) % kApart == 0;
      if (update.pieces.size() > 1 || !kept) keep(card_, update, owner);  // only for updates from checkpoints
      row.data = update.pieces.front().data, row.dtype = update.pieces.front().dtype;
    }
    return rows;
  }

  // Collects a step whose direction a Combiner makes from a round's updates. This direction is first computed as a
  // vector.
  void combined(const Buffer& buffer, const Optimizer& optimizer) {
    const std::vector<cuda::HeldRow> rows = rows_of(*buffer.held, buffer.desks->weights());
    const int64_t size = buffer.held->front().update->size, count = static_cast<int64_t>(rows.size());
    const size_t place = pack(rows.data(), rows.size(), size);
    const store::Vector along = card_.memory->vector(size);
    card_.queue->hold(along.owner);
    launches.push_back(
        [=, how = buffer.combine->how(count), to = along.data](const cuda::LaunchPlace& where, const char* bytes) {
          cuda::combine({at<cuda::HeldRow>(bytes, place), count, size}, how, to, where);
          Update whole;
          whole.add(to, size, kFloat32);
          cuda::step(whole, {}, optimizer, where);
        });
  }

  const Card card_;
};

class CudaRunner : public Device {
 public:
  CudaRunner(const Card& card, std::shared_ptr<LaunchList> kernels) : card_(card), kernels_(std::move(kernels)) {}

  void begin() override { card_.queue->begin(stream()); }
  void end() noexcept override {
    kernels_->clear();
    card_.queue->end();
  }
  void follow() override { card_.queue->follow(stream()); }
  void settle() noexcept override { card_.queue->settle(); }
  void hold(const store::Owner& owner) override { card_.queue->hold(owner); }

  void launch() override {
    struct LaunchReset {
      ~LaunchReset() { kernels.clear(); }
      LaunchList& kernels;
    } const clears{*kernels_};
    const cuda::LaunchPlace where = card_.where();
    const char* const bytes = bring(where);
    const auto& launches = kernels_->launches;
    for (size_t done = 0; done < launches.size(); ++done) {
      try {
        launches[done](where, bytes);
      } catch (...) {
        torn_ = done > 0;
        throw;
      }
    }
  }

  void load(const Optimizer& optimizer, const DirectionState& of) override {
    const DirectionState::Traits& is = of.is;
    const int format = is.rows != nullptr ? is.rows->format : -1;
    cuda::LaunchPlace loads = card_.where();
    loads.loads = true;
    const float* const memory = optimizer.x;  // nothing is launched, so nobody reads or writes this memory
    Wire wire;
    for (wire.format = 0; wire.format < WireFormats::kCount; ++wire.format) cuda::decode(wire, nullptr, loads);
    Update whole, pieces;
    whole.add(memory, 8, kFloat32);
    pieces.add(memory, 4, kFloat32), pieces.add(memory, 4, kFloat32);
    std::vector<double> scratch(static_cast<size_t>(cuda::measure_scratch(whole.size)));
    for (const Update* update : {&whole, &pieces}) {
      cuda::measure(*update, {}, scratch.data(), nullptr, loads);
      cuda::accumulate(*update, memory, 1.0, nullptr, loads);
      for (const DirectionKind kind : {kSingle, kFlush, kBlend, kMean}) {
        if (kind == kMean && format < 0) continue;
        Direction direction;
        direction.kind = kind;
        direction.row.format = format;
        direction.noise.deviation = is.privacy != nullptr ? 1.0f : 0.0f;
        cuda::step(*update, direction, optimizer, loads);
        if (kind == kMean) cuda::step(*update, direction, {}, loads);
      }
    }
    if (is.combines) {
      cuda::combine({nullptr, 1, 1}, {place_in<Mean>(CombineKinds{}), 0}, nullptr, loads);
      for (const int64_t count : {4, 8, 12, 16, 20})
        cuda::combine({nullptr, count, 1}, {place_in<TrimmedMean>(CombineKinds{}), 0}, nullptr, loads);
      for (const bool apart : {false, true}) cuda::pair_sums({nullptr, 1, 1}, {nullptr, 1, apart, nullptr}, loads);
    }
    if (is.tensors != nullptr) {
      cuda::sum_parts(whole, {}, loads);
      cuda::turned_step(whole, 1.0, {}, optimizer, loads);
    }
    if (format < 0) return;
    Rows rows;
    rows.format = format, rows.size = rows.slots = 1;
    cuda::add_rows(rows, nullptr, 1, nullptr, 0.0f, loads);
    cuda::settle_rows(nullptr, 1, nullptr, 1, loads);
    cuda::recompute_sum(rows, nullptr, nullptr, {0, 1, 1}, loads);
  }

  std::unique_ptr<Inspector> inspector(const Settings& settings, const DirectionState& direction) override {
    return inspector_on(card_, settings, direction);
  }

 private:
  // Returns the caller's stream. Throws if the server's state is lost.
  void* stream() const {
    if (torn_)
      throw cuda::Error(
          "a launch failed in the middle of an arrival, so this server's state is lost: load its last checkpoint");
    return card_.stream();
  }

  // Copies `packed` to memory that kernels can read. Returns the address of the copy, or null if `packed` is empty.
  const char* bring(const cuda::LaunchPlace& where) {
    const std::vector<char>& packed = kernels_->packed;
    if (packed.empty()) return nullptr;
    const auto bytes = static_cast<int64_t>(packed.size());
    char* const pinned = card_.queue->pinned(packed.size());
    std::memcpy(pinned, packed.data(), packed.size());
    if (packed.size() <= kFew && kernels_->longest <= kShort) return pinned;
    if (packed.size() > room_) {
      hold(sent_.owner);
      sent_ = card_.memory->bytes(static_cast<int64_t>(room_ = 2 * packed.size()));
    }
    cuda::copy(sent_.data, pinned, bytes, where);
    return reinterpret_cast<const char*>(sent_.data);
  }

  const Card card_;
  const std::shared_ptr<LaunchList> kernels_;
  store::Vector sent_;  // the copy of `packed` on the device, if kernels do not read pinned memory
  size_t room_ = 0;
  bool torn_ = false;  // whether a kernel failed to start after others; the server's vectors are then changed in part
};

}  // namespace

Place on_cuda(const Card& card) {
  const auto kernels = std::make_shared<LaunchList>(card);
  return {card.memory, kernels, std::make_shared<CudaRunner>(card, kernels)};
}

}  // namespace fastagg::engine
