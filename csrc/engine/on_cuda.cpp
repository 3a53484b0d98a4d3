#include "on_cuda.h"

#include <cstring>
#include <utility>

#include "../cpu/combine.h"
#include "../cpu/cpu.h"
#include "../math/reduce.h"
#include "../store/encoded.h"
#include "held.h"

namespace fastagg::engine {
namespace {

constexpr size_t kApart = 16;  // bytes: every vector begins at a multiple of this
// Bytes that kernels read in the host's memory. A copy of more takes less time than reading them there twice.
constexpr size_t kFew = size_t{16} << 10;
// So many bytes of a caller's are kept until kernels have read them. Of more torch was told (bindings/arrays.h), which
// an emulated device has not.
#if defined(FASTAGG_CUDA_EMULATED)
constexpr int64_t kKept = INT64_MAX;
#else
constexpr int64_t kKept = int64_t{1} << 20;
#endif

template <typename T>
const T* at(const char* bytes, size_t place) {
  return reinterpret_cast<const T*>(bytes + place);
}

}  // namespace

OnCuda::OnCuda(Place place, int64_t size) : place_(std::move(place)) {
  const int64_t scratch = cuda::judge_scratch(size) * static_cast<int64_t>(sizeof(double));
  const auto verdict = static_cast<int64_t>((sizeof(Verdict) + kApart - 1) / kApart * kApart);
  own_ = place_.memory->bytes(verdict + scratch);
  place_.memory->zero(own_.data, verdict + scratch);
  verdict_ = reinterpret_cast<Verdict*>(own_.data);
  scratch_ = reinterpret_cast<double*>(reinterpret_cast<char*>(own_.data) + verdict);
}

template <typename T>
size_t OnCuda::pack(const T* values, size_t count) {
  const size_t place = (bytes_.size() + kApart - 1) / kApart * kApart, bytes = count * sizeof(T);
  bytes_.resize(place + bytes);
  std::memcpy(bytes_.data() + place, values, bytes);
  return place;
}

void OnCuda::check_whole() const {
  if (torn_)
    throw cuda::Error(
        "a launch failed in the middle of an arrival, so this server's state is lost: load its last checkpoint");
}

void OnCuda::begin() {
  check_whole();
  place_.queue->begin(place_.stream());
}

void OnCuda::follow() {
  check_whole();
  place_.queue->follow(place_.stream());
}

void OnCuda::step(const Update& update, const Direction& direction, const Optimizer& optimizer) {
  if (direction.buffer.combine != nullptr) return combined(direction.buffer, optimizer);
  if (direction.turns != nullptr) {
    const size_t place = pack(direction.turns->data(), direction.turns->size());
    const auto count = static_cast<int64_t>(direction.turns->size());
    launches_.push_back([=, &update, gain = direction.gain](const cuda::Where& where, const char* bytes) {
      cuda::turned_step(update, gain, {at<Turn>(bytes, place), count}, optimizer, where);
    });
    return;
  }
  launches_.push_back([&update, direction, optimizer](const cuda::Where& where, const char*) {
    cuda::step(update, direction, optimizer, where);
  });
}

// `weights`: what they are multiplied by, in place of their own.
std::vector<cuda::HeldRow> OnCuda::rows_of(const std::vector<Held>& held, const float* weights) {
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
    if (update.pieces.size() > 1 || !kept) keep(update, owner);  // it came with a checkpoint
    row.data = update.pieces.front().data, row.dtype = update.pieces.front().dtype;
  }
  return rows;
}

// A step along what whole updates become, which is a vector of its own.
void OnCuda::combined(const Buffer& buffer, const Optimizer& optimizer) {
  const std::vector<cuda::HeldRow> rows = rows_of(*buffer.held, buffer.desks->weights());
  const size_t place = pack(rows.data(), rows.size());
  const int64_t size = buffer.held->front().update->size, count = static_cast<int64_t>(rows.size());
  const store::Vector along = place_.memory->vector(size);
  hold(along.owner);
  launches_.push_back(
      [=, how = buffer.combine->how(count), to = along.data](const cuda::Where& where, const char* bytes) {
        cuda::combine({at<cuda::HeldRow>(bytes, place), count, size}, how, to, where);
        Update whole;
        whole.add(to, size, kFloat32);
        cuda::step(whole, {}, optimizer, where);
      });
}

