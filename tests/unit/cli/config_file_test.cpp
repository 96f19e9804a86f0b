#include <signal.h>

#include <string>
#include <tuple>
#include <vector>

#include "support.hpp"

using namespace ddrun;
using namespace ddrun::cli::test;
using namespace std::chrono_literals;

namespace {

cli::Launch launch_with(const std::string& toml, Args args = {"w"}) {
  const TemporaryDirectory dir;
  args.insert(args.begin(), "--config=" + dir.file("c.toml", toml));
  return launched(args);
}

/// The message without the file's directory.
std::string complaint(const std::string& toml) {
  const TemporaryDirectory dir;
  const std::string line = refused({"--config", dir.file("c.toml", toml), "w"});
  INFO(line);
  const std::string start = dir.path() + "/";
  REQUIRE(line.substr(0, start.size()) == start);
  return line.substr(start.size());
}

}  // namespace

TEST_CASE("a settings file gives values of every type") {
  const auto launch = launch_with(R"(
nproc-per-node = "cpu"
max_restarts = 3
restart-backoff = 0.5
timeout = "10m"
shutdown-timeout = 5
success-on = [0, 3, "10-12"]
no-restart-on = 4
standalone = true
timestamps = false
verbose = 2
env = ["A=1", "B=x,y"]
signals-to-handle = ["TERM", "SIGUSR1"]
duplicate-stdout-filters = ["a,b", "c"]
tee = "0:3"
log-rotate = "1M"
local-ranks-filter = [0, "2-3"]
rdzv-conf = {timeout = 60, is_host = "1"}
rdzv-id = 17
seed = 9
label = "host"
)");
  CHECK(launch.spec.first().nproc.kind == NprocSpec::Kind::cpu);
  CHECK(launch.spec.restart.max_restarts == 3);
  CHECK(launch.spec.restart.backoff == 500ms);
  CHECK(launch.spec.timeout == 10min);
  CHECK(launch.spec.stop.grace == 5s);
  CHECK(launch.spec.restart.success_on == CodeSet{0, 3, 10, 11, 12});
  CHECK(launch.spec.restart.no_restart_on == CodeSet{4});
  CHECK(launch.spec.rendezvous.standalone);
  CHECK(launch.messages.shown == Level::debug);
  CHECK(launch.spec.first().env == std::vector<std::pair<std::string, std::string>>{{"A", "1"}, {"B", "x,y"}});
  CHECK(launch.spec.stop.ending_signals == std::set<int>{SIGTERM, SIGUSR1});
  CHECK(launch.spec.log.duplicate_stdout_filters == Args{"a,b", "c"});
  CHECK(launch.spec.first().streams.tee.of(0) == Streams::both);
  CHECK(launch.spec.log.rotate_bytes == 1024U * 1024);
  CHECK(launch.spec.first().streams.local_ranks_filter == std::set<int>{0, 2, 3});
  CHECK(launch.spec.rendezvous.conf == std::map<std::string, std::string>{{"timeout", "60"}, {"is_host", "1"}});
  CHECK(launch.spec.rendezvous.id == "17");
  CHECK(launch.spec.seed == 9U);
  CHECK(launch.spec.log.label == Label::host);
}

TEST_CASE("a settings file may have tables for streams and variables") {
  const auto launch = launch_with("[redirects]\n0 = 3\n12 = 1\n[env]\nX = 1\nY = \"a b\"\nZ = 0.5\n");
  CHECK(launch.spec.first().streams.redirects.of(0) == Streams::both);
  CHECK(launch.spec.first().streams.redirects.of(12) == Streams::out);
  CHECK(launch.spec.first().env ==
        std::vector<std::pair<std::string, std::string>>{{"X", "1"}, {"Y", "a b"}, {"Z", "0.5"}});
}

TEST_CASE("a settings file may name the program and a typed one replaces it with its arguments") {
  const std::string toml = "program = [\"./a\", \"b\"]\nargs = [\"${rank}\", 3]\n";
  auto program = launch_with(toml, {}).spec.first();
  CHECK(program.name == "./a");
  CHECK(program.args == Args{"b", "${rank}", "3"});
  program = launch_with(toml, {"c.py", "d"}).spec.first();
  CHECK(program.name == "c.py");
  CHECK(program.kind == ProgramKind::python_script);
  CHECK(program.args == Args{"d"});
  CHECK(launch_with("program = \"./a b\"\n", {}).spec.first().name == "./a b");
}

