// `ddrun rendezvous`: a coordinator by itself, which many jobs use and none ends.
#include <unistd.h>

#include <csignal>

#include "../job.hpp"
#include "ddrun/test/full_pipe.hpp"
#include "ddrun/test/store_wire.hpp"

using namespace ddrun::test;

namespace {

constexpr const char* secret = "correct horse battery staple, and more";

RunOptions knowing(const std::string& what) {
  RunOptions options;
  options.env = {{"DDRUN_SECRET", what}};
  return options;
}

/// A coordinator on a free port of the loopback.
class Coordinator {
 public:
  explicit Coordinator(const Words& options = {}, RunOptions run = knowing(secret))
      : run_(with(options), std::move(run)) {
    REQUIRE(run_.wait_for_out("listening on 127.0.0.1:"));
    const std::string out = run_.out();
    const auto at = out.find("127.0.0.1:");
    place_ = out.substr(at, out.find_first_of(" \n", at) - at);
  }

  Run& run() { return run_; }
  [[nodiscard]] const std::string& place() const { return place_; }
  [[nodiscard]] std::string port() const { return place_.substr(place_.find(':') + 1); }

  /// One node of two of a job.
  [[nodiscard]] Words node(const std::string& job, const std::string& script, const Words& more = {}) const {
    Words words = {"--nnodes=2", "-n", "1", "--rdzv-id=" + job, "--rdzv-endpoint=" + place_, "--rdzv-conf=is_host=0"};
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), {"--", "sh", "-c", script});
    return command(words);
  }

 private:
  static Words with(const Words& options) {
    // A machine that is busy with other tests is not to be taken for a lost one.
    Words words = {"rendezvous", "--port=0", "--bind=127.0.0.1", "--heartbeat-interval=10s"};
    words.insert(words.end(), options.begin(), options.end());
    return command(words);
  }
  Run run_;
  std::string place_;
};

}  // namespace

TEST_CASE("Two jobs at a time meet at one coordinator, which outlives them") {
  Coordinator coordinator({"--stats"});
  const std::string script = "echo $TORCHELASTIC_RUN_ID: rank $RANK of $WORLD_SIZE";
  Run a0(coordinator.node("a", script), knowing(secret)), b0(coordinator.node("b", script), knowing(secret));
  Run a1(coordinator.node("a", script), knowing(secret)), b1(coordinator.node("b", script), knowing(secret));
  std::string of_a, of_b;
  for (Run* run : {&a0, &a1, &b0, &b1}) {
    const auto outcome = run->wait();
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 0);
    (run == &a0 || run == &a1 ? of_a : of_b) += outcome.out;
  }
  for (const std::string rank : {"0", "1"}) {
    CHECK(has(of_a, "a: rank " + rank + " of 2"));
    CHECK(has(of_b, "b: rank " + rank + " of 2"));
  }
  coordinator.run().signal(SIGUSR1);
  REQUIRE(coordinator.run().wait_for_out("joined 4\n"));
  CHECK(has(coordinator.run().out(), "jobs 0\nagents 0\n"));
  coordinator.run().signal(SIGTERM);
  CHECK(coordinator.run().wait().code() == 0);
}

TEST_CASE("A coordinator that cannot begin says why") {
  RunOptions without;
  without.env = {{"XDG_CONFIG_HOME", "/proc/no-such-folder"}, {"DDRUN_SECRET", ""}};
  const auto none = finish(command({"rendezvous", "--port=0"}), without);
  DDRUN_SHOW(none);
  CHECK(none.code() == 2);
  CHECK(has(none.err, "--secret-file"));

  Coordinator coordinator;
  const auto taken =
      finish(command({"rendezvous", "--bind=127.0.0.1", "--port=" + coordinator.port()}), knowing(secret));
  CHECK(taken.code() == 125);
  CHECK(has(taken.err, "port " + coordinator.port() + " is in use"));
  CHECK(finish(command({"rendezvous", "--bind=nowhere"}), knowing(secret)).code() == 2);
  CHECK(has(finish(command({"rendezvous", "--help"})).out, "Usage: ddrun rendezvous"));
}

TEST_CASE("Without a secret only if that is said") {
  RunOptions without;
  without.env = {{"DDRUN_SECRET", ""}};
  Coordinator coordinator({"--insecure"}, without);
  Run one(coordinator.node("job", "exit 0", {"--insecure"}), without);
  Run other(coordinator.node("job", "exit 0", {"--insecure"}), without);
  CHECK(one.wait().code() == 0);
  CHECK(other.wait().code() == 0);
}

TEST_CASE("A stderr that takes nothing does not keep a coordinator from its agents") {
  FullPipe full;
  RunOptions options = knowing(secret);
  options.in_child = [&full] { ::dup2(full.write_end(), STDERR_FILENO); };
  Coordinator coordinator({}, options);
  RawClient stranger(static_cast<std::uint16_t>(std::stoi(coordinator.port())));
  REQUIRE(stranger.send("GET / HTTP/1.0\r\n\r\n"));
  stranger.receive(4096);  // until it is hung up on
  Run one(coordinator.node("job", "exit 0", {"--join-timeout=15s"}), knowing(secret));
  Run other(coordinator.node("job", "exit 0", {"--join-timeout=15s"}), knowing(secret));
  for (Run* run : {&one, &other}) {
    const auto outcome = run->wait();
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 0);
  }
  CHECK(full.wait_for("ddrun: warning: "));
  coordinator.run().signal(SIGTERM);
  CHECK(coordinator.run().wait().code() == 0);
}