std::vector<double> OnCuda::pair_sums(const std::vector<Held>& held, int64_t size, const uint8_t* wanted, bool apart) {
  const auto count = static_cast<int64_t>(held.size()), wide = (count + cuda::kSide - 1) / cuda::kSide;
  std::vector<int32_t> tiles(static_cast<size_t>(wide * wide));  // those with a pair that is wanted
  for (int64_t i = 0; i < count; ++i)
    for (int64_t k = i; k < count; ++k)
      if (wanted == nullptr || wanted[i * count + k] != 0)
        tiles[static_cast<size_t>(i / cuda::kSide * wide + k / cuda::kSide)] = 1;
  size_t listed = 0;
  for (size_t tile = 0; tile < tiles.size(); ++tile)
    if (tiles[tile] != 0) tiles[listed++] = static_cast<int32_t>(tile);
  const std::vector<cuda::HeldRow> rows = rows_of(held, nullptr);
  const size_t first = pack(rows.data(), rows.size()), second = pack(tiles.data(), listed);
  const std::vector<char> sent = std::exchange(bytes_, {});
  const auto in = static_cast<int64_t>(sent.size()), most = static_cast<int64_t>(listed);
  const int64_t groups = (size + kGroup - 1) / kGroup;
  std::vector<double> found(held.size() * held.size()), sums(listed * cuda::kSide * cuda::kSide * groups);
  const auto out = static_cast<int64_t>(sums.size() * sizeof(double));
  const store::Vector there = place_.memory->bytes(in), added = place_.memory->bytes(out);
  cuda::copy_now(there.data, sent.data(), in, where());
  const auto* const bytes = reinterpret_cast<const char*>(there.data);
  cuda::pair_sums({at<cuda::HeldRow>(bytes, first), count, size},
                  {at<int32_t>(bytes, second), most, apart, reinterpret_cast<double*>(added.data)}, where());
  cuda::copy_now(sums.data(), added.data, out, where());
  const double* next = sums.data();
  for (size_t tile = 0; tile < listed; ++tile)
    for (int64_t pair = 0; pair < cuda::kSide * cuda::kSide; ++pair, next += groups) {
      const int64_t i = tiles[tile] / wide * cuda::kSide + pair / cuda::kSide;
      const int64_t k = tiles[tile] % wide * cuda::kSide + pair % cuda::kSide;
      if (i < count && k < count)
        found[static_cast<size_t>(i * count + k)] =
            total_of_groups(static_cast<size_t>(groups), [&](size_t g) { return next[g]; });
    }
  return found;
}

void OnCuda::accumulate(const Update& update, const float* acc, double weight, float* out, const Upper&) {
  launches_.push_back([&update, acc, weight, out](const cuda::Where& where, const char*) {
    cuda::accumulate(update, acc, weight, out, where);
  });
}

void OnCuda::recompute_sum(const Rows& rows, const float* weights, float* sum) {
  const size_t place = pack(weights, static_cast<size_t>(rows.slots));
  launches_.push_back([rows, place, sum](const cuda::Where& where, const char* bytes) {
    const cuda::Blocks blocks{0, (rows.size + kBlock - 1) / kBlock, 1};
    cuda::recompute_sum(rows, at<float>(bytes, place), sum, blocks, where);
  });
}

void OnCuda::add_rows(const Rows& rows, const std::vector<RowJob>& jobs, const float* weights, float weight) {
  const bool has = weights != nullptr;
  std::vector<RowJob> sent = jobs;
  std::vector<float> some;  // of the jobs' slots alone
  for (RowJob& job : sent) {
    if (!has) break;
    job.shift = job.first_slot - static_cast<int64_t>(some.size());
    some.insert(some.end(), weights + job.first_slot, weights + job.last_slot);
  }
  const size_t place = pack(sent.data(), sent.size()), weighed = pack(some.data(), some.size());
  const auto count = static_cast<int64_t>(jobs.size());
  launches_.push_back([=](const cuda::Where& where, const char* bytes) {
    const float* all = has ? at<float>(bytes, weighed) : nullptr;
    cuda::add_rows(rows, at<RowJob>(bytes, place), count, all, weight, where);
  });
}

