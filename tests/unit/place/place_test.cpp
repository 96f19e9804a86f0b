#include "ddrun/bench/place.hpp"

#include <unistd.h>

#include <thread>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::bench;
using namespace std::chrono_literals;

namespace {

using Lines = std::vector<std::string>;

Result<Place> place_in(const Lines& lines) {
  std::vector<const char*> entries;
  for (const std::string& line : lines) entries.push_back(line.c_str());
  entries.push_back(nullptr);
  return place_from(Environment(entries.data()));
}

/// "srun 1/4, 0/2 here, at 10.0.0.1:29500, job x", with "served" where the launcher serves the store.
std::string in_words(const Lines& lines) {
  const auto place = place_in(lines);
  if (!place) return place.error().message;
  if (place->alone) return "alone";
  return concat(place->launcher, place->launcher.empty() ? "" : " ", place->rank, '/', place->size, ", ",
                place->local_rank, '/', place->local_size, " here, at ", place->master_address, ':', place->master_port,
                ", job ", place->job, place->store_is_there ? ", served" : "");
}

const Lines torchrun{"RANK=1",           "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=10.0.0.1",
                     "MASTER_PORT=29500"};
const Lines two_hosts{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1",
                      "OMPI_COMM_WORLD_LOCAL_SIZE=2"};
const Lines one_host{"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2"};
const Lines srun{
    "SLURM_JOB_ID=12",        "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=n[3-4]",     "SLURM_PROCID=2", "SLURM_LOCALID=0",
    "SLURM_STEP_NUM_TASKS=4", "SLURM_NODEID=1",  "SLURM_STEP_TASKS_PER_NODE=2(x2)"};

Lines operator+(Lines left, const Lines& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

}  // namespace

TEST_CASE("RANK and WORLD_SIZE count before what mpirun and srun say") {
  CHECK(in_words({}) == "alone");
  CHECK(in_words(torchrun) == "1/4, 1/2 here, at 10.0.0.1:29500, job ");
  CHECK(in_words(torchrun + Lines{"TORCHELASTIC_USE_AGENT_STORE=True"}) ==
        "1/4, 1/2 here, at 10.0.0.1:29500, job , served");
  CHECK(in_words(torchrun + two_hosts + srun) == "1/4, 1/2 here, at 10.0.0.1:29500, job ");
  CHECK(in_words(two_hosts + Lines{"RANK=0"}).starts_with("WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set: "));
}

TEST_CASE("ranks out of range are refused") {
  CHECK(in_words({"RANK=4", "WORLD_SIZE=4", "MASTER_ADDR=h", "MASTER_PORT=1"}).starts_with("RANK=4: "));
  CHECK(in_words({"RANK=-1", "WORLD_SIZE=4", "MASTER_ADDR=h", "MASTER_PORT=1"}).starts_with("RANK=-1: "));
  CHECK(in_words({"RANK=0", "WORLD_SIZE=0", "MASTER_ADDR=h", "MASTER_PORT=1"}).starts_with("WORLD_SIZE=0: "));
  CHECK(in_words({"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=70000"}).starts_with("MASTER_PORT=70000: "));
}

TEST_CASE("ranks of one machine meet by their launcher") {
  const auto place = place_in(one_host);
  REQUIRE(place);
  CHECK(place->launcher == "MPICH");
  CHECK(place->master_address.empty());
  CHECK(!place->job.empty());
  CHECK(in_words(one_host + Lines{"MASTER_ADDR=h", "MASTER_PORT=7"}) == "MPICH 1/2, 1/2 here, at h:7, job ");
}

TEST_CASE("ranks of several machines need an address unless Slurm names the hosts") {
  const std::string refusal = in_words(two_hosts);
  CHECK(refusal.starts_with("MASTER_ADDR, MASTER_PORT are not set: Open MPI "));
  CHECK(refusal.find("-x MASTER_ADDR=ADDRESS -x MASTER_PORT=PORT") != std::string::npos);
  CHECK(in_words(two_hosts + Lines{"MASTER_ADDR=h"}).starts_with("MASTER_PORT is not set: "));
  CHECK(in_words(two_hosts + Lines{"MASTER_ADDR=h", "MASTER_PORT=7"}) == "Open MPI 1/4, 1/2 here, at h:7, job ");
  const auto place = place_in(srun);
  REQUIRE(place);
  CHECK(place->master_address == "n3");
  CHECK(place->master_port >= 20000);
  CHECK(place->master_port < 32768);
  CHECK(place->job == "slurm-12.0");
  CHECK(in_words(srun + Lines{"MASTER_PORT=7"}) == "srun 2/4, 0/2 here, at n3:7, job slurm-12.0");
}

TEST_CASE("ranks that say different numbers of ranks are told so") {
  const auto server = store::TcpServer::start();
  REQUIRE(server);
  Place place;
  place.size = 2;
  place.master_address = "127.0.0.1";
  place.master_port = (*server)->port();
  place.store_is_there = true;
  const auto first = meet(place, Clock::now() + 10s);
  REQUIRE(first);
  place.rank = 1;
  place.size = 3;
  const auto second = meet(place, Clock::now() + 10s);
  REQUIRE(!second);
  CHECK(second.error().code == Errc::invalid_argument);
  CHECK(second.error().message == "there are 3 ranks, but another rank says 2: WORLD_SIZE must be the same everywhere");
  place.rank = 0;
  place.size = 2;
  const auto third = meet(place, Clock::now() + 10s);
  REQUIRE(!third);
  CHECK(third.error().message.starts_with("another process is rank 0 too: "));
}

TEST_CASE("without a store a rank says where it looked for it") {
  Place place;
  place.rank = 1;
  place.size = 2;
  place.master_address = "127.0.0.1";
  place.master_port = 9;
  const auto met = meet(place, Clock::now() + 200ms);
  REQUIRE(!met);
  CHECK(met.error().message.starts_with("cannot reach the store at 127.0.0.1 port 9: "));
}

TEST_CASE("ranks of one machine find rank 0's store by their job") {
  Place place;
  place.size = 3;
  place.job = concat("test-", std::to_string(::getpid()));
  std::vector<std::string> problems(3, "did not run");
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Place mine = place;
      mine.rank = rank;
      const auto met = meet(mine, Clock::now() + 20s);
      if (!met) {
        problems[static_cast<std::size_t>(rank)] = met.error().message;
        return;
      }
      const auto all = met->group.store->barrier("end", 3, Clock::now() + 20s);
      problems[static_cast<std::size_t>(rank)] = all ? "" : all.error().message;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(problems == std::vector<std::string>(3, ""));
}