TEST_CASE("errors in a settings file are reported with line and column") {
  CHECK(complaint("\n nproc = 4\n") == "c.toml:2:2: unknown key 'nproc'; did you mean 'nproc-per-node'?");
  CHECK(complaint("command = 4\n") == "c.toml:1:1: command stands in a [[program]] table; for one program: program");
  CHECK(complaint("zebra = 4\n") == "c.toml:1:1: unknown key 'zebra' (keys are long options without dashes in front)");
  CHECK(complaint("[section]\nnproc-per-node = 4\n").find("c.toml:1:") == 0);
  CHECK(contains(complaint("[section]\nnproc-per-node = 4\n"), "unknown key 'section'"));
  CHECK(complaint("max-restarts = 1\nnproc-per-node = 0\n") ==
        "c.toml:2:1: nproc-per-node = 0: '0' is not a number from 1 to 100000, auto, cpu or gpu");
  CHECK(complaint("nproc-per-node = [1]\n") ==
        "c.toml:1:1: nproc-per-node must be a whole number or a text, not this list");
  CHECK(complaint("max-restarts = \"3\"\n") == "c.toml:1:1: max-restarts must be a whole number, not a text");
  CHECK(complaint("max-restarts = 1.5\n") == "c.toml:1:1: max-restarts must be a whole number, not a number");
  CHECK(complaint("standalone = 1\n") == "c.toml:1:1: standalone must be true or false, not a whole number");
  CHECK(complaint("color = 1979-05-27\n") == "c.toml:1:1: color must be a text, not a date or time");
  CHECK(contains(complaint("env = {A = true}\n"), "c.toml:1:1: env must be a list of \"NAME=VALUE\" or a table"));
  CHECK(contains(complaint("env = [\"A\"]\n"), "c.toml:1:1: env = A: 'A' is not NAME=VALUE"));
  CHECK(contains(complaint("log-dir = \"a\"\nlog_dir = \"b\"\n"), "c.toml:2:1: 'log_dir' is 'log-dir' again"));
  CHECK(complaint("config = \"x\"\n") == "c.toml:1:1: 'config' is only for the command line");
  CHECK(complaint("program = []\n") == "c.toml:1:1: program must not be empty");
  CHECK(complaint("program = true\n") == "c.toml:1:1: program must be a text or a list of texts, not true or false");
  CHECK(complaint("args = [\"x\"]\n") == "c.toml:1:1: args without program; add program = \"...\"");
  // The first error in file order, not in alphabetical order.
  CHECK(complaint("zzzzz = 1\naaaaa = 1\n").find("c.toml:1:1: unknown key 'zzzzz'") == 0);
}

TEST_CASE("bad syntax in a settings file is one line with its place") {
  for (const std::string toml : {"[[[\n", "role = \"a\n", "= 3\n", "a b = 3\n", "tee = {0 = 3,, }\n", "\xff\xfe = 1\n",
                                 "nproc-per-node = 4\nnproc-per-node = 5\n"}) {
    CAPTURE(toml);
    const std::string line = complaint(toml);
    CHECK(line.substr(0, 7) == "c.toml:");
    CHECK(line.size() > 12);
  }
}

TEST_CASE("a mistake of syntax is explained in words that say what to write") {
  const std::string pair = "write KEY = VALUE, as in nproc-per-node = 4";
  const std::string toml_pair = "write TOML: KEY = VALUE, as in nproc-per-node = 4";
  for (const auto& [toml, place, message] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"role = \"a\nn = 2\n", "1:10", "a text has no closing quote on its line"},
           {"role = 'a\n", "1:10", "a text has no closing quote on its line"},
           {"role = \"\"\"a\n", "", "a text has no closing quote"},
           {"nproc-per-node: 4\n", "1:15", "this is YAML; " + toml_pair},
           {"---\nnproc-per-node: 4\n", "1:4", "this is YAML; " + toml_pair},
           {"- a\n- b\n", "", "this is YAML; " + toml_pair},
           {"\n{\"role\": \"a\"}\n", "2:1", "this is JSON; " + toml_pair},
           {"nproc-per-node 4\n", "1:16", "a key has no = behind it; " + pair},
           {"standalone\n", "1:11", "a key has no = behind it; " + pair},
           {"nproc-per-node = 4\nnproc-per-node = 5\n", "2:18", "'nproc-per-node' is set twice; leave one out"},
           {"[env]\nA = 1\n[env]\n", "3:", "'env' is set twice; leave one out"},
           {"program = [\"a\", \"b\"\nrole = \"x\"\n", "2:1", "a list has no , between two values, or no ] at its end"},
           {"env = {A = 1\n", "1:", "a table in {} has no , between two entries, or no } at the end of its line"},
           {"[env\nA = 1\n", "1:5", "the name of a table has no ] at its end, as in [env]"},
           {"role = \"a\" \"b\"\n", "1:12", "more stands behind the value; several values are a list: [\"a\", \"b\"]"},
           {"role = \"C:\\q\"\n",
            "1:", "a \\ in double quotes begins an escape; write it twice, or 'a\\b' in single quotes"},
           {"\xff\xfe = 1\n", "1:1", "it is not text in UTF-8"}}) {
    CAPTURE(toml);
    const std::string line = complaint(toml);
    CHECK(line.starts_with("c.toml:" + place));
    CHECK(line.ends_with(": " + message));
  }
  for (const std::string value : {"trainer", "./train", "True", "yes", "20m", "", "C:\\x", "[./a, b]"}) {
    CAPTURE(value);
    CHECK(complaint("role = " + value + "\n")
              .ends_with(": the value is no number, true or false; write a text in quotes, as in role = \"a\" or "
                         "timeout = \"20m\""));
  }
}

TEST_CASE("a settings file that cannot be read says why") {
  CHECK(refused({"--config=/nonexistent/x.toml", "w"}) ==
        "cannot read the settings file '/nonexistent/x.toml': No such file or directory");
  const TemporaryDirectory dir;
  CHECK(refused({"w"}, {"DDRUN_CONFIG=" + dir.path()}) ==
        "cannot read the settings file '" + dir.path() + "': Is a directory");
  CHECK(refused({"--config=", "w"}) == "--config needs the name of a file");
  const std::string big = dir.file("big.toml", "role = \"" + std::string(1'100'000, 'x') + "\"\n");
  CHECK(contains(refused({"--config", big, "w"}), "is larger than 1 MiB"));
}

TEST_CASE("an empty settings file changes nothing") {
  CHECK(launch_with("").spec.first().nproc.count == 1);
  CHECK(launch_with("# only a comment\n\n").warnings.empty());
}