void OnCuda::settle_rows(const std::vector<RowJob>& jobs, float* sum, int64_t size) {
  const size_t place = pack(jobs.data(), jobs.size());
  const auto count = static_cast<int64_t>(jobs.size());
  launches_.push_back([=](const cuda::Where& where, const char* bytes) {
    cuda::settle_rows(at<RowJob>(bytes, place), count, sum, size, where);
  });
}

void OnCuda::zero(void* memory, int64_t bytes) {
  launches_.push_back([=](const cuda::Where& where, const char*) { cuda::zero(memory, bytes, where); });
}

void OnCuda::prepare() {
  where_ = where();
  where_.verdict = obeyed_;
  on_device_ = nullptr;
  if (bytes_.empty()) return;
  char* const pinned = place_.queue->pinned(bytes_.size());
  std::memcpy(pinned, bytes_.data(), bytes_.size());
  on_device_ = pinned;
  if (bytes_.size() <= kFew) return;
  if (bytes_.size() > room_) {
    hold(sent_.owner);
    sent_ = place_.memory->bytes(static_cast<int64_t>(room_ = 2 * bytes_.size()));
  }
  cuda::copy(sent_.data, pinned, static_cast<int64_t>(bytes_.size()), where_);
  on_device_ = reinterpret_cast<const char*>(sent_.data);
}

void OnCuda::launch() {
  struct Forgets {
    ~Forgets() { mine.forget(); }
    OnCuda& mine;
  } const forgets{*this};
  size_t done = 0;
  try {
    for (const Launch& one : launches_) {
      one(where_, on_device_);
      ++done;
    }
  } catch (...) {
    torn_ = done > 0;
    throw;
  }
}

void OnCuda::forget() noexcept {
  launches_.clear();
  bytes_.clear();
  obeyed_ = nullptr;
}

// Copies an update from the host's memory to where kernels read it.
void OnCuda::bring(const Unread& unread) {
  Update& update = unread.update;
  if (store::is_encoded(update)) return bring_encoded(unread);
  const auto bytes = static_cast<size_t>(update.size) * sizeof(float);
  char* const pinned = place_.queue->pinned(bytes);
  char* at = pinned;
  for (const Piece& piece : update.pieces) {
    std::memcpy(at, piece.data, static_cast<size_t>(piece.size) * sizeof(float));
    at += static_cast<size_t>(piece.size) * sizeof(float);
  }
  Update there;
  unread.owner = nullptr;
  if (bytes <= kFew && !unread.stays) {
    there.add(pinned, update.size, kFloat32);
  } else {
    const store::Vector made = place_.memory->bytes(static_cast<int64_t>(bytes));
    cuda::copy(made.data, pinned, static_cast<int64_t>(bytes), where());
    hold(made.owner);
    unread.owner = made.owner;
    there.add(made.data, update.size, kFloat32);
  }
  update = std::move(there);
}

// What is sent are its bytes. The device makes the numbers.
void OnCuda::bring_encoded(const Unread& unread) {
  const auto from = store::encoded_in(unread.update);
  const auto there = std::make_shared<EncodedThere>(*from, place_.memory->bytes(from->nbytes));
  there->made = place_.memory->vector(from->size);
  char* const pinned = place_.queue->pinned(static_cast<size_t>(from->nbytes));
  std::memcpy(pinned, from->bytes, static_cast<size_t>(from->nbytes));
  cuda::copy(there->sent.data, pinned, from->nbytes, where());
  cuda::decode(*there, there->made.data, where());
  there->numbers = there->made.data;
  hold(there->sent.owner), hold(there->made.owner), hold(there);
  unread.owner = there;
  unread.update = {};
  unread.update.add(static_cast<const WireThere*>(there.get()), from->size, kEncodedThere);
}

// What stays becomes one vector: of its own type, or in fp32 if it comes in pieces.
void OnCuda::keep(Update& update, store::Owner& owner) {
  hold_theirs(update, owner);
  const bool whole = update.pieces.size() == 1;
  const Dtype dtype = whole ? update.pieces.front().dtype : kFloat32;
  const int64_t nbytes = update.size * (dtype == kFloat32 ? 4 : 2);
  const store::Vector made = place_.memory->bytes(nbytes);
  if (whole) {
    cuda::copy(made.data, update.pieces.front().data, nbytes, where());
  } else {
    cuda::accumulate(update, nullptr, 1.0, made.data, where());
  }
  hold(made.owner);
  owner = made.owner;
  const int64_t size = std::exchange(update, {}).size;
  update.add(made.data, size, dtype);
}

