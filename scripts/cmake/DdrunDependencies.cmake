# Every outside library, in one place.
if(NOT DDRUN_LINK STREQUAL "dynamic")
  set(Boost_USE_STATIC_LIBS ON)
endif()
set(CMAKE_POLICY_DEFAULT_CMP0167 NEW) # Boost's own package files; newer CMake has dropped its module
find_package(Boost 1.81 CONFIG REQUIRED COMPONENTS filesystem)
# Since 1.86 Process v2 is a compiled library; before, one of our files compiles its sources.
if(Boost_VERSION VERSION_GREATER_EQUAL 1.86)
  find_package(Boost 1.86 CONFIG REQUIRED COMPONENTS process)
endif()
find_package(CLI11 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(tl-expected REQUIRED)
find_package(Threads REQUIRED)
# Debian's is a shared library only. A thread sanitizer would not understand what it does.
set(DDRUN_HAVE_GLOO OFF)
if(DDRUN_WITH_GLOO STREQUAL "ON")
  if(NOT DDRUN_LINK STREQUAL "dynamic")
    message(FATAL_ERROR "DDRUN_WITH_GLOO=ON needs DDRUN_LINK=dynamic: libgloo is a shared library")
  endif()
  find_package(Gloo REQUIRED)
  set(DDRUN_HAVE_GLOO ON)
elseif(DDRUN_WITH_GLOO STREQUAL "AUTO" AND DDRUN_LINK STREQUAL "dynamic" AND NOT DDRUN_SANITIZE MATCHES "thread")
  find_package(Gloo QUIET)
  if(TARGET gloo)
    set(DDRUN_HAVE_GLOO ON)
  endif()
endif()

# Of OpenSSL only SHA-256, from the static library: a shared one would cost every start of ddrun more than all that it
# does itself.
set(OPENSSL_USE_STATIC_LIBS TRUE)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)

# toml++ is used as headers only: its packages bring a shared library and no static one, and a program that is to
# start fast and run anywhere needs neither.
find_path(DDRUN_TOML_INCLUDE_DIR toml++/toml.h REQUIRED)
mark_as_advanced(DDRUN_TOML_INCLUDE_DIR)
add_library(tomlplusplus::tomlplusplus INTERFACE IMPORTED GLOBAL)
target_include_directories(tomlplusplus::tomlplusplus INTERFACE "${DDRUN_TOML_INCLUDE_DIR}")
target_compile_definitions(tomlplusplus::tomlplusplus INTERFACE TOML_HEADER_ONLY=1)
set(tomlplusplus_VERSION "")
foreach(file IN ITEMS toml_version.h impl/version.h impl/version.hpp)
  if(EXISTS "${DDRUN_TOML_INCLUDE_DIR}/toml++/${file}")
    file(STRINGS "${DDRUN_TOML_INCLUDE_DIR}/toml++/${file}" lines REGEX "define TOML_LIB_(MAJOR|MINOR|PATCH)[ \t]+[0-9]+")
    list(TRANSFORM lines REPLACE ".*[ \t]([0-9]+)$" "\\1")
    string(REPLACE ";" "." tomlplusplus_VERSION "${lines}")
  endif()
endforeach()

if(DDRUN_BUILD_TESTS)
  find_package(Catch2 REQUIRED)
endif()
