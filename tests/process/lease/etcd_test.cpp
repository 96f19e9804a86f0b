// Leader election by a real etcd of three members, with faults of members and leaders.

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "by_etcd.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "etcd_cluster.hpp"

using namespace ddrun;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

MakeLease in(const EtcdCluster& cluster, const std::string& job = "a job/ü%", Milliseconds lives = ttl) {
  return by_etcd({cluster.endpoints()}, {job, lives});
}

std::chrono::milliseconds since(Deadline begin) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
}

/// Adds that many candidates.
void add(Candidates& candidates, const EtcdCluster& cluster, int number) {
  for (int i = 0; i < number; ++i) {
    const auto name = concat("n", i, ":1");
    candidates.add(name, in(cluster)).lease->campaign(name);
  }
}

/// Waits until one leads and all agree; returns it.
Candidate& elected(Candidates& candidates) {
  REQUIRE(candidates.run_until([&] { return candidates.agreed(); }));
  return *candidates.leader();
}

/// The program of `job` without ddrun. It leads after tick 1.
class Program {
 public:
  Program(const EtcdCluster& cluster, std::string_view job, Milliseconds lives) {
    REQUIRE(::mkfifo(directory_.file("in").c_str(), 0600) == 0);
    std::vector<std::string> words{"sh", "-c", concat("exec \"$@\" <", directory_.file("in")), "sh"};
    const auto argv = lease::etcd_command({cluster.endpoints()});
    words.insert(words.end(), argv.begin(), argv.end());
    run_ = std::make_unique<Run>(words);
    in_.reset(::open(directory_.file("in").c_str(), O_WRONLY | O_CLOEXEC));
    say(concat("job 1 ", lives.count(), " ", job));
    say("campaign a");
    tick();
  }
  void say(const std::string& line) const { REQUIRE(write_all(in_.get(), concat(line, "\n").data(), line.size() + 1)); }
  /// Returns when it is done.
  void tick() {
    say(concat("tick ", ++last_tick_));
    REQUIRE(run_->wait_for_out(concat("done ", last_tick_, "\n")));
  }
  /// Of `etcdctl watch`; 0: it does not run.
  [[nodiscard]] pid_t watch() const {
    for (const pid_t pid : run_->living()) {
      if (read_file(concat("/proc/", pid, "/cmdline")) == std::string("etcdctl\0watch\0-i\0", 17)) return pid;
    }
    return 0;
  }
  [[nodiscard]] Run& run() const { return *run_; }

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<Run> run_;
  UniqueFd in_;
  int last_tick_ = 0;
};

}  // namespace

TEST_CASE("one of many is elected, all are notified, and it stays, and another job has its own leader") {
  const EtcdCluster cluster;
  Candidates another;
  Candidate& stranger = another.add("stranger", in(cluster, "another job"));
  stranger.lease->campaign("stranger:1");
  (void)elected(another);

  Candidates candidates;
  Candidate& observer = candidates.add("observer", in(cluster));
  add(candidates, cluster, 6);
  Candidate& leader = elected(candidates);
  CHECK(stranger.is_leader());
  CHECK(observer.follows(leader.name()));
  CHECK(leader.log.size() == 1);

  // Beyond its time to live: it is renewed.
  candidates.run_for(2 * ttl);
  CHECK(candidates.leader() == &leader);
  for (const auto& one : candidates.all()) CHECK(one->log.size() == 1);
}

TEST_CASE("a leader that crashes is followed within its time to live and three seconds") {
  const EtcdCluster cluster;
  Candidates candidates;
  add(candidates, cluster, 6);
  Candidate& first = elected(candidates);
  const auto term = first.leader->term;
  const auto begin = Clock::now();
  first.crash();
  REQUIRE(candidates.run_until([&] { return candidates.agreed(); }));
  CHECK(since(begin) <= (ttl + 3s) * slowness);
  CHECK(candidates.leader()->leader->term > term);
}

TEST_CASE("resign and campaign during an attempt leave no lease behind") {
  const EtcdCluster cluster(1);
  Candidates candidates;
  // A lease without renewal would block it beyond the test's timeout.
  Candidate& one = candidates.add("one", in(cluster, "job", 60s));
  one.lease->campaign("one:1");
  (void)elected(candidates);
  std::optional<Result<void>> resigned;
  one.lease->resign(one.into(resigned));
  REQUIRE(candidates.run_until([&] { return resigned.has_value(); }));
  candidates.run_for(500ms);
  // Two attempts are in flight at once, and answered one after the other.
  cluster.stop(0);
  one.lease->campaign("one:1");
  candidates.run_for(500ms);
  one.lease->resign({});
  one.lease->campaign("one:1");
  candidates.run_for(500ms);
  cluster.resume(0);
  REQUIRE(candidates.run_until([&] { return one.is_leader(); }, 20s));
  candidates.run_for(2s);
  CHECK(one.is_leader());
}

