# Finds the C++ compiler, and checks the operating system, the compiler and the processor.
if(WIN32)
  message(FATAL_ERROR "fastagg does not support Windows: its kernels are compiled with GCC or Clang and have never been "
    "tested with another compiler. Use WSL 2, where the Linux instructions hold.")
endif()

include(CheckLanguage)
check_language(CXX)
if(NOT CMAKE_CXX_COMPILER AND NOT "$ENV{CXX}" STREQUAL "")
  find_program(another NAMES g++ clang++ g++-15 g++-14 g++-13 g++-12 g++-11 c++)
  if(another)
    set(another " This one is here: CXX=${another}")
  else()
    set(another "")
  endif()
  message(FATAL_ERROR "fastagg needs a C++17 compiler. CXX names '$ENV{CXX}', and there is no such program. The name is the "
    "environment's, or if that has none, the one that this Python was built with (sysconfig.get_config_var('CXX')). "
    "Set CXX to a compiler, and run the same command again.${another}")
endif()
if(NOT CMAKE_CXX_COMPILER)
  message(FATAL_ERROR "fastagg needs a C++17 compiler and found none. Install one: apt-get install g++ (Debian, Ubuntu), "
    "dnf install gcc-c++ (Fedora, RHEL), or conda install -c conda-forge cxx-compiler. Then run the same command again.")
endif()
enable_language(CXX)

if(NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
  message(FATAL_ERROR "fastagg needs a 64-bit processor and a 64-bit Python.")
endif()
if(CMAKE_CXX_BYTE_ORDER STREQUAL "BIG_ENDIAN")
  message(FATAL_ERROR "fastagg needs a little-endian processor: its checkpoints and hashes are little-endian.")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "MSVC")
  message(FATAL_ERROR "fastagg needs GCC or Clang: MSVC has no switch that keeps its floating point the same everywhere.")
endif()
if(NOT CMAKE_SYSTEM_NAME MATCHES "^(Linux|Darwin)$")
  message(WARNING "fastagg is for Linux and macOS. Nobody has tried it on ${CMAKE_SYSTEM_NAME}; run the tests first.")
endif()
