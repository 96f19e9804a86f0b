#include <map>
#include <set>
#include <sstream>

#include "../job.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun::test;

namespace {

std::map<std::string, std::string> variables(const std::string& text) {
  std::map<std::string, std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    if (equals != std::string::npos) found[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return found;
}

}  // namespace

TEST_CASE("The environment of a worker is what was inherited and the documented list") {
  const Words clean{"/usr/bin/env", "-i", "PATH=/usr/bin:/bin", "KEPT=a=b c"};
  const auto with = [&](const Words& argv) {
    Words all = clean;
    all.insert(all.end(), argv.begin(), argv.end());
    return all;
  };
  Run run(with(job({"-n", "2", "--max-restarts=4", "--role=trainer", "--rdzv-id=job7", "--seed=1", "--label=none"},
                   {"rank", "1", "environ", ";"})));
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  REQUIRE(outcome.code() == 0);
  auto found = variables(outcome.out);
  const std::map<std::string, std::string> expected = {
      {"PATH", "/usr/bin:/bin"},
      {"KEPT", "a=b c"},
      {"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"GROUP_RANK", "0"},
      {"GROUP_WORLD_SIZE", "1"},
      {"ROLE_NAME", "trainer"},
      {"ROLE_RANK", "1"},
      {"ROLE_WORLD_SIZE", "2"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", "4"},
      {"TORCHELASTIC_RUN_ID", "job7"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"OMP_NUM_THREADS", "1"},
      {"PYTHONUNBUFFERED", "1"},
      {"DDRUN_ROUND", "1"},
  };
  for (const auto& [name, value] : expected) {
    INFO(name);
    REQUIRE(found.count(name) == 1);
    if (name == "TORCHELASTIC_RUN_ID") CHECK_FALSE(found[name].empty());
    else if (name == "TORCHELASTIC_SIGNALS_TO_HANDLE") {
      std::set<std::string> names;
      std::istringstream words(found[name]);
      for (std::string word; std::getline(words, word, ',');) names.insert(word);
      CHECK(names == std::set<std::string>{"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"});
    } else {
      CHECK(found[name] == value);
    }
    found.erase(name);
  }
  CHECK(std::stoi(found["MASTER_PORT"]) > 0);
  CHECK(found["TORCHELASTIC_ERROR_FILE"].starts_with("/"));
  CHECK(found["DDRUN_SEED"] != "");
  CHECK(found["DDRUN_VERSION"] != "");
  CHECK(found["DDRUN_JOB_TAG"] != "");
  for (const char* name : {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "DDRUN_SEED", "DDRUN_VERSION", "DDRUN_JOB_TAG",
                           "DDRUN_ATTEMPT_DIR"}) {
    found.erase(name);
  }
  // Nothing else; the shell's own additions are not expected from env.
  for (const auto& [name, value] : found) {
    INFO(name << "=" << value);
    CHECK(false);
  }
}

TEST_CASE("A single worker keeps its own number of threads") {
  const auto outcome =
      finish({"/usr/bin/env", "-u", "OMP_NUM_THREADS", DDRUN_TEST_DDRUN, DDRUN_TEST_WORKER, "env", "OMP_NUM_THREADS"});
  DDRUN_SHOW(outcome);
  CHECK(outcome.out == "OMP_NUM_THREADS=(unset)\n");
}

TEST_CASE("A script that is a program is called as the user wrote it") {
  TemporaryDirectory directory;
  static_cast<void>(directory.file("show.sh", "#!/bin/sh\necho \"$0 in $PWD\"\n", 0755));
  RunOptions options;
  options.directory = directory.path();
  auto outcome = finish(command({"--label=none", "./show.sh"}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.out, "./show.sh in "));
  CHECK_FALSE(has(outcome.out, "/./show.sh"));
  // The name is meant from the workers' directory.
  outcome = finish(command({"--label=none", "--chdir=" + directory.path(), "./show.sh"}));
  CHECK(outcome.out == "./show.sh in " + directory.path() + "\n");
}
