// --hosts with this machine among them: no ssh, and else as on any host.
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <climits>

#include "../job.hpp"

using namespace ddrun::test;

namespace {

/// A PATH in which ssh only leaves a mark.
class WithoutSsh {
 public:
  WithoutSsh() {
    write_file(directory_.file("ssh"), "#!/bin/sh\n: >" + directory_.file("asked") + "\nexit 255\n");
    REQUIRE(::chmod(directory_.file("ssh").c_str(), 0755) == 0);
    options.env = {{"PATH", directory_.path() + ":/usr/local/bin:/usr/bin:/bin"}};
  }
  bool was_asked() const { return ::access(directory_.file("asked").c_str(), F_OK) == 0; }
  Outcome run(const Words& words) const { return finish(command(words), options); }

  RunOptions options;

 private:
  TemporaryDirectory directory_;
};

std::string own_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  REQUIRE(::gethostname(name.data(), name.size() - 1) == 0);
  return name.data();
}

}  // namespace

TEST_CASE("This machine is started without ssh by each of its names") {
  const WithoutSsh place;
  for (const std::string& name : {std::string("localhost"), std::string("127.0.0.1"), own_name()}) {
    CAPTURE(name);
    const auto outcome = place.run(
        {"--hosts=" + name + ":2", "-x", "FOO=7", "--label=none", "--", "sh", "-c", "echo $RANK/$WORLD_SIZE $FOO"});
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 0);
    CHECK(has(outcome.out, "0/2 7\n"));
    CHECK(has(outcome.out, "1/2 7\n"));
    CHECK(outcome.err.empty());
    CHECK_FALSE(place.was_asked());
  }
}

TEST_CASE("A command that was given by name is asked for this machine too") {
  const WithoutSsh place;
  const auto given = place.run({"--hosts=localhost", "--ssh=ssh", "true"});
  DDRUN_SHOW(given);
  CHECK(given.code() == 125);
  CHECK(place.was_asked());
}

TEST_CASE("Another user of this machine is reached by ssh") {
  const WithoutSsh place;
  const auto outcome = place.run({"--hosts=somebody@localhost", "true"});
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 125);
  CHECK(place.was_asked());
}

TEST_CASE("An absolute --chdir needs no current directory") {
  const WithoutSsh place;
  const std::string start = "mkdir gone; cd gone; rmdir ../gone; exec \"$@\"";
  for (const Words& options : {Words{"--hosts=localhost"}, Words{}}) {
    const auto run = [&](const std::string& directory) {
      const TemporaryDirectory here;
      RunOptions in_it;
      in_it.directory = here.path();
      Words words = options;
      words.insert(words.end(), {"--chdir=" + directory, "pwd"});
      Words argv{"sh", "-c", start, "sh"};
      for (const std::string& word : command(words)) argv.push_back(word);
      return finish(argv, std::move(in_it));
    };
    const auto outcome = run("/");
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 0);
    CHECK(outcome.out == "/\n");
    const auto relative = run("x");
    CHECK(relative.code() == 125);
    CHECK(has(relative.err, "the current directory cannot be read (was it removed?)"));
  }
}

TEST_CASE("What would be started says which host is here") {
  const WithoutSsh place;
  const auto outcome = place.run({"--hosts=localhost:2,far", "--dry-run", "true"});
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.out, "node rank 0: localhost, 2 slots, here, coordinator"));
  CHECK(has(outcome.out, "node rank 1: far\n"));
}

TEST_CASE("A number of workers beside those of the hosts is warned of") {
  const WithoutSsh place;
  const auto differs = place.run({"-np", "1", "--hosts=localhost:2", "--dry-run", "true"});
  DDRUN_SHOW(differs);
  CHECK(differs.code() == 0);
  CHECK(has(differs.err, "warning: --nproc-per-node=1 starts 1 worker on localhost, not the 2"));
  const auto sum = place.run({"-np", "4", "--hosts=localhost:2,far:2,spare:8", "--nnodes=2", "--dry-run", "true"});
  DDRUN_SHOW(sum);
  CHECK(sum.code() == 0);
  CHECK(has(sum.err,
            "4 workers on each of 2 hosts, 8 in all, not the 2 of localhost; without it the hosts' own numbers "
            "count, 4 in all"));
}

TEST_CASE("An argument of the program is no number of workers") {
  const WithoutSsh place;
  const auto outcome = place.run({"--hosts=localhost:3", "echo", "--nproc-per-node=1"});
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(std::count(outcome.out.begin(), outcome.out.end(), '\n') == 3);
}

TEST_CASE("What a worker writes looks the same through a host's connection") {
  const std::string script = R"(i=0
while [ $i -lt 20 ]; do printf '%d%%\r' $i; i=$((i+1)); done; echo
printf 'bar \r 50%%\r 100%%\nname? '; printf 'bob\na\r\n\n'
head -c 1000000 /dev/zero | tr '\0' x; echo
printf '\033[31mred\033[m \377\n\rend')";
  for (const char* progress : {"all", "last"}) {
    for (const char* label : {"--label=rank", "--label=none", "--log-line-prefix-template=<${rank}> "}) {
      CAPTURE(progress, label);
      const Words words{"--progress=" + std::string(progress), label, "--", "sh", "-c", script};
      Words here = command({}), there = command({"--hosts=localhost"});
      here.insert(here.end(), words.begin(), words.end());
      there.insert(there.end(), words.begin(), words.end());
      const auto local = finish(here);
      const auto remote = finish(there);
      CHECK(remote.code() == 0);
      CHECK(remote.err.empty());
      // The head ends an unfinished line.
      const bool same = remote.out == local.out + (local.out.ends_with('\n') ? "" : "\n");
      CHECK(same);
      CHECK(has(local.out, std::string(1'000'000, 'x') + "\n"));
    }
  }
}
