// A list of types. All dispatch tables and all names for Python are made from such lists, so an order is written once.
#pragma once

#include "portable.h"

namespace fastagg {

template <typename... Each>
struct List {
  static constexpr int kCount = sizeof...(Each);
};

// Returns the place of a type in its list.
template <typename Wanted, typename First, typename... Rest>
constexpr int place_in(List<First, Rest...>) {
  if constexpr (__is_same(Wanted, First))
    return 0;
  else
    return 1 + place_in<Wanted>(List<Rest...>{});
}

// Calls visit(T{}) for the type at `place`. The types are empty structs.
template <typename Visit, typename First, typename... Rest>
FASTAGG_FN void visit_at(int place, List<First, Rest...>, Visit&& visit) {
  if constexpr (sizeof...(Rest) > 0) {
    if (place > 0) return visit_at(place - 1, List<Rest...>{}, visit);
  }
  visit(First{});
}

}  // namespace fastagg
