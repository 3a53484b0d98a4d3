# Selects the compute capabilities for which CUDA kernels are compiled. FASTAGG_CUDA=AUTO: those of this machine's
# devices. ON: all. FASTAGG_CUDA_ARCHITECTURES, CUDAARCHS (CMake's) or TORCH_CUDA_ARCH_LIST (torch's) may name others.
# tests/test_packaging.py runs this file by itself: cmake -DFASTAGG_CUDA=AUTO -P cmake/architectures.cmake

if(CMAKE_SCRIPT_MODE_FILE)
  cmake_minimum_required(VERSION 3.24) # without a required version, CMake 3 has no IN_LIST
endif()

# Sets `out` to the compute capabilities of this machine's devices, such as 90. The driver reports them, so this needs
# neither torch nor CUDA's tools.
function(fastagg_devices out)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
    RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_QUIET)
  if(failed AND Python_EXECUTABLE) # a container may have the driver's library without nvidia-smi
    execute_process(COMMAND "${Python_EXECUTABLE}" -c "
import ctypes
driver, number = ctypes.CDLL('libcuda.so.1'), ctypes.c_int()
assert driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(number)) == 0
for device in range(number.value):
    for attribute, end in ((75, '.'), (76, '\\n')):
        assert driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device) == 0
        print(number.value, end=end)"
      OUTPUT_VARIABLE said ERROR_QUIET)
  endif()
  string(REGEX MATCHALL "[0-9]+\\.[0-9]" found "${said}")
  string(REPLACE "." "" found "${found}")
  list(REMOVE_DUPLICATES found)
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# Sets `out` to the wanted architectures, or "all", or nothing. If nothing, FASTAGG_CUDA_SKIPPED has the reason.
function(fastagg_wanted out)
  set(${out} "" PARENT_SCOPE)
  if(NOT FASTAGG_CUDA)
    set(FASTAGG_CUDA_SKIPPED "FASTAGG_CUDA=${FASTAGG_CUDA}" PARENT_SCOPE)
    return()
  endif()
  set(wanted "${FASTAGG_CUDA_ARCHITECTURES}")
  if(NOT wanted AND "$ENV{CUDAARCHS}" MATCHES "^all")
    set(wanted all)
  elseif(NOT wanted)
    # These variables are for many projects, so architectures that fastagg does not support are left out.
    string(REGEX MATCHALL "([89]|[1-9][0-9])[0-9][af]?(-real|-virtual)?" wanted "$ENV{CUDAARCHS}")
    string(REGEX REPLACE "-real|-virtual" "" wanted "${wanted}")
    if(NOT wanted)
      string(REGEX MATCHALL "([89]|[1-9][0-9])\\.[0-9][af]?" wanted "$ENV{TORCH_CUDA_ARCH_LIST}")
      string(REPLACE "." "" wanted "${wanted}")
    endif()
    list(REMOVE_DUPLICATES wanted)
  endif()
  if(NOT wanted AND (FASTAGG_CUDA STREQUAL "AUTO" OR "$ENV{CUDAARCHS}" STREQUAL "native"))
    fastagg_devices(wanted)
    if(NOT wanted)
      set(FASTAGG_CUDA_SKIPPED "no CUDA device was found" PARENT_SCOPE)
    endif()
  elseif(NOT wanted)
    set(wanted all)
  endif()
  set(${out} "${wanted}" PARENT_SCOPE)
endfunction()

# Sets `out` to the architectures of `wanted` that this nvcc can compile. Instead of an
# architecture that nvcc does not know, the newest older one is used, because the driver can translate its PTX.
function(fastagg_known out wanted nvcc)
  execute_process(COMMAND "${nvcc}" --list-gpu-arch OUTPUT_VARIABLE known COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[0-9]+" known "${known}")
  list(SORT known COMPARE NATURAL)
  set(found "")
  if(wanted STREQUAL "all")
    foreach(arch 80 86 89 90 100 120)
      if(arch IN_LIST known)
        list(APPEND found ${arch})
      endif()
    endforeach()
  else()
    foreach(arch IN LISTS wanted)
      string(REGEX REPLACE "[af]$" "" number "${arch}")
      if(NOT number IN_LIST known)
        set(arch "")
        foreach(older IN LISTS known)
          if(older LESS number)
            set(arch "${older}")
          endif()
        endforeach()
      endif()
      list(APPEND found ${arch})
    endforeach()
    list(REMOVE_DUPLICATES found)
  endif()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE)
  fastagg_wanted(wanted)
  if(wanted)
    fastagg_known(wanted "${wanted}" nvcc)
  endif()
  message("architectures: ${wanted}; skipped: ${FASTAGG_CUDA_SKIPPED}")
endif()
