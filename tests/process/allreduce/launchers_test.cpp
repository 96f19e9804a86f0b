#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "ddrun/test/ports.hpp"
#include "ranks.hpp"

// The program under installed MPI launchers.

using namespace ddrun;
using namespace ddrun::test;

namespace {

std::string path_of(const std::string& program) {
  const char* const path = std::getenv("PATH");
  for (const std::string& folder : split(path == nullptr ? "" : path, ':')) {
    const std::string file = concat(folder, '/', program);
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  skip(concat(program, " is not installed"));
  return {};
}

/// The launcher options that set MASTER_ADDR and MASTER_PORT; `pass` makes them from name and value.
std::vector<std::string> address(const std::function<std::vector<std::string>(std::string, std::string)>& pass) {
  auto words = pass("MASTER_ADDR", "127.0.0.1");
  const auto port = pass("MASTER_PORT", std::to_string(free_port()));
  words.insert(words.end(), port.begin(), port.end());
  return words;
}

std::vector<std::string> open_mpi() {
  return {path_of("mpirun.openmpi"), "--allow-run-as-root", "--oversubscribe", "-n", "4"};
}

void check_table(Run& run, int size) {
  const Outcome outcome = run.wait(std::chrono::seconds(60));
  CAPTURE(outcome.out, outcome.err);
  CHECK(outcome.code() == 0);
  CHECK(outcome.out.find(concat("ranks: ", size, "  backend: ")) != std::string::npos);
  CHECK(outcome.out.find("# Out of bounds values : 0 OK\n") != std::string::npos);
  CHECK(run.all_gone());
}

void check_launcher(std::vector<std::string> launcher, const std::vector<std::string>& options) {
  launcher.insert(launcher.end(), options.begin(), options.end());
  launcher.insert(launcher.end(), {DDRUN_TEST_ALLREDUCE, "-b", "1K", "-e", "64K", "-f", "8", "-n", "2"});
  Run run(launcher);
  check_table(run, 4);
}

}  // namespace

TEST_CASE("the worker runs under Open MPI's mpirun") {
  using Words = std::vector<std::string>;
  check_launcher(open_mpi(), address([](const std::string& name, const std::string& value) {
                   return Words{"-x", concat(name, '=', value)};
                 }));
}

TEST_CASE("the worker runs under MPICH's mpiexec") {
  using Words = std::vector<std::string>;
  check_launcher({path_of("mpiexec.hydra"), "-n", "4"}, address([](const std::string& name, const std::string& value) {
                   return Words{"-genv", name, value};
                 }));
}
