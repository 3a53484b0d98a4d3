// A list of types, such as all optimizers or all row formats. Dispatch tables and the names in Python are made from
// these lists. So the order of the types is written down only once.
#pragma once

#include "portable.h"

namespace fastagg {

template <typename... Each>
struct List {
  static constexpr int kCount = sizeof...(Each);
};

// Returns the place of the type `Wanted` in a list, from 0. The list must have the type.
template <typename Wanted, typename First, typename... Rest>
constexpr int place_in(List<First, Rest...>) {
  if constexpr (__is_same(Wanted, First))
    return 0;
  else
    return 1 + place_in<Wanted>(List<Rest...>{});
}

// Calls visit(T{}) for the type T at `place`, which must be in the list. All types of a list are empty structs.
template <typename Visit, typename First, typename... Rest>
FASTAGG_FN void visit_at(int place, List<First, Rest...>, Visit&& visit) {
  if constexpr (sizeof...(Rest) > 0) {
    if (place > 0) return visit_at(place - 1, List<Rest...>{}, visit);
  }
  visit(First{});
}

}  // namespace fastagg
