// Drives the engine without an interpreter: fastagg_engine_tests [PART...], all parts by default.
#include <cstring>

#include "check.h"

int main(int count, char** given) {
  const struct {
    const char* name;
    void (*run)();
  } parts[] = {{"allocations", allocations}, {"threads", threads}, {"bytes", bytes}};
  for (const auto& part : parts) {
    bool wanted = count == 1;
    for (int i = 1; i < count; ++i) wanted = wanted || std::strcmp(given[i], part.name) == 0;
    if (!wanted) continue;
    part.run();
    std::printf("%s: ok\n", part.name);
    std::fflush(stdout);
  }
}
