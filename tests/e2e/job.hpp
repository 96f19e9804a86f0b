#pragma once

#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/processes.hpp"

// Runs the built ddrun as a user would. Needs DDRUN_TEST_DDRUN and DDRUN_TEST_WORKER, the paths of the two programs.
namespace ddrun::test {

using Words = std::vector<std::string>;

inline bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

inline std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) ++found;
  return found;
}

/// The last line, without its newline.
inline std::string last_line(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

/// "ddrun options…"
inline Words command(const Words& words) {
  Words argv{DDRUN_TEST_DDRUN};
  argv.insert(argv.end(), words.begin(), words.end());
  return argv;
}

/// "ddrun options… -- worker verbs…"
inline Words job(const Words& options, const Words& verbs) {
  Words argv = command(options);
  argv.emplace_back("--");
  argv.emplace_back(DDRUN_TEST_WORKER);
  argv.insert(argv.end(), verbs.begin(), verbs.end());
  return argv;
}

/// Runs it to its end; fails the test if that takes too long or if a process is left.
inline Outcome finish(const Words& argv, RunOptions options = {}) {
  Run run(argv, std::move(options));
  Outcome outcome = run.wait();
  REQUIRE(run.all_gone());
  return outcome;
}

/// Repeats a signal until ddrun takes that for what it is, a person's impatience, and says so.
inline bool insist(Run& run, int signal) {
  return wait_until([&] {
    run.signal(signal);
    return has(run.err(), "again: killing all workers");
  });
}

/// Skips the test where ddrun loads no library before the C library (LD_PRELOAD).
inline void needs_preload() {
#ifdef __SANITIZE_THREAD__
  skip("a library cannot be loaded before ThreadSanitizer's own");
#endif
  // What loads a program's libraries is named at the beginning of its file.
  std::string beginning(4096, '\0');
  std::ifstream(DDRUN_TEST_DDRUN, std::ios::binary).read(beginning.data(), 4096);
  if (!has(beginning, "/ld-")) skip("a static program loads no library");
}

}  // namespace ddrun::test

/// Shows what ddrun wrote if a check of this scope fails.
#define DDRUN_SHOW(outcome) \
  INFO("code " << (outcome).code() << "\nstdout:\n" << (outcome).out << "\nstderr:\n" << (outcome).err)
