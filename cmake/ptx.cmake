# Lets an emulated target run the kernels from nvcc's PTX instead of their C++ (tests/emulation/ptx).
set(FASTAGG_PTX 80 CACHE STRING "Compute capability of the PTX that is emulated")
find_program(FASTAGG_NVCC nvcc REQUIRED)
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter)

file(GLOB headers CONFIGURE_DEPENDS csrc/cuda/*.h csrc/cuda/*.cuh csrc/*.h csrc/math/*.h)
set(translated "")
foreach(source IN LISTS FASTAGG_CUDA_SOURCES)
  get_filename_component(name "${source}" NAME_WE)
  set(ptx "${CMAKE_BINARY_DIR}/ptx/${name}.ptx")
  add_custom_command(OUTPUT "${ptx}" COMMAND "${FASTAGG_NVCC}" -ptx -std=c++17 -fmad=false -arch=compute_${FASTAGG_PTX}
    "${CMAKE_SOURCE_DIR}/${source}" -o "${ptx}" DEPENDS "${source}" ${headers} VERBATIM)
  set(translator "${CMAKE_SOURCE_DIR}/tests/emulation/ptx/translate.py")
  add_custom_command(OUTPUT "${ptx}.cpp" COMMAND "${Python_EXECUTABLE}" "${translator}" "${ptx}" "${ptx}.cpp"
    DEPENDS "${ptx}" "${translator}" VERBATIM)
  list(APPEND translated "${ptx}.cpp")
endforeach()

function(fastagg_ptx target)
  target_sources(${target} PRIVATE ${translated} tests/emulation/ptx/launch.cpp)
  target_include_directories(${target} PRIVATE tests/emulation/ptx)
  target_compile_definitions(${target} PRIVATE FASTAGG_PTX)
  # The translation has more registers and labels than are used, and the optimiser takes minutes for its large functions.
  set_source_files_properties(${translated} PROPERTIES COMPILE_OPTIONS "-O1;-w")
  set_source_files_properties(${FASTAGG_CUDA_SOURCES} PROPERTIES COMPILE_OPTIONS "-xc++;-O0")
endfunction()