void OnCuda::hold_theirs(const Update& update, const store::Owner& owner) {
  if (update.size * static_cast<int64_t>(sizeof(float)) <= kKept) hold(owner);
}

std::shared_ptr<Judgement> OnCuda::judge(const Unread& unread) {
  if (unread.in_host) {
    bring(unread);
  } else if (unread.stays) {
    keep(unread.update, unread.owner);
  } else {
    hold_theirs(unread.update, unread.owner);
  }
  std::shared_ptr<cuda::Coming> coming = place_.queue->coming();
  cuda::Rules rules;
  rules.clip_norm = unread.clip_norm;
  cuda::judge(unread.update, {}, rules, scratch_, verdict_, coming->place(), where());
  if (unread.waits) place_.queue->mark(*coming);
  if (unread.encoded && unread.update.pieces.front().dtype == kEncodedThere) {
    auto& there = *static_cast<EncodedThere*>(unread.owner.get());
    there.numbers = nullptr, there.made = {};  // the queue has them until they are read
  }
  return coming;
}

void OnCuda::sum_tensors(const Update& update, cpu::Tensors& tensors) {
  const std::vector<int64_t> begins = tensors.begins();
  const auto first = static_cast<int64_t>(begins.size() * sizeof(int64_t));
  if (!parts_) {
    parts_ = place_.memory->bytes(first + tensors.nbytes());
    cuda::copy_now(parts_.data, begins.data(), first, where());
  }
  auto* const sums = reinterpret_cast<double*>(reinterpret_cast<char*>(parts_.data) + first);
  const auto count = static_cast<int64_t>(begins.size()) - 1;
  cuda::sum_parts(update, {reinterpret_cast<const int64_t*>(parts_.data), count, tensors.m, sums}, where());
  cuda::copy_now(tensors.parts(), sums, tensors.nbytes(), where());
}

std::shared_ptr<Judgement> OnCuda::coming(const void* verdict) {
  std::shared_ptr<cuda::Coming> coming = place_.queue->coming();
  cuda::copy(coming->place(), verdict, static_cast<int64_t>(sizeof(Verdict)), where());
  return coming;
}

void OnCuda::load(const Optimizer& optimizer, const Needs& needs) {
  const int format = needs.format;
  cuda::Where loads = where();
  loads.loads = true;
  const float* const some = optimizer.x;  // nothing is launched, so nobody reads or writes there
  Wire dense, sparse;
  sparse.format = kWireTopK;
  for (const Wire* wire : {&dense, &sparse}) cuda::decode(*wire, nullptr, loads);
  Update whole, pieces;
  whole.add(some, 8, kFloat32);
  pieces.add(some, 4, kFloat32), pieces.add(some, 4, kFloat32);
  for (const Update* update : {&whole, &pieces}) {
    cuda::judge(*update, {}, {}, scratch_, verdict_, nullptr, loads);
    cuda::accumulate(*update, some, 1.0, nullptr, loads);
    for (const DirectionKind kind : {kSingle, kFlush, kBlend, kMean}) {
      if (kind == kMean && format < 0) continue;
      Direction direction;
      direction.kind = kind;
      direction.row.format = format;
      direction.noise.deviation = needs.noise ? 1.0f : 0.0f;
      cuda::step(*update, direction, optimizer, loads);
      if (kind == kMean) cuda::step(*update, direction, {}, loads);
    }
  }
  if (needs.combines) {
    for (const int kind : {place_in<Mean>(Combines{}), place_in<Trimmed>(Combines{})})
      cuda::combine({nullptr, 1, 1}, {kind, 0}, nullptr, loads);
    for (const bool apart : {false, true}) cuda::pair_sums({nullptr, 1, 1}, {nullptr, 1, apart, nullptr}, loads);
  }
  if (needs.turns) {
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

}  // namespace fastagg::engine
