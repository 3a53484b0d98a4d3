// A server's model: the current version, and the versions that somebody may still hold.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "../store/encoded.h"
#include "../store/vector.h"

namespace fastagg::engine {

class Model {
 public:
  // A form in which clients are sent the current version. The form is made on first use. All clients share the form.
  struct SentModel {
    store::Vector model;
    std::shared_ptr<store::Encoded> encoded;  // the bytes from which `model` was decoded; null: not encoded
  };

  explicit Model(store::Vector first) : current(std::move(first)) {}
  store::Vector current;
  store::Owner state;             // the running statistics, as the extension stores them
  double bound = 0.0;             // a bound on the magnitudes of `current`'s elements
  bool shared = false;            // whether somebody else may hold the current version
  std::map<int, SentModel> sent;  // by format: the sent forms of the current version; kAsItIs: a look-ahead

  // Returns the current version for a caller who may keep it. The elements of this version never change from now on.
  const store::Vector& share() {
    shared = true;
    return current;
  }
  // Whether somebody else may hold the current version. The caller holds the engine's lock, so nobody becomes a holder
  // meanwhile.
  bool is_held() const {
    if (!shared || current.owner.use_count() > 1 || !store::is_block(current.owner)) return shared;
    std::atomic_thread_fence(std::memory_order_acquire);  // after the last holder's reads
    return false;
  }
  // Returns the vectors that somebody may hold besides the current version: sent forms, and earlier versions.
  std::vector<store::Vector> held_before() const {
    std::vector<store::Vector> vectors;
    for (const auto& [format, version] : sent) vectors.push_back(version.model);
    for (const EarlierVersion& earlier : before_)
      if (store::Owner owner = earlier.owner.lock()) vectors.push_back({std::move(owner), earlier.data, earlier.dtype});
    return vectors;
  }
  // Makes room for the current version and its forms, so that `advance` does not allocate.
  void make_room() {
    if (before_.size() + 2 + WireFormats::kCount <= before_.capacity()) return;
    const auto gone = [](const EarlierVersion& earlier) { return earlier.owner.expired(); };
    before_.erase(std::remove_if(before_.begin(), before_.end(), gone), before_.end());
    before_.reserve(2 * before_.size() + 8 + WireFormats::kCount);
  }
  // Makes `next` the current version, and returns the old version in `next`. If `next` is empty, the step was in place.
  void advance(store::Vector& next) noexcept {
    if (next && shared) before_.push_back({current.owner, current.data, current.dtype});
    for (const auto& [format, version] : sent)
      before_.push_back({version.model.owner, version.model.data, version.model.dtype});
    sent.clear();
    shared = false;
    if (next) std::swap(current, next);
  }

 private:
  struct EarlierVersion {
    std::weak_ptr<void> owner;
    float* data;
    Dtype dtype;
  };
  std::vector<EarlierVersion> before_;  // shared earlier versions, and forms that were sent
};

}  // namespace fastagg::engine
