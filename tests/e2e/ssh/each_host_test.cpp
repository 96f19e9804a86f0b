// scripts/each-host: the plain loop over ssh.
#include <sys/stat.h>

#include <csignal>

#include "ssh_hosts.hpp"

using namespace ddrun::test;

namespace {

/// Two hosts of which the first has a name that all can look up, and the secret that both need.
class EachHost {
 public:
  EachHost() {
    hosts_.add("localhost");
    const std::string folder = hosts_.file("home/.config/ddrun");
    std::filesystem::create_directories(folder);
    write_file(folder + "/secret", "sixteen bytes and more\n");
    ::chmod((folder + "/secret").c_str(), 0600);
  }
  [[nodiscard]] const SshHosts& hosts() const { return hosts_; }
  /// "each-host NAMES --label=none options… worker verbs…"
  [[nodiscard]] static Words words(const std::string& names, const Words& options, const Words& verbs) {
    Words all{DDRUN_TEST_SCRIPTS "/each-host", names, "--label=none"};
    all.insert(all.end(), options.begin(), options.end());
    all.emplace_back(DDRUN_TEST_WORKER);
    all.insert(all.end(), verbs.begin(), verbs.end());
    return all;
  }
  [[nodiscard]] RunOptions options() const {
    RunOptions options;
    options.directory = hosts_.directory().path();
    options.env = {
        {"SSH", "ssh -F " + hosts_.config()}, {"DDRUN", DDRUN_TEST_DDRUN}, {"PORT", std::to_string(free_port())}};
    return options;
  }

 private:
  SshHosts hosts_;
};

}  // namespace

TEST_CASE("The plain loop runs one job on each host in this directory") {
  const EachHost each;
  Run run(EachHost::words("localhost two", {"-n", "2"}, {"env", "RANK", "facts"}), each.options());
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  for (const char* line : {"RANK=0", "RANK=1", "RANK=2", "RANK=3"}) CHECK(count(outcome.out, line) == 1);
  CHECK(count(outcome.out, "cwd " + each.hosts().directory().path()) == 4);
  CHECK(run.all_gone());
  CHECK(each.hosts().all_gone());
}

TEST_CASE("A host that the plain loop cannot reach ends the others") {
  const EachHost each;
  for (const char* names : {"localhost nowhere.invalid", "localhost nowhere.invalid two"}) {
    CAPTURE(names);
    Run run(EachHost::words(names, {}, {"print", "must not run", "forever"}), each.options());
    const auto outcome = run.wait();
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 255);
    CHECK_FALSE(has(outcome.out, "must not run"));
    CHECK(has(outcome.err, "Could not resolve hostname nowhere.invalid"));
    CHECK(run.all_gone());
    CHECK(each.hosts().all_gone());
  }
}

TEST_CASE("Signals end the plain loop and the job everywhere") {
  const EachHost each;
  for (const int signal : {SIGINT, SIGTERM}) {
    CAPTURE(signal);
    Run run(EachHost::words("localhost two", {"-n", "2"}, {"stray", "forever", ";", "print", "up", "forever"}),
            each.options());
    const bool up = wait_until([&] { return count(run.out(), "up") == 4; });
    INFO(run.out() << run.err());
    REQUIRE(up);
    run.signal(signal);
    const auto outcome = run.wait();
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() != 0);
    CHECK(run.all_gone());
    CHECK(each.hosts().all_gone());
  }
}

TEST_CASE("The plain loop says how it is used") {
  CHECK(has(finish({DDRUN_TEST_SCRIPTS "/each-host", "--help"}).out, "usage: scripts/each-host"));
  CHECK(finish({DDRUN_TEST_SCRIPTS "/each-host", "a b"}).code() == 2);
}
