// A check that names its line when it does not hold, and the parts of the binary.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(holds)                                                   \
  do {                                                                 \
    if (!(holds)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #holds); \
      std::abort();                                                    \
    }                                                                  \
  } while (false)

void allocations();
void threads();
void bytes();
