#include <unistd.h>

#include <cstdlib>

#include "ranks.hpp"

// The same worker under launchers that are installed here, which know nothing of it.

using namespace ddrun;
using namespace ddrun::test;

namespace {

const std::vector<std::string> kFew{"-b", "1K", "-e", "64K", "-f", "8", "-n", "2"};

std::string path_of(const std::string& program) {
  const char* const path = std::getenv("PATH");
  for (const std::string& folder : split(path == nullptr ? "" : path, ':')) {
    const std::string file = concat(folder, '/', program);
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  skip(concat(program, " is not installed"));
  return {};
}

std::vector<std::string> open_mpi(int size) {
  return {path_of("mpirun.openmpi"), "--allow-run-as-root", "--oversubscribe", "-n", std::to_string(size)};
}

std::vector<std::string> command(std::vector<std::string> launcher, const std::vector<std::string>& more) {
  launcher.emplace_back(DDRUN_TEST_ALLREDUCE);
  launcher.insert(launcher.end(), kFew.begin(), kFew.end());
  launcher.insert(launcher.end(), more.begin(), more.end());
  return launcher;
}

void check_table(Run& run, int size) {
  const Outcome outcome = run.wait(std::chrono::seconds(60));
  CAPTURE(outcome.out, outcome.err);
  CHECK(outcome.code() == 0);
  CHECK(outcome.out.find(concat("ranks: ", size, "  backend: ")) != std::string::npos);
  CHECK(outcome.out.find("# Out of bounds values : 0 OK\n") != std::string::npos);
  CHECK(run.all_gone());
}

void check_launcher(const std::vector<std::string>& launcher, int size) {
  Run run(command(launcher, {}));
  check_table(run, size);
}

}  // namespace

TEST_CASE("the worker runs under Open MPI's mpirun") { check_launcher(open_mpi(4), 4); }

TEST_CASE("the worker runs under MPICH's mpiexec") { check_launcher({path_of("mpiexec.hydra"), "-n", "4"}, 4); }

TEST_CASE("a shell between mpirun and the worker does no harm, nor does a second run") {
  const std::string line = concat(DDRUN_TEST_ALLREDUCE, ' ', join(kFew, " "));
  std::vector<std::string> argv = open_mpi(3);
  argv.insert(argv.end(), {"sh", "-c", concat(line, " && ", line)});
  Run run(argv);
  const Outcome outcome = run.wait(std::chrono::seconds(60));
  CAPTURE(outcome.out, outcome.err);
  CHECK(outcome.code() == 0);
  const std::string good = "# Out of bounds values : 0 OK\n";
  const std::size_t first = outcome.out.find(good);
  REQUIRE(first != std::string::npos);
  CHECK(outcome.out.find(good, first + 1) != std::string::npos);
}

TEST_CASE("several jobs at once on one machine do not meet each other") {
  const std::string mpiexec = path_of("mpiexec.hydra");
  std::vector<std::unique_ptr<Run>> runs;
  for (int size : {2, 3, 2, 3}) {
    runs.push_back(std::make_unique<Run>(command({mpiexec, "-n", std::to_string(size)}, {})));
  }
  check_table(*runs[0], 2);
  check_table(*runs[1], 3);
  check_table(*runs[2], 2);
  check_table(*runs[3], 3);
}

TEST_CASE("mpirun on several machines is told how to give an address") {
  std::vector<std::string> argv = open_mpi(2);
  argv.insert(argv.end(),
              {"env", "OMPI_COMM_WORLD_LOCAL_SIZE=1", "OMPI_COMM_WORLD_LOCAL_RANK=0", DDRUN_TEST_ALLREDUCE});
  Run run(argv);
  const Outcome outcome = run.wait();
  CHECK(outcome.code() == 2);
  CHECK(outcome.err.find("-x MASTER_ADDR=ADDRESS -x MASTER_PORT=PORT") != std::string::npos);
}
