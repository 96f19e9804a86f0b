# Every outside library, in one place.
if(NOT DDRUN_LINK STREQUAL "dynamic")
  set(Boost_USE_STATIC_LIBS ON)
endif()
set(CMAKE_POLICY_DEFAULT_CMP0167 NEW) # Boost's own package files; newer CMake has dropped its module
find_package(Boost 1.81 CONFIG REQUIRED COMPONENTS filesystem system)
# Since 1.86 Process v2 is a compiled library; before, one of our files compiles its sources.
if(Boost_VERSION VERSION_GREATER_EQUAL 1.86)
  find_package(Boost 1.86 CONFIG REQUIRED COMPONENTS process)
endif()
find_package(CLI11 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(tl-expected REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(Threads REQUIRED)
if(DDRUN_BUILD_TESTS)
  find_package(Catch2 REQUIRED)
endif()