TEST_CASE("a lease that is taken away is lost at once") {
  const EtcdCluster cluster;
  Candidates candidates;
  add(candidates, cluster, 1);
  Candidate& leader = elected(candidates);
  const auto term = leader.leader->term;
  REQUIRE(cluster.etcdctl({"del", "/ddrun/a%20job%2F%C3%BC%25/leader"}) == "1\n");
  REQUIRE(candidates.run_until([&] { return leader.has_logged("lost: the lease is lost: "); }));
  CHECK(leader.has_logged("it is gone"));
  REQUIRE(candidates.run_until([&] { return candidates.agreed(); }));
  CHECK(leader.leader->term > term);

  // The same with its lease.
  const auto leases = split(cluster.etcdctl({"lease", "list"}), '\n');
  for (const auto& id : leases) {
    if (id.find(' ') == std::string::npos && !id.empty()) cluster.etcdctl({"lease", "revoke", id});
  }
  const auto second = leader.leader ? leader.leader->term : 0;
  REQUIRE(candidates.run_until([&] { return leader.is_leader() && leader.leader && leader.leader->term > second; }));
}

TEST_CASE("all of etcd away for longer than a lease lives: the leader steps down in time, and there is one again") {
  const EtcdCluster cluster;
  Candidates candidates;
  add(candidates, cluster, 4);
  Candidate& first = elected(candidates);
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < cluster.size(); ++i) cluster.stop(i);
  REQUIRE(candidates.run_until([&] { return first.has_logged("lost: "); }));
  CHECK(since(begin) < ttl + 100ms * slowness);
  CHECK_FALSE(first.is_leader());
  CHECK(first.has_logged("could not renew it within 1.8 s"));
  candidates.run_for(2 * ttl);
  CHECK(candidates.leader() == nullptr);
  // Reported once, to each.
  for (const auto& one : candidates.all()) {
    CHECK(std::count_if(one->log.begin(), one->log.end(), [](const std::string& line) {
            return line.starts_with("status: etcd cannot be asked: 127.0.0.1:");
          }) == 1);
  }
  for (std::size_t i = 0; i < cluster.size(); ++i) cluster.resume(i);
  REQUIRE(candidates.run_until([&] { return candidates.agreed(); }, 60s));
  CHECK(candidates.run_until([&] { return first.has_logged("status: etcd answers again"); }));
}

TEST_CASE("members of etcd and leaders are suspended at random: never two lead", "[full]") {
  const EtcdCluster cluster;
  Candidates candidates;
  add(candidates, cluster, 5);
  (void)elected(candidates);
  std::minstd_rand random{Catch::rngSeed()};
  std::vector<bool> stopped(cluster.size());
  for (int step = 0; step < 12; ++step) {
    const std::size_t member = random() % cluster.size();
    stopped[member] ? cluster.resume(member) : cluster.stop(member);
    stopped[member] = !stopped[member];
    Candidate& one = *candidates.all()[random() % candidates.all().size()];
    one.frozen = !one.frozen;
    candidates.run_for(Milliseconds(random() % static_cast<unsigned>(ttl.count())));
  }
  for (std::size_t i = 0; i < cluster.size(); ++i) cluster.resume(i);
  for (const auto& one : candidates.all()) one->frozen = false;
  REQUIRE(candidates.run_until([&] { return candidates.agreed(); }, 60s));
}

