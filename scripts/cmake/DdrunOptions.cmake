# What a builder may choose. Presets set these; nothing else in the build asks for more.
option(DDRUN_BUILD_TESTS "Build the tests" ON)
option(DDRUN_WERROR "Treat warnings as errors" OFF)
option(DDRUN_SPLIT_DEBUG "Keep debug symbols in <program>.debug beside the program" OFF)
set(DDRUN_LINK dynamic CACHE STRING
    "How programs are linked: dynamic, partial (only the C library is shared) or static (static-pie)")
set_property(CACHE DDRUN_LINK PROPERTY STRINGS dynamic partial static)
set(DDRUN_SANITIZE "" CACHE STRING "Value of -fsanitize=, for example address,undefined")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
