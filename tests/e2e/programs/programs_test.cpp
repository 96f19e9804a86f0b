#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "../job.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/test/ports.hpp"

// Several programs in one job (docs/several-programs.md).

using namespace ddrun::test;
using nlohmann::json;

namespace {

Words lines_of(const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

/// "ddrun options… first part : part : …"
Words programs(const Words& options, const std::vector<Words>& parts) {
  Words argv = command(options);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) argv.emplace_back(":");
    argv.insert(argv.end(), parts[i].begin(), parts[i].end());
  }
  return argv;
}

/// A part: `count` workers that run a shell script.
Words shell(const std::string& role, int count, const std::string& script) {
  return {"-n", std::to_string(count), "--role=" + role, "/bin/sh", "-c", script};
}

const std::string store = std::string(DDRUN_TEST_DDRUN) + " store ";

}  // namespace

TEST_CASE("Each program is a separate world, with torchrun's variables and a store") {
  const std::string print =
      "echo $ROLE_NAME $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE "
      "$ROLE_RANK/$ROLE_WORLD_SIZE";
  const std::string meet = "; " + store + "add n 1 >/dev/null; " + store +
                           "set key $ROLE_NAME >/dev/null; until test $(" + store +
                           "add n 0) = $WORLD_SIZE; do sleep 0.01; done; " + store + "get key";
  const auto outcome = finish(programs({"--label=none"}, {shell("a", 2, print + meet), shell("b", 3, print + meet)}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(lines_of(outcome.out) == Words{"a", "a", "a 0/2 0/2 0/1 0/2", "a 1/2 1/2 0/1 1/2", "b", "b", "b",
                                       "b 0/3 0/3 0/1 0/3", "b 1/3 1/3 0/1 1/3", "b 2/3 2/3 0/1 2/3"});
}

TEST_CASE("Programs of one world share ranks and store, those of the first before those of the second") {
  const std::string print =
      "echo $ROLE_NAME $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $ROLE_RANK/$ROLE_WORLD_SIZE; " + store +
      "add n 1";
  const auto outcome =
      finish(programs({"--label=none", "--world=w"}, {{}, shell("a", 2, print), shell("b", 1, print)}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(lines_of(outcome.out) == Words{"1", "2", "3", "a 0/3 0/3 0/2", "a 1/3 1/3 1/2", "b 2/3 2/3 0/1"});
  // Streams are chosen by a worker's number in its program, and named by its rank.
  const TemporaryDirectory dir;
  Words parts[] = {shell("a", 2, "echo $RANK"), shell("b", 2, "echo $RANK")};
  for (Words& part : parts) part.insert(part.begin(), {"--local-ranks-filter=1", "-t1:3"});
  for (Words& part : parts) std::rotate(part.begin(), part.begin() + 2, part.begin() + 4);  // -n begins it
  const auto teed = finish(programs({"--world=w", "--log-dir=" + dir.path()}, {{}, parts[0], parts[1]}));
  DDRUN_SHOW(teed);
  CHECK(lines_of(teed.out) == Words{"[a:1] 1", "[b:3] 3"});
  CHECK(read_file(dir.file("latest/attempt_0/b/3/stdout.log")) == "3\n");
  CHECK_FALSE(std::filesystem::exists(dir.file("latest/attempt_0/b/2/stdout.log")));
  // A world need not be of neighbours.
  const std::string short_print = "echo $ROLE_NAME $RANK/$WORLD_SIZE";
  Words first = shell("a", 1, short_print), last = shell("c", 2, short_print);
  first.insert(first.begin(), "--world=w");
  last.insert(last.begin() + 2, "--world=w");
  const auto apart = finish(programs({"--label=none"}, {first, shell("b", 1, short_print), last}));
  DDRUN_SHOW(apart);
  CHECK(lines_of(apart.out) == Words{"a 0/3", "b 0/1", "c 1/3", "c 2/3"});
}

TEST_CASE("The first world has the port that was asked for, the others free ones") {
  const int port = free_port();
  const auto outcome = finish(programs({"--label=none", "--master-port=" + std::to_string(port)},
                                       {shell("a", 1, "echo a $MASTER_PORT"), shell("b", 1, "echo b $MASTER_PORT")}));
  DDRUN_SHOW(outcome);
  const Words lines = lines_of(outcome.out);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "a " + std::to_string(port));
  CHECK(lines[1] != "b " + std::to_string(port));
  CHECK(lines[1] != "b 0");
}

TEST_CASE("Whichever worker of whichever program fails, it is named, and nothing is left") {
  struct Way {
    std::string does, said;
    int code;
  };
  const std::vector<Way> ways = {{"exit 3", "exited with code 3", 3},
                                 {"kill -KILL $$", "was killed by SIGKILL", 137},
                                 {"kill -SEGV $$", "was killed by SIGSEGV", 139}};
  for (const std::string role : {"a", "b", "c"}) {
    for (const std::string rank : {"0", "1"}) {
      for (const auto& [does, said, code] : ways) {
        const TemporaryDirectory dir;
        const std::string report = dir.file("report.json"), events = dir.file("events");
        const std::string script = "test $ROLE_NAME$RANK != " + role + rank + " || " + does + "; sleep 60";
        const auto outcome = finish(programs({"--report=" + report, "--events=" + events},
                                             {shell("a", 2, script), shell("b", 2, script), shell("c", 2, script)}));
        DDRUN_SHOW(outcome);
        CHECK(outcome.code() == code);
        CHECK(has(outcome.err, "ddrun: error: " + role + " rank " + rank + " " + said));
        CHECK(count(outcome.err, " stopped by ddrun") == 1);
        const json result = json::parse(read_file(report));
        CHECK(result["attempts"][0]["first_failed_role"] == role);
        CHECK(result["attempts"][0]["first_failed_rank"] == std::stoi(rank));
        CHECK(result["attempts"][0]["cause"]["role"] == role);
        CHECK(result["attempts"][0]["workers"].size() == 6);
        CHECK(result["programs"].size() == 3);
        const json verdict = json::parse(last_line(read_file(events)));
        CHECK(verdict["event"] == "verdict");
        CHECK(verdict["role"] == role);
        CHECK(verdict["rank"] == std::stoi(rank));
        CHECK(verdict["exit_code"] == code);
      }
    }
  }
}

TEST_CASE("A job succeeds when all of its programs have") {
  const auto late = finish(programs({}, {shell("a", 2, "true"), shell("b", 1, "sleep 0.3; exit 4")}));
  DDRUN_SHOW(late);
  CHECK(late.code() == 4);
  CHECK(has(late.err, "b rank 0 exited with code 4"));
  CHECK(has(late.err, "a ranks 0,1 had finished"));
  const auto all = finish(programs({}, {shell("a", 2, "true"), shell("b", 1, "sleep 0.3; echo done")}));
  CHECK(all.code() == 0);
  CHECK(all.out == "[b:0] done\n");
  const auto skewed = finish(programs({"--exit-skew=0.2"}, {shell("a", 1, "true"), shell("b", 2, "sleep 60")}));
  DDRUN_SHOW(skewed);
  CHECK(skewed.code() == 124);
  CHECK(has(skewed.err, "b ranks 0,1 still ran 0.2 s after the first worker had ended well (--exit-skew)"));
}

TEST_CASE("A failure of one program starts all again, with empty stores") {
  const TemporaryDirectory dir;
  const std::string script = store + "add n 1 >/dev/null; until test $(" + store +
                             "add n 0) = $WORLD_SIZE; do sleep 0.01; done; echo $TORCHELASTIC_RESTART_COUNT; " +
                             "test $ROLE_NAME$RANK$TORCHELASTIC_RESTART_COUNT != b10 || exit 1; " +
                             "test $TORCHELASTIC_RESTART_COUNT = 1 || sleep 60";
  const auto outcome =
      finish(programs({"--max-restarts=1", "--log-dir=" + dir.path()}, {shell("a", 2, script), [&] {
                                                                          Words part = shell("b", 2, script);
                                                                          part.insert(part.begin() + 2, "-r3");
                                                                          return part;
                                                                        }()}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.err, "b rank 1 (pid "));
  CHECK(has(outcome.err, "restarting all 4 workers (restart 1 of 1)"));
  const std::string run = dir.file("latest");
  CHECK(read_file(run + "/attempt_0/b/1/stdout.log") == "0\n");
  CHECK(read_file(run + "/attempt_1/b/0/stdout.log") == "1\n");
  CHECK(std::filesystem::is_directory(run + "/attempt_1/a/1"));
  CHECK_FALSE(std::filesystem::exists(run + "/attempt_1/a/1/stdout.log"));
  CHECK_FALSE(std::filesystem::exists(run + "/attempt_0/0"));
}

TEST_CASE("Lines are labelled by role and rank, and equal ones are folded within a program") {
  const std::string echo = "echo same";
  const auto plain = finish(programs({}, {shell("a", 2, echo), shell("b", 1, echo)}));
  CHECK(lines_of(plain.out) == Words{"[a:0] same", "[a:1] same", "[b:0] same"});
  const auto folded = finish(programs({"--fold=always"}, {shell("a", 3, echo), shell("b", 2, echo)}));
  CHECK(lines_of(folded.out) == Words{"[a:0-2] same", "[b:0,1] same"});
  const auto by_host = finish(programs({"--label=host"}, {shell("a", 1, echo), shell("b", 1, echo)}));
  for (const std::string& line : lines_of(by_host.out)) CHECK((has(line, ":a:0] same") || has(line, ":b:0] same")));
  const auto local = finish(programs({"--label=local"}, {shell("a", 1, echo), shell("b", 1, echo)}));
  CHECK(lines_of(local.out) == Words{"[a:local 0] same", "[b:local 0] same"});
  const auto torchrun = finish(programs({"--label=torchrun"}, {shell("a", 1, echo), shell("b", 1, echo)}));
  CHECK(lines_of(torchrun.out) == Words{"[a0]:same", "[b0]:same"});
}

TEST_CASE("Input goes to a rank of the first program, and seeds are all different") {
  RunOptions options;
  options.input = "typed\n";
  const std::string read = "read line; echo \"$line\"; echo seed $DDRUN_SEED";
  const auto outcome = finish(programs({"--stdin=1", "--seed=7"}, {shell("a", 2, read), shell("b", 2, read)}), options);
  DDRUN_SHOW(outcome);
  CHECK(count(outcome.out, "typed") == 1);
  CHECK(has(outcome.out, "[a:1] typed\n"));
  std::set<std::string> seeds;
  for (const std::string& line : lines_of(outcome.out)) {
    if (const auto at = line.find("seed "); at != std::string::npos) seeds.insert(line.substr(at));
  }
  CHECK(seeds.size() == 4);
  const auto served = finish(programs({"--service", "--role=s"}, {{"sleep", "60"}, shell("a", 2, read)}), options);
  DDRUN_SHOW(served);
  CHECK(has(served.out, "[a:0] typed\n"));
  const auto wrong = finish(programs({"--stdin=2"}, {shell("a", 2, read), shell("b", 4, read)}));
  CHECK(wrong.code() == 2);
  CHECK(has(wrong.err, "--stdin=2: there is no such rank"));
}

TEST_CASE("ddrun stacks finds the ranks of a program, and the job has no second ddrun") {
  const TemporaryDirectory dir;
  RunOptions options;
  options.env = {{"XDG_RUNTIME_DIR", dir.path()}};
  Run run(programs({"--label=none", "--rdzv-id=several"},
                   {shell("a", 2, "echo up; exec sleep 60"), shell("b", 3, "echo up; exec sleep 60")}),
          options);
  REQUIRE(wait_until([&] { return count(run.out(), "up") == 5; }));
  std::map<std::string, int> names;
  for (const pid_t pid : run.living()) {
    ++names[std::filesystem::path(std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe")).filename()];
  }
  CHECK(names["sleep"] == 5);
  CHECK(names[std::filesystem::path(DDRUN_TEST_DDRUN).filename()] == 3);  // guard, sweeper and agent
  CHECK(names.size() == 2);

  const auto ask = [&](const std::string& ranks) {
    Run question(command({"stacks", "several", "--rank=" + ranks, "--json"}), options);
    return question.wait();
  };
  REQUIRE(wait_until([&] { return ask("0").code() == 0; }));
  const auto named = [&](const std::string& ranks) {
    Words names_found;
    const auto outcome = ask(ranks);
    DDRUN_SHOW(outcome);
    REQUIRE(outcome.code() == 0);
    const json page = json::parse(outcome.out);
    for (const json& rank : page["ranks"])
      names_found.push_back(rank["role"].get<std::string>() + ":" + std::to_string(rank["rank"].get<int>()));
    return names_found;
  };
  CHECK(named("b:1-9") == Words{"b:1", "b:2"});
  CHECK(named("1,b:0") == Words{"a:1", "b:0", "b:1"});
  CHECK(named("a") == Words{"a:0", "a:1"});
  const auto none = ask("c:0");
  CHECK(none.code() == 1);
  CHECK(has(none.err, "give some of a ranks 0,1, b ranks 0-2"));
  Run text(command({"stacks", "several"}), options);
  const auto shown = text.wait();
  CHECK(has(shown.out, "a ranks 0,1: "));
  CHECK(has(shown.out, "b ranks 0-2: "));
  run.signal(SIGTERM);
  run.wait();
  CHECK(run.all_gone());
}

TEST_CASE("The rank that holds up the others is of their world") {
  // Rank 0 of b gives up waiting for rank 1, which sleeps. So do all of a and c.
  const TemporaryDirectory dir;
  const std::string stuck = "ln -s /proc/$$/stat " + dir.path() + "/$ROLE_NAME$RANK; exec sleep 60";
  const std::string gives_up = "for rank in a0 b1 c0 c1; do until grep -qs '(sleep) S' " + dir.path() +
                               "/$rank; do sleep 0.05; done; done; "
                               "echo 'RuntimeError: Timed out waiting 6000ms for recv' >&2; exit 1";
  const auto outcome =
      finish(programs({}, {shell("a", 1, stuck), shell("b", 2, "test $RANK = 0 || { " + stuck + "; }; " + gives_up),
                           shell("c", 2, stuck)}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 1);
  CHECK(has(outcome.err, "where the ranks of this machine are, after b rank 0 timed out:"));
  CHECK(has(outcome.err, "  a rank 0 (pid "));
  CHECK(has(outcome.err, "  c ranks 0,1: "));
  CHECK(has(outcome.err, "ddrun: error: b rank 1 held up the others: "));
}

TEST_CASE("A report in JUnit's format names each worker by role and rank") {
  const TemporaryDirectory dir;
  const std::string file = dir.file("report.xml");
  const auto outcome = finish(programs({"--report=" + file}, {shell("a", 1, "sleep 60"), shell("b", 1, "exit 3")}));
  DDRUN_SHOW(outcome);
  const std::string report = read_file(file);
  INFO(report);
  CHECK(has(report, "name=\"a rank 0\""));
  CHECK(has(report, "name=\"b rank 0\""));
  CHECK(count(report, "<failure") == 1);
}

TEST_CASE("A program that cannot start is said before any worker starts") {
  const auto outcome = finish(programs({}, {shell("a", 1, "echo started"), {"-n", "1", "./no-such-program"}}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 127);
  CHECK(outcome.out.empty());
  CHECK(has(outcome.err, "./no-such-program"));
}

TEST_CASE("A dry run shows each program, and the commands of the machine have no program's variables") {
  const auto dry = finish(programs({"--dry-run"}, {shell("a", 2, "true"), shell("b", 1, "true")}));
  DDRUN_SHOW(dry);
  CHECK(has(dry.out, "would start 3 workers on "));
  CHECK(has(dry.out, "\na: 2 workers in "));
  CHECK(has(dry.out, "\na rank 1:\n  /bin/sh -c true\n"));
  CHECK(has(dry.out, "\nb rank 0:\n  /bin/sh -c true\n"));
  Words service = shell("s", 1, "true");
  service.emplace(service.begin() + 2, "--service");
  const auto served = finish(programs({"--dry-run"}, {shell("a", 1, "true"), service}));
  CHECK(has(served.out, "\ns: a service, 1 worker in "));
  const auto before = finish(programs({"--before=echo before ${WORLD_SIZE-none} ${ROLE_NAME-none} ${A-none}"},
                                      {{"--env=A=1", "true"}, {"-n", "1", "true"}}));
  DDRUN_SHOW(before);
  CHECK(before.out == "[before] before none none none\n");
}
