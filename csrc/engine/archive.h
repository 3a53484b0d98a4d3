// The interface for saving and loading a server's state. Each part of the state has one function that lists its fields.
// An archive writes or reads these fields, so saving and loading always agree. The bindings implement the interface.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "../client_id.h"
#include "../store/vector.h"
#include "held.h"

namespace fastagg::engine {

class Archive {
 public:
  explicit Archive(bool loading) : loads(loading) {}
  virtual ~Archive() = default;
  const bool loads;
  virtual bool has(const char* name) const = 0;  // whether the loaded state has this field; true while saving

  virtual void field(const char* name, int64_t& value) = 0;
  virtual void field(const char* name, double& value) = 0;
  // The lengths of `values` follow from the server's settings.
  virtual void field(const char* name, std::vector<int64_t>& values) = 0;
  virtual void field(const char* name, std::vector<float>& values) = 0;
  // The lists below may have any length. A column is stored as an array, a list as a Python list.
  virtual void column(const char* name, std::vector<int64_t>& values) = 0;
  virtual void list(const char* name, std::vector<int64_t>& values) = 0;
  virtual void list(const char* name, std::vector<std::pair<int64_t, int64_t>>& values) = 0;
  using Entry = std::tuple<int64_t, int64_t, double>;
  virtual void list(const char* name, std::vector<Entry>& values) = 0;
  virtual void clients(const char* name, std::vector<ClientId>& ids, bool numbered) = 0;
  virtual void group(const char* name, const std::function<void(Archive&)>& fields) = 0;
  // Saves or loads `size` elements of a vector. `there`: whether there is a vector to save. Loading copies the elements
  // to `vector`, unless `vector` is empty. Returns whether the state has the vector.
  virtual bool vector(const char* name, const store::Vector& vector, int64_t size, bool there) = 0;
  // Saves or loads pairs of a version's number and its model. Loaded models are in the server's own memory.
  virtual void vectors(const char* name, std::vector<std::pair<int64_t, store::Vector>>& all, int64_t size) = 0;
  // Saves or loads stored updates, in the form in which the clients sent them.
  virtual void held(const char* name, std::vector<HeldUpdate>& updates) = 0;
  // Saves or loads an array of doubles, [count, width].
  virtual void rows(const char* name, std::vector<double>& values, int64_t width) = 0;
};

// The largest bound on elements that is accepted from a checkpoint.
constexpr double kLargestBound = 0x1p120;
inline void check_bound(double bound) {
  if (!(bound >= 0.0 && bound <= kLargestBound)) throw std::invalid_argument("a bound out of range");
}

}  // namespace fastagg::engine
