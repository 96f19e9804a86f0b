# DDRUN_PRECOMPILE: headers that nearly every file includes are compiled once, which takes a quarter to two fifths off
# the time of a build. Every file still includes what it uses: a build without this option, such as the preset release,
# finds what is missing.

# ddrun_precompiled(TARGET module|test)   what TARGET compiles begins with the headers of its kind. The target needs our
# flags, and nothing else that changes how they are compiled: a source with options of its own is left out by its
# property SKIP_PRECOMPILE_HEADERS.
function(ddrun_precompiled target kind)
  if(NOT DDRUN_PRECOMPILE)
    return()
  endif()
  set(shared ddrun_precompiled_${kind})
  if(NOT TARGET ${shared})
    set(file "${CMAKE_BINARY_DIR}/precompiled/${kind}.cpp")
    file(WRITE "${file}.new" "int main() {}\n")
    file(COPY_FILE "${file}.new" "${file}" ONLY_IF_DIFFERENT)
    set(headers <algorithm> <array> <chrono> <cstdint> <filesystem> <functional> <map> <memory> <optional> <set> <span>
      <string> <string_view> <thread> <utility> <vector> <tl/expected.hpp>)
    set(libraries tl::expected)
    if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
      # It reads only what a file uses of them; g++ reads all each time.
      list(APPEND headers <nlohmann/json.hpp>)
      list(APPEND libraries nlohmann_json::nlohmann_json)
    endif()
    if(kind STREQUAL "test")
      # A program, as position-independent code of programs is other code than that of libraries.
      add_executable(${shared} EXCLUDE_FROM_ALL "${file}")
      target_link_libraries(${shared} PRIVATE Catch2::Catch2)
      list(APPEND headers "${PROJECT_SOURCE_DIR}/tests/support/include/ddrun/test/catch.hpp")
    else()
      add_library(${shared} STATIC EXCLUDE_FROM_ALL "${file}")
    endif()
    set_target_properties(${shared} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/precompiled"
      ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/precompiled")
    target_link_libraries(${shared} PRIVATE ddrun_warnings ddrun_settings ${libraries})
    target_precompile_headers(${shared} PRIVATE ${headers})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${shared})
endfunction()
