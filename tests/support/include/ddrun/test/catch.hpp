#pragma once

// Catch2 v3 where it is there, else v2: the tests use only what both have.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <cstdio>
#include <cstdlib>
#include <string>

namespace ddrun::test {

/// For CHECK_THAT: a text that has this one in it.
inline auto contains(const std::string& part) {
#if __has_include(<catch2/catch_all.hpp>)
  return Catch::Matchers::ContainsSubstring(part);
#else
  return Catch::Matchers::Contains(part);
#endif
}

/// Ends this test as skipped, with its reason on the screen (CTest counts it: SKIP_REGULAR_EXPRESSION).
/// For what cannot be tried on this machine; every test case runs in a process of its own.
[[noreturn]] inline void skip(const std::string& reason) {
  std::printf("SKIPPED: %s\n", reason.c_str());
  std::fflush(stdout);
  std::_Exit(0);
}

}  // namespace ddrun::test
