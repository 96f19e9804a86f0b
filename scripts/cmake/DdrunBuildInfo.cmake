# ddrun::build_info: version, commit and what was compiled in, as `ddrun::build_info()`.
#
# A library of its own, linked by programs and by the tests that ask for it: a new commit then links those again and
# nothing else. The commit is looked up in each build, not when CMake configures.
add_custom_target(ddrun_commit VERBATIM
  BYPRODUCTS "${CMAKE_BINARY_DIR}/generated/ddrun_commit.hpp"
  COMMAND "${CMAKE_COMMAND}" "-DSOURCE_DIR=${PROJECT_SOURCE_DIR}"
    "-DOUTPUT=${CMAKE_BINARY_DIR}/generated/ddrun_commit.hpp" -P "${CMAKE_CURRENT_LIST_DIR}/DdrunCommit.cmake"
  COMMENT "Looking up the commit")

string(TOLOWER "${CMAKE_CXX_COMPILER_ID}" compiler_name)
if(compiler_name STREQUAL "gnu")
  set(compiler_name "g++")
endif()
add_library(ddrun_build_info STATIC "${PROJECT_SOURCE_DIR}/lib/base/src/build_info.cpp")
add_library(ddrun::build_info ALIAS ddrun_build_info)
add_dependencies(ddrun_build_info ddrun_commit)
target_include_directories(ddrun_build_info
  PUBLIC "${PROJECT_SOURCE_DIR}/lib/base/include" PRIVATE "${CMAKE_BINARY_DIR}/generated")
target_link_libraries(ddrun_build_info PRIVATE ddrun_warnings ddrun_settings)
target_compile_definitions(ddrun_build_info PRIVATE
  "DDRUN_VERSION=\"${PROJECT_VERSION}\""
  "DDRUN_BUILD_TYPE=\"${CMAKE_BUILD_TYPE}\""
  "DDRUN_COMPILER=\"${compiler_name} ${CMAKE_CXX_COMPILER_VERSION}\""
  "DDRUN_LINK=\"${DDRUN_LINK}\""
  "DDRUN_SANITIZE=\"${DDRUN_SANITIZE}\""
  "DDRUN_BOOST=\"${Boost_VERSION}\""
  "DDRUN_LIBRARIES=\"Boost ${Boost_VERSION}, CLI11 ${CLI11_VERSION}, nlohmann-json ${nlohmann_json_VERSION}, toml++ ${tomlplusplus_VERSION}\"")
