// Leases by a program: its lines, its ends, and the examples in configs/.

#include <signal.h>
#include <stdlib.h>

#include <boost/asio/executor_work_guard.hpp>

#include "candidates.hpp"
#include "ddrun/lease/etcd.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/test/ports.hpp"
#include "etcd_cluster.hpp"

using namespace ddrun;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

/// A shell script that is given the words of a line as $what, $a, $b, $c.
MakeLease by_script(const std::string& cases) {
  return by_program(
      {"sh", "-c", concat("while read -r what a b c; do case $what in ", cases, "\nesac; done; echo bye >&2")});
}

Candidate& elected(Candidates& candidates) {
  REQUIRE(candidates.run_until([&] { return candidates.agreed(); }));
  return *candidates.leader();
}

/// Common to all engines.
void check_engine(const MakeLease& make) {
  Candidates candidates;
  Candidate& observer = candidates.add("observer", make);
  for (int i = 0; i < 3; ++i) {
    const auto name = concat("n", i, ":1 ü");
    candidates.add(name, make).lease->campaign(name);
  }
  Candidate* first = &elected(candidates);
  const auto term = first->leader->term;
  CHECK(observer.follows(first->name()));
  candidates.run_for(ttl + 500ms);
  CHECK(candidates.leader() == first);
  CHECK(first->log.size() == 1);

  // Suspended: by its own clock it has lost the lease before another leads.
  first->frozen = true;
  REQUIRE(candidates.run_until([&] { return candidates.leader() != nullptr && candidates.leader() != first; }));
  first->frozen = false;
  REQUIRE(candidates.run_until([&] { return candidates.agreed(); }));
  CHECK(first->has_logged("lost: "));
  CHECK(candidates.leader()->leader->term > term);

  // It resigns, and another leads.
  Candidate* second = candidates.leader();
  std::optional<Result<void>> resigned, recorded, wrong;
  second->lease->resign(second->into(resigned));
  REQUIRE(candidates.run_until([&] { return resigned && candidates.agreed(); }));
  CHECK(resigned->has_value());
  CHECK(candidates.leader() != second);

  // Only the leader records, once; then there is no leader.
  Candidate* third = candidates.leader();
  second->lease->record_verdict("mine", second->into(wrong));
  third->lease->record_verdict("exit 0\nü % \"", third->into(recorded));
  REQUIRE(candidates.run_until([&] { return wrong && recorded && observer.verdict && second->verdict; }));
  CHECK(wrong->error().code == Errc::cancelled);
  REQUIRE(recorded->has_value());
  CHECK(observer.verdict == "exit 0\nü % \"");
  // A repetition without knowledge of the record succeeds.
  recorded.reset();
  wrong.reset();
  third->lease->record_verdict("exit 0\nü % \"", third->into(recorded));
  third->lease->record_verdict("exit 1", third->into(wrong));
  REQUIRE(candidates.run_until([&] { return wrong && recorded; }));
  CHECK(recorded->has_value());
  CHECK(wrong->error().code == Errc::invalid_argument);
  third->lease->resign({});
  second->lease->campaign("again:1");
  candidates.run_for(ttl + 500ms);
  CHECK(candidates.leader() == nullptr);
}

/// A leader whose program is killed cannot give its lease back: it is deposed before the expiry; likewise if all of a
/// machine ends at once.
void check_depose(const std::vector<std::string>& argv) {
  const lease::LeaseOptions long_one{"deposed", 60s};
  pid_t program = 0;
  Candidates candidates;
  Candidate& first = candidates.add("first", by_program(argv, long_one, [&](pid_t pid) { program = pid; }));
  first.lease->campaign("first:1");
  const auto term = elected(candidates).leader->term;
  Candidate& next = candidates.add("next", by_program(argv, long_one));
  next.lease->campaign("next:1");
  REQUIRE(candidates.run_until([&] { return next.follows("first:1"); }));
  next.lease->depose(term + 1);
  REQUIRE(::kill(-program, SIGKILL) == 0);
  REQUIRE(candidates.run_until([&] { return first.has_logged("lost: "); }));
  next.lease->depose(term);
  REQUIRE(candidates.run_until([&] { return candidates.leader() != nullptr && candidates.leader()->leader; }));
  CHECK(candidates.leader()->leader->term > term);
}

