// --hosts: what goes to a host, and what comes home.
#include <algorithm>
#include <sstream>

#include "ssh_hosts.hpp"

using namespace ddrun::test;

namespace {

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t at = 0;
  for (std::size_t end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    lines.push_back(text.substr(at, end - at));
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace

TEST_CASE("A job runs on another host and its output comes home in its two streams") {
  const SshHosts hosts;
  const auto outcome = finish_on(hosts, hosts.shell("one", {"-n", "2"}, "echo out $RANK; echo err $RANK >&2"));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(sorted_lines(outcome.out) == Words{"[0] out 0", "[1] out 1"});
  CHECK(sorted_lines(outcome.err) == Words{"[0] err 0", "[1] err 1"});
}

TEST_CASE("Lines of stdout and stderr that come home to one place keep their order") {
  const SshHosts hosts;
  Words words = hosts.shell("one", {"-n", "2"}, "for i in 1 2 3 4 5 6; do echo o$i; echo e$i >&2; done");
  words.insert(words.begin(), {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"});
  const auto outcome = finish_on(hosts, words);
  DDRUN_SHOW(outcome);
  for (const std::string rank : {"[0] ", "[1] "}) {
    std::string lines;
    std::istringstream all(outcome.out);
    for (std::string line; std::getline(all, line);) {
      if (line.starts_with(rank)) lines += line.substr(4);
    }
    CHECK(lines == "o1e1o2e2o3e3o4e4o5e5o6e6");
  }
}

TEST_CASE("Equal lines of two hosts are shown once, and those that look marked are text") {
  const SshHosts hosts;
  // All four are ready before one writes. Where the machine is busy their lines may still be too far apart.
  bool folded = false;
  for (int run = 0; run < 5 && !folded; ++run) {
    const TemporaryDirectory dir;
    const auto outcome = finish_on(
        hosts, hosts.shell("one,two", {"-n", "2", "--fold=always", "--label=rank"},
                           "cd " + dir.path() + "; touch at$RANK; until [ -e at0 ] && [ -e at1 ] && [ -e at2 ] && " +
                               "[ -e at3 ]; do sleep 0.005; done; [ $RANK != 3 ] || " +
                               "printf '\\002x 0\\002[0] \\002alone\\n'; printf '1%%\\rdone\\n'"));
    DDRUN_SHOW(outcome);
    REQUIRE(outcome.code() == 0);
    CHECK(outcome.err.empty());
    CHECK(outcome.out.find("[3] \x02x 0\x02[0] \x02"
                           "alone\n") != std::string::npos);
    CHECK(outcome.out.find('\r') == std::string::npos);
    folded = outcome.out ==
             "[3] \x02x 0\x02[0] \x02"
             "alone\n[0-3] done\n";
  }
  CHECK(folded);
}

TEST_CASE("Directory chosen variables slots and arguments travel") {
  const SshHosts hosts;
  const TemporaryDirectory here;
  RunOptions options;
  options.directory = here.path();
  options.env = {{"CHOSEN", "two\nlines and \xff"}, {"OTHER", "not chosen"}};
  const auto outcome = finish_on(
      hosts,
      hosts.shell(
          "one:3", {"-x", "CHOSEN", "-x", "GIVEN=it's"},
          "[ \"$RANK\" = 2 ] && printf '%s|%s|%s|%s|%s\\n' \"$(pwd)\" \"$CHOSEN\" \"$GIVEN\" \"$OTHER\" \"$WORLD_SIZE\""
          "|| true"),
      std::move(options));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(outcome.out == "[2] " + here.path() + "|two\n[2] lines and \xff|it's||3\n");
}

TEST_CASE("What was set by variables and a file counts on the hosts too") {
  const SshHosts hosts;
  const TemporaryDirectory here;
  RunOptions options;
  options.env = {{"DDRUN_NPROC_PER_NODE", "2"},
                 {"DDRUN_CONFIG", here.file("launch.toml", "label = \"local\"\nenv = [\"FROM_FILE=yes\"]\n")}};
  const auto outcome = finish_on(hosts, hosts.shell("one:5", {}, "echo $FROM_FILE"), std::move(options));
  DDRUN_SHOW(outcome);
  CHECK(sorted_lines(outcome.out) == Words{"[local 0] yes", "[local 1] yes"});
}

TEST_CASE("A host file is read and variables name hosts and command as well") {
  const SshHosts hosts;
  const TemporaryDirectory here;
  RunOptions options;
  options.env = {{"DDRUN_SSH", "ssh -F '" + hosts.config() + "'"},
                 {"DDRUN_HOSTFILE", here.file("hosts", "# ours\none slots=2  # fast\n")}};
  const auto outcome = finish_on(hosts, command({"--", "sh", "-c", "echo $LOCAL_WORLD_SIZE"}), std::move(options));
  DDRUN_SHOW(outcome);
  CHECK(sorted_lines(outcome.out) == Words{"[0] 2", "[1] 2"});
}

TEST_CASE("Standard input goes to rank 0 however long it is") {
  const SshHosts hosts;
  RunOptions options;
  for (int i = 0; i < 60'000; ++i) options.input += "line " + std::to_string(i) + " of a long input\n";
  const std::string sent = options.input;
  const auto outcome = finish_on(hosts, hosts.shell("one", {"-n", "2", "--label=none"}, "cat"), std::move(options));
  CHECK(outcome.code() == 0);
  CHECK(outcome.out == sent);
}

TEST_CASE("A worker that never reads its input holds nobody up") {
  const SshHosts hosts;
  RunOptions options;
  options.input = std::string(4 << 20, 'x');
  const auto outcome = finish_on(hosts, hosts.shell("one", {}, "exec <&-; echo done"), std::move(options));
  CHECK(outcome.code() == 0);
  CHECK(outcome.out == "done\n");
}

TEST_CASE("Much output from several workers comes home in whole lines") {
  const SshHosts hosts;
  const auto outcome = finish_on(hosts, hosts.job("one", {"-n", "4", "--label=rank"}, {"lines", "20000"}));
  CHECK(outcome.code() == 0);
  CHECK(count(outcome.out, "\n") == 80'000);
  std::size_t labelled = 0;
  for (const auto& line : sorted_lines(outcome.out)) {
    labelled += line.size() > 4 && line[0] == '[' && line[2] == ']' && count(line, "[") == 1 ? 1U : 0U;
  }
  CHECK(labelled == 80'000);
}

TEST_CASE("Where ddrun is missing it is copied run and gone again") {
  SshHosts hosts;
  const std::string scratch = hosts.add_bare();
  const auto outcome = finish_on(
      hosts,
      hosts.unseen(hosts.shell("bare", {"-v", "-n", "2"}, "echo $RANK from $(readlink /proc/$PPID/exe); ls $TMPDIR")));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.err, "copying ddrun to bare"));
  CHECK(has(outcome.out, "[0] 0 from " + scratch + "/ddrun."));
  CHECK_FALSE(has(outcome.out, "] ddrun."));  // it has removed itself before the workers were there
  CHECK(SshHosts::copies_in(scratch) == 0);
}

TEST_CASE("Another build of ddrun on the host is not used") {
  SshHosts hosts;
  const std::string bin = hosts.file("bin");
  std::filesystem::create_directory(bin);
  write_file(bin + "/ddrun", "#!/bin/sh\n[ \"$2\" = --check=other ]\n");
  ::chmod((bin + "/ddrun").c_str(), 0755);
  hosts.set("old", "PATH=" + bin + ":/usr/bin:/bin");
  hosts.add("old");
  const auto outcome = finish_on(hosts, hosts.unseen(hosts.shell("old", {"-v"}, "echo works")));
  DDRUN_SHOW(outcome);
  CHECK(outcome.out == "works\n");
  CHECK(has(outcome.err, "copying ddrun to old"));
}

TEST_CASE("Login shells of any kind and talkative ones are no obstacle") {
  for (const std::string shell :
       {"/bin/sh", "/usr/bin/bash", "/usr/bin/zsh", "/usr/bin/fish", "/bin/csh", "/bin/tcsh"}) {
    if (::access(shell.c_str(), X_OK) != 0) continue;
    CAPTURE(shell);
    SshHosts hosts;
    hosts.add("chatty", "ForceCommand printf 'Welcome to this host,\\nyou have no mail.'; echo warning >&2; exec " +
                            shell + " -c \"$SSH_ORIGINAL_COMMAND\"");
    for (const bool copied : {false, true}) {
      CAPTURE(copied);
      const Words argv = hosts.shell("chatty", {}, "echo works");
      const auto outcome = finish_on(hosts, copied ? hosts.unseen(argv) : argv);
      DDRUN_SHOW(outcome);
      CHECK(outcome.code() == 0);
      CHECK(outcome.out == "works\n");
      CHECK(outcome.err.empty());
    }
  }
}

TEST_CASE("A dry run shows the hosts and reaches none") {
  const SshHosts hosts;
  const auto outcome = finish(hosts.shell("one:2,nowhere", {"--dry-run", "-x", "A=b c"}, "echo"));
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.out, "would start ddrun on 2 hosts by ssh -F "));
  CHECK(has(outcome.out, "node rank 0: one, 2 slots, coordinator\n"));
  CHECK(has(outcome.out, "node rank 1: nowhere\n"));
  CHECK(has(outcome.out, "A='b c'\n"));
}
