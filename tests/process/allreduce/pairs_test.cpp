#include "ddrun/test/files.hpp"
#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::test;

namespace {

/// The number of matrix rows that begin with the name of a node.
std::size_t rows_beginning_with(const std::string& out, const std::string& name) {
  std::size_t rows = 0;
  for (const auto& row : rows_of(out)) rows += row[0] + (row.size() > 1 ? " " + row[1] : "") == name ? 1 : 0;
  return rows;
}

}  // namespace

TEST_CASE("ranks of one machine are measured in pairs") {
  const TemporaryDirectory directory;
  for (const auto& [backend, size] : {std::pair{"--backend=shm", 4}, {"--backend=shm", 3}, {"--backend=tcp", 2}}) {
    const std::string path = directory.file("report.json");
    Ranks ranks(size, {"--pairs", "-e", "64K", "-n", "3", backend, "-J", path});
    const auto outcomes = ranks.wait();
    CAPTURE(backend, size, outcomes[0].out, outcomes[0].err);
    for (const Outcome& one : outcomes) CHECK(one.code() == 0);
    const std::string& out = outcomes[0].out;
    const int steps = size % 2 == 0 ? size - 1 : size;
    CHECK(out.find(concat("# pairs of ", size, ": ", steps, " steps, 1 rank of each at the same time\n")) !=
          std::string::npos);
    for (int rank = 0; rank < size; ++rank) CHECK(rows_beginning_with(out, concat("rank ", rank)) == 2);
    CHECK(out.find("# Least bandwidth      : rank ") != std::string::npos);
    CHECK((out.find("# Worst of all         : rank ") != std::string::npos) == (size > 2));
    CHECK(out.find("# Out of bounds values : 0 OK\n") != std::string::npos);
    const auto report = nlohmann::json::parse(read_file(path))["pairs"];
    CHECK(report["nodes"].size() == static_cast<std::size_t>(size));
    CHECK(report["gbps"][1].size() == static_cast<std::size_t>(size));
    CHECK(report["gbps"][1][1].is_null());
  }
}

TEST_CASE("one rank is refused with --pairs") {
  Run run({DDRUN_TEST_ALLREDUCE, "--pairs"});
  const Outcome outcome = run.wait();
  CHECK(outcome.code() == 2);
  CHECK(outcome.err == "ddrun-allreduce: error: --pairs: one rank has no other to meet\n");
}
