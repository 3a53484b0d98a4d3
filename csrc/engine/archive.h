// Saves and loads states. A state lists its fields once, in one function, and an archive reads or writes those fields.
// So saving and loading cannot differ.
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
  virtual bool has(const char* name) const = 0;  // whether the loaded state has this field

  virtual void field(const char* name, int64_t& value) = 0;
  virtual void field(const char* name, double& value) = 0;
  // The lengths of the next two vectors follow from the server's settings.
  virtual void field(const char* name, std::vector<int64_t>& values) = 0;
  virtual void field(const char* name, std::vector<float>& values) = 0;
  // The following lists may have any length.
  virtual void column(const char* name, std::vector<int64_t>& values) = 0;
  virtual void list(const char* name, std::vector<int64_t>& values) = 0;
  virtual void list(const char* name, std::vector<std::pair<int64_t, int64_t>>& values) = 0;
  using Entry = std::tuple<int64_t, int64_t, double>;
  virtual void list(const char* name, std::vector<Entry>& values) = 0;
  virtual void clients(const char* name, std::vector<ClientId>& ids, bool numbered) = 0;
  virtual void group(const char* name, const std::function<void(Archive&)>& fields) = 0;
  // A server's vector with `size` elements, which is saved if `there`. Loading copies into `vector`, whose memory must
  // be allocated. Returns whether the state has the vector.
  virtual bool vector(const char* name, const store::Vector& vector, int64_t size, bool there) = 0;
  // Saves or loads versions by number. Loaded versions are in the server's own memory.
  virtual void vectors(const char* name, std::vector<std::pair<int64_t, store::Vector>>& all, int64_t size) = 0;
  // Saves or loads waiting updates, in the form in which the updates came.
  virtual void held(const char* name, std::vector<HeldUpdate>& updates) = 0;
  // Saves or loads rows [count, width] in double.
  virtual void rows(const char* name, std::vector<double>& values, int64_t width) = 0;
};

// The largest bound that a checkpoint may hold.
constexpr double kLargestBound = 0x1p120;
inline void check_bound(double bound) {
  if (!(bound >= 0.0 && bound <= kLargestBound)) throw std::invalid_argument("a bound out of range");
}

}  // namespace fastagg::engine