TEST_CASE("after a verdict there is no leader until it is deleted") {
  const EtcdCluster cluster;
  Candidates candidates;
  add(candidates, cluster, 3);
  Candidate& leader = elected(candidates);
  std::optional<Result<void>> recorded;
  const std::string text = "exit 0\n\x01 ü " + std::string(10'000, 'y');
  leader.lease->record_verdict(text, leader.into(recorded));
  REQUIRE(candidates.run_until([&] {
    return recorded && std::all_of(candidates.all().begin(), candidates.all().end(),
                                   [&](const auto& one) { return one->verdict == text; });
  }));
  CHECK(recorded->has_value());

  // It expires neither with the leader's lease, nor soon.
  leader.lease->resign({});
  Candidate& late = candidates.add("late", in(cluster));
  late.lease->campaign("late:1");
  candidates.run_for(2 * ttl);
  CHECK(late.verdict == text);
  CHECK(candidates.leader() == nullptr);
  int long_ones = 0;
  for (const auto& id : split(cluster.etcdctl({"lease", "list"}), '\n')) {
    if (id.empty() || id.find(' ') != std::string::npos) continue;
    long_ones += cluster.etcdctl({"lease", "timetolive", id}).find("granted with TTL(86400s)") != std::string::npos;
  }
  CHECK(long_ones == 1);
  REQUIRE(cluster.etcdctl({"del", "--prefix", "/ddrun/"}) == "1\n");
  REQUIRE(candidates.run_until([&] { return candidates.agreed(); }));
  CHECK(candidates.leader() != &leader);
}

TEST_CASE("a verdict that reaches etcd after another leader was elected is not recorded") {
  const EtcdCluster cluster(1);
  Candidates candidates;
  add(candidates, cluster, 1);
  Candidate& first = elected(candidates);
  // The key is another's already, and it has not been notified yet.
  first.frozen = true;
  const std::string key = "/ddrun/a%20job%2F%C3%BC%25/leader";
  REQUIRE(cluster.etcdctl({"del", key}) == "1\n");
  REQUIRE(cluster.etcdctl({"put", key, "usurper:1"}) == "OK\n");
  REQUIRE(first.is_leader());
  std::optional<Result<void>> recorded;
  first.lease->record_verdict("exit 0", first.into(recorded));
  first.frozen = false;
  REQUIRE(candidates.run_until([&] { return recorded.has_value(); }));
  CHECK_FALSE(recorded->has_value());
  CHECK(cluster.etcdctl({"get", "/ddrun/a%20job%2F%C3%BC%25/verdict"}).empty());
}

TEST_CASE("recording a verdict that is already recorded succeeds if it is the same") {
  const bool same = GENERATE(true, false);
  const bool reported = GENERATE(true, false);
  const EtcdCluster cluster(1);
  Candidates candidates;
  // Not lost while the processor is busy and its thread frozen.
  candidates.add("1", in(cluster, "a job/ü%", Milliseconds{10'000})).lease->campaign("1:1");
  Candidate& leader = elected(candidates);
  // The watch's first answer reports what is in etcd; later only a request does, as the one that is to record a
  // verdict.
  if (!reported) candidates.run_for(ttl);
  leader.frozen = true;
  REQUIRE(cluster.etcdctl({"put", "/ddrun/a%20job%2F%C3%BC%25/verdict", same ? "exit%200" : "exit%201"}) == "OK\n");
  std::optional<Result<void>> recorded;
  leader.lease->record_verdict("exit 0", leader.into(recorded));
  leader.frozen = false;
  REQUIRE(candidates.run_until([&] { return recorded.has_value(); }));
  CHECK(recorded->has_value() == same);
  if (!same) CHECK(recorded->error().code == Errc::invalid_argument);
}

TEST_CASE("a verdict is recorded that is the first line after the watch has ended") {
  const EtcdCluster cluster(1);
  Program program(cluster, "job", 10s);
  REQUIRE(wait_until([&] { return program.watch() != 0; }));
  const bool is_long = GENERATE(false, true);
  const std::string verdict = is_long ? std::string(9'000, 'v') : "v";
  REQUIRE(program.run().signal(program.watch(), SIGKILL));
  REQUIRE(wait_until([&] { return program.watch() == 0; }));
  program.tick();  // finds that it has ended
  program.say("verdict " + verdict);
  REQUIRE(program.run().wait_for_out("recorded\n"));
  CHECK(cluster.etcdctl({"get", "--print-value-only", "/ddrun/job/verdict"}) == verdict + "\n");
  // As ddrun does without the answer.
  program.say("verdict " + verdict);
  CHECK(program.run().wait_for_out("recorded\nverdict"));
}

TEST_CASE("a program that is killed while it records leaves one verdict or none", "[full]") {
  const EtcdCluster cluster(1);
  std::minstd_rand random{Catch::rngSeed()};
  for (int i = 0; i < 20; ++i) {
    const std::string job = concat("killed", i);
    {
      const Program first(cluster, job, ttl);
      first.say("verdict first");
      wait_until([] { return false; }, std::chrono::milliseconds(random() % 200));
      ::kill(-first.run().pid(), SIGKILL);
    }
    const auto verdict = [&] {
      return cluster.etcdctl({"get", "--print-value-only", concat("/ddrun/", job, "/verdict")});
    };
    const std::string left = verdict();
    CAPTURE(i, left);
    CHECK((left.empty() || left == "first\n"));
    // Its lease expires, and the next one records, unless there is a verdict.
    Program second(cluster, job, ttl);
    REQUIRE(wait_until([&] {
      second.tick();
      wait_until([] { return false; }, 100ms);
      return second.run().out().find(left.empty() ? "mine " : "verdict first\n") != std::string::npos;
    }));
    second.say("verdict second");
    REQUIRE(second.run().wait_for_out(left.empty() ? "recorded\n" : "refused "));
    CHECK(verdict() == (left.empty() ? "second\n" : "first\n"));
  }
}

TEST_CASE("after etcd was away the watch stays again") {
  const EtcdCluster cluster(1);
  Program program(cluster, "job", ttl);
  cluster.stop(0);
  for (int i = 0; i < 4; ++i) program.tick();
  cluster.resume(0);
  int kept = 0;
  pid_t last = 0;
  for (int i = 0; i < 30 && kept < 7; ++i) {  // ticks
    program.tick();
    wait_until([] { return false; }, 300ms);  // as ddrun does
    kept = program.watch() == last && last != 0 ? kept + 1 : 0;
    last = program.watch();
  }
  CHECK(kept == 7);
}

TEST_CASE("etcd without space is named until it has some, and then there is a leader") {
  const EtcdCluster cluster(EtcdCluster::Options{1, 100'000, "", "", ""});
  const auto fill = [&] {
    REQUIRE(wait_until([&, i = 0]() mutable {
      cluster.etcdctl({"put", concat("fill", ++i), std::string(60'000, 'x')});
      return cluster.etcdctl({"alarm", "list"}).find("NOSPACE") != std::string::npos;
    }));
  };
  const bool in_the_middle = GENERATE(false, true);
  Candidates candidates;
  if (!in_the_middle) fill();
  add(candidates, cluster, 1);
  Candidate& one = *candidates.all()[0];
  if (in_the_middle) {
    (void)elected(candidates);
    fill();
    std::optional<Result<void>> recorded;
    one.lease->record_verdict("exit 0", one.into(recorded));
    REQUIRE(candidates.run_until([&] { return recorded.has_value(); }));
    REQUIRE_FALSE(recorded->has_value());
    CHECK_THAT(recorded->error().message, test::contains("etcdserver: mvcc: database space exceeded"));
  }
  REQUIRE(candidates.run_until([&] { return one.has_logged("etcdserver: mvcc: database space exceeded"); }));
  candidates.run_for(2 * ttl);
  CHECK_FALSE(one.has_logged("etcd answers again"));
  cluster.etcdctl({"del", "--prefix", "fill"});
  const auto status = cluster.etcdctl({"get", "x", "-w", "fields"});
  const auto revision = status.substr(status.find("\"Revision\" : ") + 13);
  cluster.etcdctl({"compact", revision.substr(0, revision.find('\n'))});
  cluster.etcdctl({"defrag"});
  cluster.etcdctl({"alarm", "disarm"});
  std::optional<Result<void>> recorded;
  REQUIRE(candidates.run_until([&] { return candidates.agreed(); }));
  one.lease->record_verdict("exit 0", one.into(recorded));
  REQUIRE(candidates.run_until([&] { return recorded.has_value(); }));
  CHECK(recorded->has_value());
  CHECK(one.has_logged("etcd answers again"));
}

TEST_CASE("a first etcdctl that does not answer is started again") {
  const EtcdCluster cluster(1);
  const TemporaryDirectory directory;
  // Its pipe stays open after a kill, as that of a program that waits for its disk.
  directory.file("etcdctl", R"(#!/bin/sh
PATH=${PATH#*:}
if [ "$1" != watch ] && mkdir "$0.slow" 2>/dev/null; then sleep 100; fi
exec etcdctl "$@"
)",
                 0755);
  const auto argv = first_in_path(directory, lease::etcd_command({cluster.endpoints()}));
  Candidates candidates;
  Candidate& one = candidates.add("one", by_program(argv, {"job", ttl}));
  one.lease->campaign("one:1");
  REQUIRE(candidates.run_until([&] { return one.is_leader(); }));
  CHECK(one.has_logged("status: the lease's program is started again: env has not answered for 4.0 s"));
}

TEST_CASE("the member that is asked is suspended or killed, and then the leader is lost") {
  constexpr Milliseconds lives{4'000};
  EtcdCluster cluster;
  Candidates candidates;
  for (const auto* name : {"a:1", "b:1", "c:1"}) {
    candidates.add(name, in(cluster, "job", lives)).lease->campaign(name);
  }
  Candidate& first = elected(candidates);
  const bool kills = GENERATE(false, true);
  kills ? cluster.kill(0) : cluster.stop(0);
  candidates.run_for(lives + 2s);
  CHECK(candidates.leader() == &first);
  CHECK_FALSE(first.has_logged("lost"));
  const auto begin = Clock::now();
  first.crash();
  REQUIRE(candidates.run_until([&] { return candidates.agreed(); }));
  CHECK(since(begin) <= (lives + 3s) * slowness);
}

TEST_CASE("a tick where nothing has changed starts one etcdctl if it leads, and none if it does not") {
  const EtcdCluster cluster(1);
  const TemporaryDirectory directory;
  const std::string calls = directory.file("calls");
  directory.file("etcdctl", concat("#!/bin/sh\necho \"$@\" >>", calls, "; PATH=${PATH#*:}; exec etcdctl \"$@\"\n"),
                 0755);
  const auto argv = first_in_path(directory, lease::etcd_command({cluster.endpoints()}));
  // So many ticks that one without a check would be seen.
  const auto calls_in_a_while = [&](Candidates& candidates) {
    candidates.run_for(ttl);
    write_file(calls, "");
    candidates.run_for(2 * ttl);
    return split(read_file(calls), '\n');
  };
  Candidates candidates;
  Candidate& leader = candidates.add("leader", by_program(argv, {"job", ttl}));
  leader.lease->campaign("leader:1");
  (void)elected(candidates);
  const auto lines = calls_in_a_while(candidates);
  const auto renewals = std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("lease keep-alive --once") != std::string::npos;
  });
  CHECK(renewals >= 4);
  // A watch that answers later than the next tick, on a busy machine, is checked by a request.
  CHECK(2 * (static_cast<std::ptrdiff_t>(lines.size()) - 1 - renewals) < renewals);
  leader.lease->resign({});
  Candidate& other = candidates.add("other", in(cluster, "job"));
  other.lease->campaign("other:1");
  REQUIRE(candidates.run_until([&] { return leader.follows("other:1"); }));
  CHECK(2 * (static_cast<std::ptrdiff_t>(calls_in_a_while(candidates).size()) - 1) < renewals);
}

TEST_CASE("signals to the whole job do not end the program") {
  const EtcdCluster cluster(1);
  pid_t program = 0;
  Candidates candidates;
  Candidate& one = candidates.add(
      "one", by_program(lease::etcd_command({cluster.endpoints()}), {"job", ttl}, [&](pid_t pid) { program = pid; }));
  one.lease->campaign("one:1");
  (void)elected(candidates);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2}) REQUIRE(::kill(-program, signal) == 0);
  candidates.run_for(2 * ttl);
  CHECK(one.is_leader());
  CHECK(one.log.size() == 1);
}

TEST_CASE("a machine whose ddrun is killed with -9 is followed at once, and nothing is left running") {
  const EtcdCluster cluster;
  const auto make = in(cluster, "job", 60s);
  const std::string tag = concat("DDRUN_TEST_KILLED=", ::getpid());
  struct Child {
    const pid_t pid = ::fork();
    ~Child() {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  };
  auto first = std::make_unique<Child>();
  if (first->pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::putenv(const_cast<char*>(tag.c_str()));
    Candidate candidate("first", make);
    candidate.lease->campaign("first:1");
    candidate.io.run();
    ::_exit(1);
  }
  Candidates candidates;
  Candidate& second = candidates.add("second", make);
  REQUIRE(candidates.run_until([&] { return second.follows("first:1"); }));
  second.lease->campaign("second:1");
  CHECK_FALSE(processes_with(tag).empty());
  const bool etcd_is_away = GENERATE(false, true);
  // The open watch reads no input then.
  for (std::size_t i = 0; etcd_is_away && i < cluster.size(); ++i) cluster.stop(i);
  first.reset();
  if (!etcd_is_away) REQUIRE(candidates.run_until([&] { return second.is_leader(); }, 20s));
  // Requests of 3 s each may be on their way.
  CHECK(wait_until([&] { return processes_with(tag).empty(); }, 60s));
}
