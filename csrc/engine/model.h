// A server's model: its current version, and the versions that somebody may still hold.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "../store/encoded.h"
#include "../store/vector.h"

namespace fastagg::engine {

class Model {
 public:
  // A form in which clients are sent this version. The form is made for the first such client, and shared by all.
  struct SentModel {
    store::Vector model;
    std::shared_ptr<store::Encoded> encoded;  // `model` was decoded from it; null: `model` is the version itself
  };

  explicit Model(store::Vector first) : current(std::move(first)) {}
  store::Vector current;
  store::Owner state;             // the extension's state of the model besides its vector: running statistics
  double bound = 0.0;             // a bound on the magnitudes of `current`'s elements
  bool shared = false;            // whether somebody may hold this version
  std::map<int, SentModel> sent;  // by format: the forms in which this version was sent; kAsItIs is a look-ahead

  // Returns the current version, for a caller who may keep it. The version never changes from now on.
  const store::Vector& share() {
    shared = true;
    return current;
  }
  // Earlier versions that somebody still holds.
  std::vector<store::Vector> held_before() const {
    std::vector<store::Vector> vectors;
    for (const auto& [format, version] : sent) vectors.push_back(version.model);
    for (const EarlierVersion& earlier : before_)
      if (store::Owner owner = earlier.owner.lock()) vectors.push_back({std::move(owner), earlier.data, earlier.dtype});
    return vectors;
  }
  // Makes room for all forms of one more version.
  void make_room() {
    if (before_.size() + 2 + WireFormats::kCount <= before_.capacity()) return;
    const auto gone = [](const EarlierVersion& earlier) { return earlier.owner.expired(); };
    before_.erase(std::remove_if(before_.begin(), before_.end(), gone), before_.end());
    before_.reserve(2 * before_.size() + 8 + WireFormats::kCount);
  }
  // Makes `next` the current version, and returns the old one in `next`. An empty `next`: the step was in place.
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
  std::vector<EarlierVersion> before_;  // versions that were shared
};

}  // namespace fastagg::engine
