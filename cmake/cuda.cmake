# The CUDA kernels, if nvcc is installed. The runtime is linked statically. So the extension also loads on a machine
# without CUDA, and `device_count` returns 0 there.
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(STATUS "fastagg: nvcc not found, building without CUDA kernels")
  return()
endif()

message(NOTICE "fastagg: nvcc is here, so the CUDA kernels are compiled too. That takes several minutes. "
  "To skip them: -DFASTAGG_CUDA=OFF, which is pip install --config-settings=cmake.define.FASTAGG_CUDA=OFF .")

# Machine code for every named architecture; by default for those in this list that nvcc knows. Also PTX of the newest,
# so that later devices can run it. PTX of code for one kind of device (90a) would run nowhere else.
set(architectures "${FASTAGG_CUDA_ARCHITECTURES}")
if(NOT architectures)
  execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --list-gpu-arch OUTPUT_VARIABLE known COMMAND_ERROR_IS_FATAL ANY)
  foreach(arch 80 86 89 90 100 120)
    if(known MATCHES "compute_${arch}[\n\r ]")
      list(APPEND architectures "${arch}")
    endif()
  endforeach()
endif()
set(CMAKE_CUDA_ARCHITECTURES "")
set(ptx "")
foreach(arch IN LISTS architectures)
  if(NOT arch MATCHES "^[0-9]+[af]?$")
    message(FATAL_ERROR "FASTAGG_CUDA_ARCHITECTURES: expected compute capabilities as 80 or 90a, got '${arch}'")
  endif()
  list(APPEND CMAKE_CUDA_ARCHITECTURES "${arch}-real")
  if(arch MATCHES "^[0-9]+$" AND (NOT ptx OR arch GREATER ptx))
    set(ptx "${arch}")
  endif()
endforeach()
if(ptx)
  list(APPEND CMAKE_CUDA_ARCHITECTURES "${ptx}-virtual")
endif()
message(STATUS "fastagg: CUDA kernels for ${architectures}, PTX of ${ptx}")
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
target_sources(_native PRIVATE csrc/bindings/cuda.cpp csrc/serving/on_cuda.cpp $<TARGET_OBJECTS:fastagg_cuda>)
string(REPLACE ";" "," architectures "${architectures}")
target_compile_definitions(_native PRIVATE FASTAGG_CUDA FASTAGG_CUDA_ARCHITECTURES="${architectures}"
  FASTAGG_CUDA_PTX="${ptx}")
# The module itself has no CUDA source. Newer versions of CMake report an error if its architectures are not set.
set_target_properties(_native PROPERTIES CUDA_ARCHITECTURES OFF CUDA_RUNTIME_LIBRARY Static LINKER_LANGUAGE CXX)
find_package(CUDAToolkit REQUIRED)
target_link_libraries(_native PRIVATE CUDA::cudart_static)
