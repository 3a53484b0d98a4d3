#include "on_cuda.h"

#include <cstring>

#include "../math/reduce.h"

namespace fastagg::engine {
namespace {

constexpr size_t kApart = 16;  // bytes: every vector begins at a multiple of this

template <typename T>
const T* at(const char* bytes, size_t place) {
  return reinterpret_cast<const T*>(bytes + place);
}

}  // namespace

// A resummation of rows on tiers has many launches with the same jobs.
template <typename T>
size_t OnCuda::pack(const T* values, size_t count) {
  const size_t bytes = count * sizeof(T);
  if (bytes > 0 && bytes_.size() - last_ == bytes && std::memcmp(bytes_.data() + last_, values, bytes) == 0)
    return last_;
  last_ = (bytes_.size() + kApart - 1) / kApart * kApart;
  bytes_.resize(last_ + bytes);
  std::memcpy(bytes_.data() + last_, values, bytes);
  return last_;
}

void OnCuda::step(const Update& update, const Direction& direction, const Optimizer& optimizer) {
  launches_.push_back([&update, direction, optimizer](const cuda::Where& where, const char*) {
    cuda::step(update, direction, optimizer, where);
  });
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
  const size_t place = pack(jobs.data(), jobs.size());
  const bool has = weights != nullptr;
  const size_t weighed = has ? pack(weights, static_cast<size_t>(rows.slots)) : 0;
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

void OnCuda::also(std::function<void(void* stream)> act) {
  launches_.push_back([act = std::move(act)](const cuda::Where& where, const char*) { act(where.stream); });
}

void OnCuda::prepare() {
  const There there = place_(bytes_.data(), bytes_.size());
  where_ = {there.device, there.stream, verdict_};
  on_device_ = there.bytes;
}

void OnCuda::launch() {
  struct Forgets {
    ~Forgets() { mine.forget(); }
    OnCuda& mine;
  } const forgets{*this};
  for (const Launch& one : launches_) one(where_, on_device_);
}

void OnCuda::forget() noexcept {
  launches_.clear();
  bytes_.clear();
  verdict_ = nullptr;
  last_ = 0;
}

}  // namespace fastagg::engine
