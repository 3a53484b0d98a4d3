#include "reported.h"

#include <algorithm>
#include <cmath>

#include "../cpu/cpu.h"
#include "../memory/tensors.h"

namespace fastagg::serving {
namespace {

template <typename T>
const T* data_of(py::handle tensor) {
  return tensor.is_none() ? nullptr : reinterpret_cast<const T*>(py::cast<uintptr_t>(tensor.attr("data_ptr")()));
}

}  // namespace

void Reported::clear() {
  values_.pieces.clear();
  values_.size = 0;
  variances_.clear();
  counters_.clear();
}

void Reported::add(ArrayRole role, const void* data, int64_t size) {
  if (role == ArrayRole::kCounter || role == ArrayRole::kCount) {
    counters_.push_back({static_cast<const int64_t*>(data), size, role == ArrayRole::kCount});
    return;
  }
  if (role == ArrayRole::kVariance) variances_.push_back({static_cast<const float*>(data), size});
  values_.add(data, size, kFloat32);
}

bool Reported::fits(double limit) const {
  // the norm is at least the largest value; it is NaN or infinite if a value is
  if (values_.size > 0 && !(std::sqrt(cpu::sum_squares(values_)) <= limit)) return false;
  const auto negative = [](auto number) { return number < 0; };
  for (const Variances& one : variances_)
    if (std::any_of(one.data, one.data + one.size, negative)) return false;
  for (const Counter& one : counters_)
    if (one.counts && std::any_of(one.data, one.data + one.size, negative)) return false;
  return true;
}

py::object Reported::add_to(py::handle sum) const {
  if (values_.size == 0) return py::none();
  memory::Vector out = memory::new_vector(values_.size);
  cpu::accumulate(values_, data_of<float>(sum), 1.0f, out.data);
  return out.owner;
}

py::object Reported::largest(py::handle most) const {
  if (counters_.empty()) return py::none();
  int64_t count = 0, *out = nullptr;
  for (const Counter& one : counters_) count += one.size;
  py::object made = memory::new_counts(count, &out);
  const int64_t* other = data_of<int64_t>(most);
  for (const Counter& one : counters_) {
    for (int64_t i = 0; i < one.size; ++i) *out++ = other == nullptr ? one.data[i] : std::max(one.data[i], *other++);
  }
  return made;
}

void Reported::describe(std::vector<Sent>& to) const {
  for (const Piece& piece : values_.pieces)
    to.push_back({kBuffers, static_cast<uint8_t>(piece.dtype), static_cast<uint64_t>(piece.size), piece.data});
  for (const Counter& one : counters_) to.push_back({kCounter, kInt64, static_cast<uint64_t>(one.size), one.data});
}

}  // namespace fastagg::serving