/// `argv` with a wrapped client: the response of the first request that has `words`, a pattern, is lost.
std::vector<std::string> lose_response(const TemporaryDirectory& directory, const std::string& client,
                                       const std::string& words, std::vector<std::string> argv) {
  directory.file(
      client, concat("#!/bin/sh\nPATH=${PATH#*:} words=", shell_quote(concat('*', words, '*')), " client=", client, R"(
case $* in *watch*) exec $client "$@" ;; esac
input=$(cat; echo .)
say() { printf %s "${input%.}"; }
# shellcheck disable=SC2254 # a pattern
case "$* $input" in $words)
  if [ ! -e "$0.lost" ]; then
    : >"$0.lost"
    say | $client "$@" >/dev/null
    exit 28
  fi ;;
esac
say | $client "$@"
)"),
      0755);
  return first_in_path(directory, std::move(argv));
}

/// Records until it succeeds, as a coordinator does; returns the number of attempts.
int record_until_recorded(Candidates& candidates, Candidate& leader, const std::string& text) {
  const auto end = Clock::now() + 20s;
  for (int attempts = 1; Clock::now() < end; ++attempts) {
    std::optional<Result<void>> recorded;
    leader.lease->record_verdict(text, leader.into(recorded));
    REQUIRE(candidates.run_until([&] { return recorded.has_value(); }));
    if (*recorded) return attempts;
    CAPTURE(recorded->error().message);
    CHECK(recorded->error().code == Errc::unavailable);
    candidates.run_for(200ms);
  }
  return 0;
}

/// Recording the same verdict again succeeds, another one fails, directly with an example's lines.
void check_rerecord(const std::vector<std::string>& argv) {
  std::vector<std::string> words{
      "sh", "-c",
      R"(printf '%s\n' 'job 1 6000 again' 'campaign a' 'tick 1' 'verdict x%200' 'verdict x%200' 'verdict y' |
  "$@" | grep -E '^(mine|done|recorded|refused)')",
      "sh"};
  words.insert(words.end(), argv.begin(), argv.end());
  CHECK_THAT(Run(words).wait().out,
             Catch::Matchers::Matches("mine [0-9]+ 1\ndone 1\nrecorded\nrecorded\nrefused [^\n]+\n"));
}

/// The engine has the verdict, and its leader does not know. `attempts`: to record it, of ddrun.
void check_lost_response(const std::vector<std::string>& argv, int attempts) {
  Candidates candidates;
  Candidate& one = candidates.add("one", by_program(argv, {"lost", 6s}));
  one.lease->campaign("one:1");
  CHECK(record_until_recorded(candidates, elected(candidates), "exit 0\nwell") == attempts);
  CHECK(one.verdict == "exit 0\nwell");
  std::optional<Result<void>> another;
  one.lease->record_verdict("exit 1", one.into(another));
  REQUIRE(candidates.run_until([&] { return another.has_value(); }));
  CHECK(another->error().code == Errc::invalid_argument);
}

}  // namespace

TEST_CASE("a program's lease is renewed, expires by the clock without renewal, and is acquired again with a new term") {
  Candidates candidates;
  TemporaryDirectory directory;
  const auto mute = directory.file("mute");
  Candidate& one = candidates.add(
      "one", by_script(concat("tick) [ -e ", mute,
                              " ] || [ -z \"$address\" ] || echo mine $term $a; echo done $a;; "
                              "campaign) address=$a; term=$((${term:-6} + 1));; resign) address=; echo resigned;;")));
  one.lease->campaign("one:1");
  REQUIRE(candidates.run_until([&] { return one.is_leader() && one.leader; }));
  CHECK(one.leader == lease::Leader{7, "one:1", true});
  candidates.run_for(ttl + 500ms);
  CHECK(one.is_leader());
  write_file(mute, "");
  const auto begin = Clock::now();
  REQUIRE(candidates.run_until([&] { return one.has_logged("lost: "); }));
  CHECK(Clock::now() - begin < ttl + 100ms);
  CHECK(one.has_logged("lost: the lease is lost: sh could not renew it within 1.8 s"));
  ::unlink(mute.c_str());
  REQUIRE(candidates.run_until([&] { return one.is_leader() && one.leader; }));
  CHECK(one.leader->term == 8);
}

