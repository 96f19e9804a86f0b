#pragma once

#include <nlohmann/json.hpp>

#include "ranks.hpp"

namespace ddrun::test {

/// The program without a launcher.
inline Outcome run_alone(const std::vector<std::string>& args, RunOptions options = {}) {
  std::vector<std::string> argv{DDRUN_TEST_ALLREDUCE};
  argv.insert(argv.end(), args.begin(), args.end());
  Run run(argv, std::move(options));
  return run.wait();
}

/// One line on stderr with these words in it, and this status.
inline void check_ends(const Outcome& outcome, int status, const std::string& words) {
  CAPTURE(words, outcome.err, outcome.out);
  CHECK(outcome.code() == status);
  CHECK(lines_of(outcome.err).size() == 1);
  CHECK(outcome.err.find("ddrun-allreduce: error: ") == 0);
  CHECK(outcome.err.find(words) != std::string::npos);
}

}  // namespace ddrun::test
