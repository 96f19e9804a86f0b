# What a builder may choose. Presets set these; nothing else in the build asks for more.
option(DDRUN_BUILD_TESTS "Build the tests" ON)
option(DDRUN_BUILD_FUZZERS "Build the fuzzers of the store, with clang's libFuzzer" OFF)
option(DDRUN_WERROR "Treat warnings as errors" OFF)
option(DDRUN_PRECOMPILE "Compile the headers that nearly all files include once (scripts/cmake/DdrunPrecompiled.cmake)" OFF)
option(DDRUN_SPLIT_DEBUG "Keep debug symbols in <program>.debug beside the program" OFF)
set(DDRUN_LINK dynamic CACHE STRING
    "How programs are linked: dynamic, partial (only the C library is shared) or static (static-pie)")
set_property(CACHE DDRUN_LINK PROPERTY STRINGS dynamic partial static)
set(DDRUN_WITH_GLOO AUTO CACHE STRING
  "--backend=gloo of ddrun-allreduce: ON, OFF, or AUTO: if libgloo is there and programs are linked to shared libraries")
set_property(CACHE DDRUN_WITH_GLOO PROPERTY STRINGS AUTO ON OFF)
set(DDRUN_SANITIZE "" CACHE STRING "Value of -fsanitize=, for example address,undefined")

if(NOT DDRUN_LINK MATCHES "^(dynamic|partial|static)$")
  message(FATAL_ERROR "DDRUN_LINK is '${DDRUN_LINK}': choose dynamic, partial or static")
endif()
if(DDRUN_SANITIZE AND NOT DDRUN_LINK STREQUAL "dynamic")
  message(FATAL_ERROR "DDRUN_SANITIZE needs DDRUN_LINK=dynamic: the sanitizers' run-time libraries cannot be linked "
    "into a ${DDRUN_LINK} program")
endif()
if(DDRUN_BUILD_FUZZERS AND DDRUN_BUILD_TESTS)
  message(FATAL_ERROR "DDRUN_BUILD_FUZZERS needs DDRUN_BUILD_TESTS=OFF: libFuzzer brings a main() of its own")
endif()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(DDRUN_LINK STREQUAL "static")
  # With --gc-sections: a fifth of the program is parts of libraries that nothing of it calls.
  add_compile_options(-ffunction-sections -fdata-sections)
endif()

# ccache makes the second build short; the first one does not need it.
if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER AND NOT DEFINED ENV{CMAKE_CXX_COMPILER_LAUNCHER})
  find_program(DDRUN_CCACHE ccache)
  mark_as_advanced(DDRUN_CCACHE)
  if(DDRUN_CCACHE AND DDRUN_PRECOMPILE)
    # What ccache asks for where headers are precompiled (its manual, "Precompiled headers").
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros "${DDRUN_CCACHE}")
    add_compile_options(-fpch-preprocess)
  elseif(DDRUN_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${DDRUN_CCACHE}")
  endif()
endif()
