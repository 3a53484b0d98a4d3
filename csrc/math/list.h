// A list of types. Every dispatch table and every name for Python is made from it. So their order is written only once
// and is always consistent.
#pragma once

#include "portable.h"

namespace fastagg {

template <typename... Each>
struct List {
  static constexpr int kCount = sizeof...(Each);
};

// The place of a type in its list.
template <typename Wanted, typename First, typename... Rest>
constexpr int place_in(List<First, Rest...>) {
  if constexpr (__is_same(Wanted, First))
    return 0;
  else
    return 1 + place_in<Wanted>(List<Rest...>{});
}

// visit(T{}) for the type at `place`; the types are empty structs.
template <typename Visit, typename First, typename... Rest>
FASTAGG_FN void visit_at(int place, List<First, Rest...>, Visit&& visit) {
  if constexpr (sizeof...(Rest) > 0) {
    if (place > 0) return visit_at(place - 1, List<Rest...>{}, visit);
  }
  visit(First{});
}

}  // namespace fastagg
