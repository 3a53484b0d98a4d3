# The CUDA kernels, when nvcc is here. The runtime is linked statically, so the extension loads on a machine with no
# CUDA at all and `device_count` answers 0 there.
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(STATUS "fastagg: nvcc not found, building without CUDA kernels")
  return()
endif()

message(NOTICE "fastagg: nvcc is here, so the CUDA kernels are compiled too. That takes several minutes. "
  "To skip them: -DFASTAGG_CUDA=OFF, which is pip install --config-settings=cmake.define.FASTAGG_CUDA=OFF .")

# Real code for every architecture named, and PTX of the newest so that later cards can run it too.
set(CMAKE_CUDA_ARCHITECTURES "")
foreach(arch IN LISTS FASTAGG_CUDA_ARCHITECTURES)
  list(APPEND CMAKE_CUDA_ARCHITECTURES "${arch}-real")
  set(newest "${arch}")
endforeach()
list(APPEND CMAKE_CUDA_ARCHITECTURES "${newest}-virtual")
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)

add_library(fastagg_cuda OBJECT ${FASTAGG_CUDA_SOURCES})
set_target_properties(fastagg_cuda PROPERTIES CUDA_VISIBILITY_PRESET hidden)
# The assembler's report of registers and spills is read by .ci/cuda.sh.
target_compile_options(fastagg_cuda PRIVATE -fmad=false -Xptxas=-v,-warn-spills)
if(FASTAGG_DEVELOPER)
  target_compile_options(fastagg_cuda PRIVATE -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror)
endif()
target_sources(_native PRIVATE csrc/bindings/cuda.cpp $<TARGET_OBJECTS:fastagg_cuda>)
string(REPLACE ";" "," architectures "${FASTAGG_CUDA_ARCHITECTURES}")
target_compile_definitions(_native PRIVATE FASTAGG_CUDA FASTAGG_CUDA_ARCHITECTURES="${architectures}")
set_target_properties(_native PROPERTIES CUDA_RUNTIME_LIBRARY Static LINKER_LANGUAGE CXX)
find_package(CUDAToolkit REQUIRED)
target_link_libraries(_native PRIVATE CUDA::cudart_static)
