#include <signal.h>

#include <nlohmann/json.hpp>

#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

void check_stopped_rank(int size, int victim, const std::string& backend) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("report.json");
  Ranks ranks(size,
              {"-b", "1M", "-e", "1M", "-n", "1000000000", "--op-timeout", "2s", "--backend=" + backend, "-J", path});
  REQUIRE(ranks[0].wait_for_out("redop"));  // the table has begun, so all are connected
  ranks[victim].signal(SIGSTOP);
  for (int rank = 0; rank < size; ++rank) {
    if (rank == victim) continue;
    const Outcome one = ranks[rank].wait(40s);
    CAPTURE(backend, size, victim, rank, one.err);
    CHECK(one.code() == 4);
    REQUIRE(lines_of(one.err).size() == 1);
    const std::string start = concat("ddrun-allreduce: error: rank ", rank, ": timeout in ");
    CHECK(one.err.starts_with(start));
    // Rank 0 has completed the start; other ranks may not have.
    CHECK((one.err.find(", iteration ") != std::string::npos || one.err.starts_with(start + "the start")));
  }
  ranks[victim].signal(SIGKILL);
  ranks[victim].wait();
  if (victim == 0) return;
  CHECK_FALSE(nlohmann::json::parse(read_file(path))["error"].get<std::string>().empty());
}

}  // namespace

TEST_CASE("ranks that wait for a stopped one report the call") {
  const auto [size, victim, backend] = GENERATE(table<int, int, std::string>({{5, 3, "shm"}, {3, 0, "tcp"}}));
  check_stopped_rank(size, victim, backend);
}

TEST_CASE("a rank that is stopped and continued later reports a timeout") {
  Ranks ranks(3, {"-b", "1M", "-e", "1M", "-n", "1000000000", "--op-timeout", "2s"});
  REQUIRE(ranks[0].wait_for_out("redop"));
  ranks[1].signal(SIGSTOP);
  CHECK(ranks[0].wait(40s).code() == 4);
  CHECK(ranks[2].wait(40s).code() == 4);
  ranks[1].signal(SIGCONT);
  const Outcome late = ranks[1].wait(40s);
  CAPTURE(late.err);
  CHECK(late.code() == 4);
  CHECK(late.err.find("ddrun-allreduce: error: rank 1: timeout in ") == 0);
}

TEST_CASE("the status is the same if the store hangs with its rank") {
  // No launcher: rank 0 serves the store.
  const auto start = [](int rank, int port) {
    RunOptions options;
    options.env = {{"RANK", std::to_string(rank)},
                   {"WORLD_SIZE", "2"},
                   {"MASTER_ADDR", "127.0.0.1"},
                   {"MASTER_PORT", std::to_string(port)}};
    return std::make_unique<Run>(
        // The first of many rows appears at once.
        std::vector<std::string>{DDRUN_TEST_ALLREDUCE, "-b", "8", "-e", "512K", "-i", "8", "--op-timeout", "2s"},
        options);
  };
  // A port that was free a moment ago.
  auto probe = store::TcpServer::start();
  REQUIRE(probe);
  const int port = (*probe)->port();
  probe->reset();
  const auto first = start(0, port);
  const auto second = start(1, port);
  // A row shows that the peer has completed the start too, which has another time limit.
  REQUIRE(first->wait_for_out("float"));
  first->signal(SIGSTOP);
  const Outcome outcome = second->wait(40s);
  CAPTURE(outcome.err);
  CHECK(outcome.code() == 4);
  const auto lines = lines_of(outcome.err);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("ddrun-allreduce: error: rank 1: timeout in ") == 0);
  first->signal(SIGKILL);
  first->wait();
}
