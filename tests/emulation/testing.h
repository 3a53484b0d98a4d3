// What tests ask of the emulation (streams.cpp), without CUDA's header.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace emulation {

// The stream that stands in for torch's current one, of this thread. Null: the one whose work is done at once.
void* current_stream();
void use_stream(void* stream);
void* new_stream();
void settle_stream(void* stream);  // does what it was asked for, and all that this waits for

// What the program has asked of CUDA since the last call.
std::map<std::string, int64_t> take_counts();
void unload();  // no kernel is loaded any more
// Launches do nothing, for the host's time alone.
void empty_launches(bool empty);
// The launch after so many more fails; negative: none.
void fail_launch(int64_t after);

}  // namespace emulation
