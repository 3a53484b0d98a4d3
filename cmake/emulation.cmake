# Compiles the CUDA kernels' sources as C++ for the CPU, with tests/emulation. Only for tests, never for a package.
add_library(fastagg_emulated OBJECT ${FASTAGG_CUDA_SOURCES} tests/emulation/emulation.cpp tests/emulation/streams.cpp)
set_source_files_properties(${FASTAGG_CUDA_SOURCES} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++")
target_include_directories(fastagg_emulated PRIVATE tests/emulation)
target_compile_options(fastagg_emulated PRIVATE -O2 -ffp-contract=off)
if(FASTAGG_DEVELOPER)
  target_compile_options(fastagg_emulated PRIVATE -Wall -Wextra -Werror -Wno-unknown-pragmas)
endif()
target_sources(_native PRIVATE csrc/bindings/cuda.cpp csrc/engine/on_cuda.cpp csrc/engine/inspect_on_cuda.cpp tests/emulation/allocations.cpp
  tests/emulation/binding.cpp $<TARGET_OBJECTS:fastagg_emulated>)
target_link_options(_native PRIVATE -Wl,-Bsymbolic-functions) # the library uses its own operator new
target_compile_definitions(_native PRIVATE FASTAGG_CUDA FASTAGG_CUDA_EMULATED FASTAGG_CUDA_ARCHITECTURES="emulated"
  FASTAGG_CUDA_PTX="")
set(FASTAGG_EMULATED fastagg_emulated)
