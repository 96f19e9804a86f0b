// `ddrun secret new`, and that a secret stays with the agents.
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "../job.hpp"

using namespace ddrun::test;

namespace {

constexpr const char* secret = "correct horse battery staple, and more";

RunOptions with_secret() {
  RunOptions options;
  options.env = {{"DDRUN_SECRET", secret}};
  return options;
}

Outcome make(const TemporaryDirectory& home, const Words& words) {
  RunOptions options;
  options.env = {{"XDG_CONFIG_HOME", home.path() + "/config"}};
  return finish(command(words), std::move(options));
}

}  // namespace

TEST_CASE("A new secret is written once, for its owner alone") {
  const TemporaryDirectory home;
  const std::string path = home.path() + "/config/ddrun/secret";
  const auto made = make(home, {"secret", "new"});
  DDRUN_SHOW(made);
  CHECK(made.code() == 0);
  CHECK(has(made.out, "wrote " + path));
  CHECK(made.err.empty());
  const std::string text = read_file(path);
  CHECK(text.size() == 65);
  CHECK_FALSE(has(made.out, text.substr(0, 64)));
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 07777U) == 0600);

  const auto again = make(home, {"secret", "new"});
  CHECK(again.code() == 2);
  CHECK(has(again.err, path + " exists already and was left as it is"));
  CHECK_FALSE(has(again.err, "--print"));  // that would show another one
  CHECK(read_file(path) == text);
}

TEST_CASE("A secret that is only printed is written nowhere") {
  const TemporaryDirectory home;
  const auto one = make(home, {"secret", "new", "--print"});
  const auto other = make(home, {"secret", "new", "--print"});
  CHECK(one.code() == 0);
  CHECK(one.out.size() == 65);
  CHECK(one.out != other.out);
  CHECK(::access((home.path() + "/config").c_str(), F_OK) != 0);
}

TEST_CASE("Wrong words are answered with the usage") {
  for (const Words& words : std::vector<Words>{{"secret"}, {"secret", "old"}, {"secret", "new", "x"}}) {
    const auto outcome = finish(command(words));
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 2);
    CHECK(has(outcome.err, "usage: ddrun secret new [--print]"));
  }
  CHECK(has(finish(command({"secret", "--help"})).out, "Usage: ddrun secret new"));
}

TEST_CASE("Workers do not get the secret") {
  Run run(job({"-n", "2"}, {"print", "up", "forever"}), with_secret());
  REQUIRE(wait_until([&] { return count(run.out(), "up\n") == 2; }));
  int workers = 0;
  for (const pid_t pid : run.living()) {
    const std::string environment = read_file("/proc/" + std::to_string(pid) + "/environ");
    if (!has(environment, "LOCAL_RANK=")) continue;
    ++workers;
    CHECK_FALSE(has(environment, "DDRUN_SECRET"));
    CHECK_FALSE(has(environment, secret));
  }
  CHECK(workers == 2);
  run.signal(SIGTERM);
  const auto outcome = run.wait();
  CHECK_FALSE(has(outcome.out + outcome.err, secret));
  CHECK(run.all_gone());
}

TEST_CASE("A job on one machine makes no secret, nor does one that is only shown") {
  const TemporaryDirectory home;
  RunOptions options;
  options.env = {{"XDG_CONFIG_HOME", home.path() + "/config"}};
  CHECK(finish(job({"-n", "2"}, {"exit", "0"}), options).code() == 0);
  CHECK(finish(job({"--nnodes=2", "--rdzv-endpoint=localhost", "--dry-run"}, {"exit", "0"}), options).code() == 0);
  CHECK(::access((home.path() + "/config").c_str(), F_OK) != 0);
}

TEST_CASE("Nothing that ddrun prints or writes has the secret") {
  const TemporaryDirectory dir;
  const auto dry = finish(job({"-n", "2", "--dry-run"}, {"exit", "0"}), with_secret());
  CHECK(dry.code() == 0);
  CHECK_FALSE(has(dry.out + dry.err, secret));
  const auto failed =
      finish(job({"-v", "-v", "--report=" + dir.path() + "/report.json"}, {"exit", "3"}), with_secret());
  CHECK(failed.code() == 3);
  CHECK_FALSE(has(failed.out + failed.err, secret));
  CHECK_FALSE(has(read_file(dir.path() + "/report.json"), secret));
  const auto given = finish(job({"--env", "DDRUN_SECRET=" + std::string(secret)}, {"exit", "0"}));
  CHECK(given.code() == 2);
  CHECK(has(given.err, "workers do not get it"));
  CHECK_FALSE(has(given.err, secret));
}
