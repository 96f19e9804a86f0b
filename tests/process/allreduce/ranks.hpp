#pragma once

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/store/tcp_server.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/processes.hpp"

namespace ddrun::test {

/// Processes of the real program with a launcher's environment, and the launcher's store.
class Ranks {
 public:
  /// `more_of_last`: further arguments of the last rank.
  Ranks(int size, const std::vector<std::string>& args, const std::vector<std::string>& more_of_last = {}) {
    auto started = store::TcpServer::start();
    REQUIRE(started);
    store_ = std::move(*started);
    std::vector<std::string> argv{DDRUN_TEST_ALLREDUCE};
    argv.insert(argv.end(), args.begin(), args.end());
    for (int rank = 0; rank < size; ++rank) {
      if (rank == size - 1) argv.insert(argv.end(), more_of_last.begin(), more_of_last.end());
      RunOptions options;
      options.env = {{"RANK", std::to_string(rank)},       {"LOCAL_RANK", std::to_string(rank)},
                     {"WORLD_SIZE", std::to_string(size)}, {"LOCAL_WORLD_SIZE", std::to_string(size)},
                     {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(store_->port())},
                     {"TORCHELASTIC_RESTART_COUNT", "0"},  {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
      ranks_.push_back(std::make_unique<Run>(argv, options));
    }
  }

  Run& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }

  std::vector<Outcome> wait(std::chrono::milliseconds limit = std::chrono::seconds(50)) {
    std::vector<Outcome> outcomes;
    for (const auto& rank : ranks_) outcomes.push_back(rank->wait(limit));
    return outcomes;
  }

 private:
  std::unique_ptr<store::TcpServer> store_;
  std::vector<std::unique_ptr<Run>> ranks_;
};

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines = split(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

/// The columns of each row of results.
inline std::vector<std::vector<std::string>> rows_of(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  for (const std::string& line : lines_of(text)) {
    if (line.empty() || line.front() == '#') continue;
    std::vector<std::string> words = split(line, ' ');
    std::erase(words, "");
    rows.push_back(std::move(words));
  }
  return rows;
}

/// Runs the program without a launcher.
inline Outcome run_alone(const std::vector<std::string>& args, RunOptions options = {}) {
  std::vector<std::string> argv{DDRUN_TEST_ALLREDUCE};
  argv.insert(argv.end(), args.begin(), args.end());
  Run run(argv, std::move(options));
  return run.wait();
}

/// Checks for one error line that contains `words`, and for the status.
inline void check_ends(const Outcome& outcome, int status, const std::string& words) {
  CAPTURE(words, outcome.err, outcome.out);
  CHECK(outcome.code() == status);
  CHECK(lines_of(outcome.err).size() == 1);
  CHECK(outcome.err.find("ddrun-allreduce: error: ") == 0);
  CHECK(outcome.err.find(words) != std::string::npos);
}

}  // namespace ddrun::test
