#include <dirent.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

std::vector<std::string> names_in_dev_shm() {
  std::vector<std::string> names;
  if (DIR* const directory = opendir("/dev/shm")) {
    while (const dirent* const entry = readdir(directory)) names.emplace_back(entry->d_name);
    closedir(directory);
  }
  // "ddrun_" is the prefix of the launcher's directories, which other tests may be using.
  std::erase_if(names, [](const std::string& name) {
    return name.find("ddrun") == std::string::npos || name.starts_with("ddrun_");
  });
  return names;
}

void check_killed_rank_is_named(int size, int victim, const std::string& backend) {
  // In effect endless: ends by --timeout at the latest.
  Ranks ranks(size, {"-b", "1M", "-e", "1M", "-n", "1000000000", "--timeout", "40s", "--backend=" + backend});
  REQUIRE(ranks[0].wait_for_out("redop"));  // the table has begun, so all are connected
  ranks[victim].signal(SIGKILL);
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = ranks.wait(20s);
  CHECK(std::chrono::steady_clock::now() - start < 15s);
  for (int rank = 0; rank < size; ++rank) {
    const Outcome& one = outcomes[static_cast<std::size_t>(rank)];
    CAPTURE(backend, rank, one.err);
    if (rank == victim) continue;
    CHECK(one.code() == 1);
    CHECK(one.err == concat("ddrun-allreduce: error: rank ", rank, ": rank ", victim, " is gone\n"));
  }
  if (victim != 0) CHECK(outcomes[0].out.find(concat("# Ended early: rank ", victim, " is gone")) != std::string::npos);
  CHECK(names_in_dev_shm().empty());
}

}  // namespace

TEST_CASE("a killed rank is named by all others") {
  const std::string backend = GENERATE("shm", "tcp");
  check_killed_rank_is_named(4, 0, backend);
  check_killed_rank_is_named(8, 5, backend);
}

TEST_CASE("a rank that kills itself leaves the rows before it in the table") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("report.json");
  Ranks ranks(3, {"-e", "1K", "-n", "2", "--kill-rank", "1", "--kill-at", "64", "-J", path});
  const auto outcomes = ranks.wait();
  CHECK(outcomes[0].code() == 1);
  CHECK(outcomes[1].code() == -SIGKILL);
  CHECK(outcomes[2].code() == 1);
  CHECK(rows_of(outcomes[0].out).size() == 3);
  const auto report = nlohmann::json::parse(read_file(path));
  CHECK(report["ok"] == false);
  CHECK(report["error"] == "rank 1 is gone");
  CHECK(report["results"].size() == 3);
}

TEST_CASE("a wrong element is counted on every rank and fails all of them") {
  for (const char* backend : {"--backend=shm", "--backend=tcp"}) {
    Ranks ranks(3, {"-b", "1K", "-e", "4K", "-n", "2", "--corrupt-rank", "2", backend});
    const auto outcomes = ranks.wait();
    for (const Outcome& one : outcomes) CHECK(one.code() == 1);
    const auto rows = rows_of(outcomes[0].out);
    REQUIRE(rows.size() == 3);
    for (const auto& row : rows) {
      CHECK(row[8] == "3");
      CHECK(row[12] == "3");
    }
    CHECK(outcomes[0].out.find("# Out of bounds values : 18 FAILED\n") != std::string::npos);
  }
}

TEST_CASE("different options are reported with both values before the measurement") {
  const std::vector<std::pair<std::string, std::string>> pairs{{"--datatype=half", "--datatype=float"},
                                                               {"--op=max", "--op=sum"},
                                                               {"--iters=7", "--iters=3"},
                                                               {"--maxbytes=2048", "--maxbytes=1024"}};
  for (const auto& [last, first] : pairs) {
    Ranks ranks(3, {"-n", "3", "-e", "1K"}, {last});
    const auto outcomes = ranks.wait();
    for (int rank = 0; rank < 3; ++rank) {
      const Outcome& one = outcomes[static_cast<std::size_t>(rank)];
      CHECK(one.code() == 2);
      CHECK(one.out.empty());
      CHECK(one.err == concat("ddrun-allreduce: error: rank ", rank, ": rank 0 has ", first, ", rank 2 has ", last,
                              ": all ranks must have the same options\n"));
    }
  }
}

TEST_CASE("a rank that never starts is named") {
  auto server = store::TcpServer::start();
  REQUIRE(server);
  RunOptions options;
  options.env = {{"RANK", "0"},
                 {"WORLD_SIZE", "3"},
                 {"MASTER_ADDR", "127.0.0.1"},
                 {"MASTER_PORT", std::to_string((*server)->port())},
                 {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  Run run({DDRUN_TEST_ALLREDUCE, "--timeout", "300ms"}, options);
  const Outcome outcome = run.wait();
  CHECK(outcome.code() == 1);
  CHECK(outcome.err == "ddrun-allreduce: error: rank 0: ranks 1,2 did not come in time\n");
}
