# Compiles the CUDA kernels, and kernels with planted races, as C++ for the race detector in tests/emulation.
add_executable(fastagg_races tests/native/races.cpp ${FASTAGG_CUDA_SOURCES})
target_compile_options(fastagg_races PRIVATE -fsanitize=thread -g1)
target_link_options(fastagg_races PRIVATE -fsanitize=thread)
add_executable(fastagg_planted tests/native/planted.cpp tests/emulation/emulation.cpp tests/emulation/streams.cpp
  csrc/cuda/device.cu)

# The emulation is compiled without ThreadSanitizer, because it accesses all threads' data, which would look like races.
add_library(fastagg_racing_emulation OBJECT tests/emulation/emulation.cpp tests/emulation/streams.cpp)
target_compile_definitions(fastagg_racing_emulation PRIVATE FASTAGG_RACES)
target_sources(fastagg_races PRIVATE $<TARGET_OBJECTS:fastagg_racing_emulation>)
target_compile_definitions(fastagg_races PRIVATE FASTAGG_RACES)

set_source_files_properties(${FASTAGG_CUDA_SOURCES} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++")
foreach(target fastagg_races fastagg_planted fastagg_racing_emulation)
  target_include_directories(${target} PRIVATE tests/emulation)
  target_compile_options(${target} PRIVATE -O1 -ffp-contract=off ${strict} -Wno-unknown-pragmas)
  target_link_libraries(${target} PRIVATE Threads::Threads)
endforeach()
