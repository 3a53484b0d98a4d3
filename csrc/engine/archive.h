// How a state is saved and loaded: a state names its fields once, in one function, and an archive reads or writes them.
// Saving and loading so cannot differ.
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
  virtual bool has(const char* name) const = 0;  // whether a state that is loaded has this field

  virtual void field(const char* name, int64_t& value) = 0;
  virtual void field(const char* name, double& value) = 0;
  // A column has the length that the server's settings give it.
  virtual void field(const char* name, std::vector<int64_t>& values) = 0;
  virtual void field(const char* name, std::vector<float>& values) = 0;
  // This one, and a list, have any length.
  virtual void column(const char* name, std::vector<int64_t>& values) = 0;
  virtual void list(const char* name, std::vector<int64_t>& values) = 0;
  virtual void list(const char* name, std::vector<std::pair<int64_t, int64_t>>& values) = 0;
  using Entry = std::tuple<int64_t, int64_t, double>;
  virtual void list(const char* name, std::vector<Entry>& values) = 0;
  virtual void clients(const char* name, std::vector<ClientId>& ids, bool numbered) = 0;
  virtual void group(const char* name, const std::function<void(Archive&)>& fields) = 0;
  // A vector of a server, of this many elements; none is saved if it is empty. Loading copies into `vector`, which has
  // its memory already, and returns whether there was one.
  virtual bool vector(const char* name, const store::Vector& vector, int64_t size, bool there) = 0;
  // By number. Loaded ones are of the server's own memory.
  virtual void vectors(const char* name, std::vector<std::pair<int64_t, store::Vector>>& all, int64_t size) = 0;
  // Updates that wait as they came.
  virtual void held(const char* name, std::vector<HeldUpdate>& updates) = 0;
  // Rows [count, width] in double.
  virtual void rows(const char* name, std::vector<double>& values, int64_t width) = 0;
};

// A bound that a checkpoint holds.
constexpr double kLargestBound = 0x1p120;
inline void check_bound(double bound) {
  if (!(bound >= 0.0 && bound <= kLargestBound)) throw std::invalid_argument("a bound out of range");
}

}  // namespace fastagg::engine