TEST_CASE(
    "a program that exits or prints invalid lines loses the lease at once, with its last line, and is restarted") {
  struct Way {
    const char* at_resign;  // its reaction to the file
    const char* output;
  };
  const Way way =
      GENERATE(Way{"echo 'no token: ask your admin' >&2; exit 3", "exited with code 3: no token: ask your admin"},
               Way{"echo mine 7", "says what is not in the protocol: 'mine 7'"},
               Way{"echo done 4000", "is done with tick 4000, which is not due"},
               Way{"echo mine 7 4000", "speaks of tick 4000, which is not one of the last"},
               Way{"sleep 60", "has not answered for 4"});
  CAPTURE(way.output);
  TemporaryDirectory directory;
  const auto bad = directory.file("bad");
  Candidates candidates;
  Candidate& one = candidates.add(
      "one", by_script(concat("tick) if [ -e ", bad, " ]; then rm ", bad, "; ", way.at_resign,
                              "; fi; [ -z \"$address\" ] || echo mine $term $a; echo done $a;; campaign) address=$a; "
                              "term=$(($(cat ",
                              directory.file("term"), " 2>/dev/null || echo 6) + 1)); echo $term >",
                              directory.file("term"), ";; resign) address=; echo resigned;;")));
  one.lease->campaign("one:1");
  REQUIRE(candidates.run_until([&] { return one.is_leader() && one.leader; }));
  write_file(bad, "");
  REQUIRE(candidates.run_until([&] { return one.has_logged("status: the lease's program is started again: "); }));
  CHECK(one.has_logged("lost: the lease is lost: "));
  CHECK(one.has_logged(way.output));
  REQUIRE(candidates.run_until([&] { return one.is_leader() && one.leader; }));
  CHECK(one.leader->term > 7);
}

TEST_CASE("a program that never works is reported once") {
  struct Bad {
    std::vector<std::string> argv;
    const char* output;
  };
  const auto bad = GENERATE(Bad{{"/no/such/program"}, "cannot start /no/such/program: No such file or directory"},
                            Bad{{"sh", "-c", "echo 'usage: me' >&2; exit 2"}, "sh exited with code 2: usage: me"},
                            Bad{{"sh", "-c", "echo hello; sleep 60"}, "'hello'"});
  Candidates candidates;
  Candidate& one = candidates.add("one", by_program(bad.argv));
  one.lease->campaign("one:1");
  REQUIRE(candidates.run_until([&] { return one.unusable.has_value(); }));
  CHECK_THAT(*one.unusable,
             Catch::Matchers::StartsWith("the lease's program does not work: ") && test::contains(bad.output));
  candidates.run_for(1s);
  CHECK(one.log.size() == 1);
}

TEST_CASE("the program for etcd is such a program") {
  const EtcdCluster cluster(1);
  const auto argv = lease::etcd_command({cluster.endpoints()});
  check_engine(by_program(argv));
  check_depose(argv);
  TemporaryDirectory etcdctl;
  check_lost_response(lose_response(etcdctl, "etcdctl", "put * /ddrun/lost/verdict ", argv), 1);
  check_rerecord(argv);

  // Foreign content is no line of the program, whatever it is.
  for (const auto* foreign : {"two words", "a\nnone", "\"Type\" : PUT", "", "ü", "x\\"}) {
    REQUIRE(cluster.etcdctl({"put", "/ddrun/odd/leader", foreign}) == "OK\n");
    std::vector<std::string> words{"sh", "-c", R"(printf '%s\n' 'job 1 6000 odd' 'tick 1' | "$@")", "sh"};
    words.insert(words.end(), argv.begin(), argv.end());
    const std::string state = "leader [0-9]+ %\ntrouble /ddrun/odd/leader in etcd is another program's\n";
    CHECK_THAT(Run(words).wait().out, Catch::Matchers::Matches(concat("(", state, ")+done 1\n(", state, ")*")));
  }
}

