#pragma once

// Catch2 v3 if installed, else v2: the tests use their common subset.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <cstdio>
#include <cstdlib>
#include <string>

namespace ddrun::test {

/// For CHECK_THAT: a text that contains `part`.
inline auto contains(const std::string& part) {
#if __has_include(<catch2/catch_all.hpp>)
  return Catch::Matchers::ContainsSubstring(part);
#else
  return Catch::Matchers::Contains(part);
#endif
}

/// Ends this test as skipped, with its reason on the screen (CTest counts it: SKIP_REGULAR_EXPRESSION). For tests that
/// cannot run on this machine; every test case runs in its own process.
[[noreturn]] inline void skip(const std::string& reason) {
  std::printf("SKIPPED: %s\n", reason.c_str());
  std::fflush(stdout);
  std::_Exit(0);
}

}  // namespace ddrun::test
