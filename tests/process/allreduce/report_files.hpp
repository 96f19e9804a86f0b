#pragma once

#include <nlohmann/json.hpp>

#include "ranks.hpp"

namespace ddrun::test {

/// One row of a report; both placements take the same time.
inline nlohmann::json result_of(std::uint64_t size, double busbw, double microseconds) {
  const nlohmann::json one{{"time_us", microseconds}, {"algbw_gbps", busbw}, {"busbw_gbps", busbw}, {"wrong", 0}};
  return {{"size", size},   {"count", size / 4}, {"collective", "all_reduce"}, {"type", "float"},
          {"redop", "sum"}, {"root", -1},        {"out_of_place", one},        {"in_place", one}};
}

/// A report such as -J writes, of two ranks of one machine.
inline nlohmann::json report_of(std::vector<nlohmann::json> results) {
  return {{"program", "ddrun-allreduce"},
          {"collective", "all_reduce"},
          {"backend", "shm"},
          {"world_size", 2},
          {"ranks", {{{"rank", 0}, {"host", "m1"}, {"pid", 1}}, {{"rank", 1}, {"host", "m1"}, {"pid", 2}}}},
          {"results", std::move(results)},
          {"out_of_bounds", 0}};
}

/// 8 B in 2 us, 1 KiB in 4 us with 1 GB/s, 1 MiB in 100 us with 10 GB/s, 64 MiB in 10 ms with 6 GB/s.
inline nlohmann::json usual_report() {
  return report_of(
      {result_of(8, 0.004, 2), result_of(1024, 1, 4), result_of(1 << 20, 10, 100), result_of(64 << 20, 6, 10000)});
}

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