TEST_CASE("configs/lease/kubernetes.sh is such a program") {
  if (Run({"sh", "-c", "command -v curl"}).wait().code() != 0) skip("curl not installed");
  TemporaryDirectory account;
  account.file("token", "a.b-c");
  account.file("namespace", "default");
  account.file("ca.crt", "");
  const int port = free_port();
  const Run server({"python3", DDRUN_FAKE_KUBERNETES, std::to_string(port), "a.b-c"});
  const auto api = concat("http://127.0.0.1:", port);
  REQUIRE(wait_until([&] { return Run({"curl", "-s", api}).wait().code() == 0; }));
  std::vector<std::string> argv{"env", concat("DDRUN_KUBERNETES_API=", api),
                                concat("DDRUN_SERVICE_ACCOUNT=", account.path()), DDRUN_CONFIGS "/lease/kubernetes.sh",
                                "job-1"};
  check_engine(by_program(argv));
  argv.back() = "job-2";
  check_depose(argv);
  argv.back() = "job-lost";
  TemporaryDirectory curl;
  check_lost_response(lose_response(curl, "curl", R"("ddrun/verdict":)", argv), 2);
  argv.back() = "job-again";
  check_rerecord(argv);

  // The holder's time to live counts: by its own the other one would lead after two seconds.
  const auto line = [&](const char* lines) {
    return Run({"sh", "-c", concat("(", lines, ") | \"$@\""), "sh", argv[0], argv[1], argv[2], argv[3], "job-4"});
  };
  Run holder = line("printf '%s\\n' 'job 1 60000 job' 'campaign a' 'tick 1'; sleep 1000");
  REQUIRE(holder.wait_for_out("mine 1 1"));
  const auto other = line("printf '%s\\n' 'job 1 2000 job' 'campaign b' 'tick 1'; sleep 2.2; echo tick 2").wait();
  CHECK(other.out == "leader 1 a\ndone 1\nleader 1 a\ndone 2\n");

  // A refusal is reported in one line.
  account.file("token", "wrong");
  const auto refused = Run({"sh", "-c", R"(printf '%s\n' 'job 1 2000 job' 'campaign a' 'tick 1' | "$@")", "sh", argv[0],
                            argv[1], argv[2], argv[3], "job-3"})
                           .wait();
  CHECK_THAT(refused.out, Catch::Matchers::Matches("trouble cannot ask http://[^\n]*Unauthorized[^\n]*\ndone 1\n"));
}

TEST_CASE("configs/lease/kubernetes.sh asks an API server whose address is IPv6") {
  if (Run({"sh", "-c", "command -v curl"}).wait().code() != 0) skip("curl not installed");
  TemporaryDirectory account;
  account.file("token", "a.b-c");
  account.file("namespace", "default");
  account.file("ca.crt", "");
  const auto output =
      Run({"sh", "-c", R"(printf '%s\n' 'job 1 2000 job' 'tick 1' | "$@")", "sh", "env", "KUBERNETES_SERVICE_HOST=::1",
           "KUBERNETES_SERVICE_PORT=1", concat("DDRUN_SERVICE_ACCOUNT=", account.path()),
           DDRUN_CONFIGS "/lease/kubernetes.sh", "job"})
          .wait();
  // Could not connect.
  CHECK_THAT(output.out, Catch::Matchers::StartsWith("trouble cannot ask https://[::1]:1: curl: (7) "));
}

TEST_CASE("invalid options are refused before a program is started") {
  const auto refused = [](const MakeLease& make) {
    boost::asio::io_context io;
    const auto made = make(io.get_executor(), {});
    REQUIRE_FALSE(made);
    CHECK(made.error().code == Errc::invalid_argument);
    return made.error().message;
  };
  CHECK_THAT(refused(by_program({"true"}, {"", ttl})), test::contains("a job's id has 1 to 512 bytes"));
  CHECK_THAT(refused(by_program({"true"}, {"job", 1999ms})), test::contains("2 seconds or more"));
  CHECK_THAT(refused(by_program({})), test::contains("no program"));
}
