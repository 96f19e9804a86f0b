// --hosts: what cannot work is one clear line that names the host, and everything else is stopped.
#include "ssh_hosts.hpp"

using namespace ddrun::test;

namespace {

/// Fails in the given way on that host, whether it is alone or another one is there and waits.
void fails(const SshHosts& hosts, const std::string& host, const std::string& message, bool copied = false) {
  for (const std::string& list : {host, host + ",one", "one," + host}) {
    CAPTURE(list);
    const Words argv = hosts.shell(list, {}, "echo must not run; sleep 1000");
    const auto outcome = finish_on(hosts, copied ? hosts.unseen(argv) : argv);
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 125);
    CHECK(outcome.out.empty());
    CHECK(has(outcome.err, message));
    CHECK(count(outcome.err, "error:") == 1);
  }
}

}  // namespace

TEST_CASE("A host that nobody knows") {
  const SshHosts hosts;
  fails(hosts, "nowhere.invalid", "ddrun: error: cannot start ddrun on host nowhere.invalid: ssh: Could not resolve");
}

TEST_CASE("A host that lets nobody in") {
  SshHosts hosts;
  hosts.add("closed", "DenyUsers *");
  fails(hosts, "closed", "ddrun: error: cannot start ddrun on host closed: ");
}

TEST_CASE("A host with another key than the one that is known") {
  SshHosts hosts;
  hosts.add("fake", {}, "  UserKnownHostsFile " + hosts.file("known-wrong"));
  fails(hosts, "fake", "ddrun: error: cannot start ddrun on host fake: ");
}

TEST_CASE("A host for which ssh is configured to run a command") {
  SshHosts hosts;
  hosts.add("tmux", {}, "  RequestTTY yes\n  RemoteCommand tmux new -A -s x");
  fails(hosts, "tmux", "command-line and remote command; write --ssh='ssh ");
  fails(hosts, "tmux", " -o RemoteCommand=none'");
}

TEST_CASE("A host whose key is not known yet is not trusted") {
  SshHosts hosts;
  hosts.add("new", {}, "  UserKnownHostsFile /dev/null");
  fails(hosts, "new", " new' once to accept its key");
}

TEST_CASE("A host without a shell") {
  SshHosts hosts;
  hosts.add("bare", "ForceCommand /nonexistent/shell");
  fails(hosts, "bare", "ddrun: error: cannot start ddrun on host bare: ");
}

TEST_CASE("A host whose disk is full") {
  SshHosts hosts;
  // Files there may not grow beyond 64 KiB.
  hosts.add("full", "ForceCommand ulimit -f 64; eval \"$SSH_ORIGINAL_COMMAND\"");
  fails(hosts, "full", "ddrun: error: cannot run a copy of ddrun on host full: ", true);
}

TEST_CASE("A host without room for temporary files") {
  SshHosts hosts;
  hosts.set("roomless", "TMPDIR=" + hosts.file("no-such-directory"));
  hosts.add("roomless");
  fails(hosts, "roomless", "ddrun: error: cannot start ddrun on host roomless: mktemp: ", true);
}

TEST_CASE("A command for reaching hosts that is not there") {
  const auto outcome = finish(command({"--ssh=no-such-ssh -v", "--hosts=a", "true"}));
  CHECK(outcome.code() == 125);
  CHECK(has(outcome.err, "cannot start no-such-ssh"));
  const auto torn = finish(command({"--ssh=ssh 'x", "--hosts=a", "true"}));
  CHECK(torn.code() == 125);
  CHECK(has(torn.err, "without its second one"));
}

TEST_CASE("A directory that the host does not have") {
  SshHosts hosts;
  const TemporaryDirectory here;
  // The host sees another /tmp or, without root to arrange that, the directory is removed before ddrun gets there.
  hosts.add("elsewhere", "ForceCommand rmdir " + here.path() + "/gone; eval \"$SSH_ORIGINAL_COMMAND\"");
  std::filesystem::create_directory(here.path() + "/gone");
  RunOptions options;
  options.directory = here.path() + "/gone";
  const auto outcome = finish_on(hosts, hosts.shell("elsewhere", {}, "echo must not run"), std::move(options));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 125);
  CHECK(has(outcome.err, "cannot go to " + here.path() + "/gone, where you are on your own machine (see --chdir)"));
  // It is not needed where --chdir says where to go.
  std::filesystem::create_directory(here.path() + "/gone");
  RunOptions again;
  again.directory = here.path() + "/gone";
  CHECK(finish_on(hosts, hosts.shell("elsewhere", {"--chdir=/"}, "pwd"), std::move(again)).out == "/\n");
}

TEST_CASE("A program that the host does not have") {
  const SshHosts hosts;
  Words argv = hosts.shell("one", {}, "");
  argv.resize(argv.size() - 3);
  argv.emplace_back("./no-such-program");
  const auto outcome = finish_on(hosts, argv);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 127);
  CHECK(has(outcome.err, "no-such-program"));
}

TEST_CASE("Wrong usage is told before any host is reached") {
  const std::vector<std::pair<Words, std::string>> cases{
      {{"--hosts=-oProxyCommand=x", "true"}, "--hosts: "},
      {{"--hosts=a", "--hostfile=b", "true"}, "--hostfile"},
      {{"--hostfile=/nonexistent/hosts", "true"}, "--hostfile=/nonexistent/hosts: No such file"},
      {{"--hosts=a", "--node-rank=1", "true"}, "--node-rank cannot be given with --hosts"},
      {{"--hosts=a", "--rdzv-backend=etcd", "true"}, "--rdzv-backend=etcd cannot be given with --hosts"},
      {{"--hosts=a", "-x", "=b", "true"}, "is neither NAME nor NAME=VALUE"},
      {{"--hosts=a", "-x", "DDRUN_SECRET", "true"}, "-x DDRUN_SECRET: workers do not get it"},
  };
  for (const auto& [words, message] : cases) {
    const auto outcome = finish(command(words));
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 2);
    CHECK(has(outcome.err, message));
  }
}

TEST_CASE("ddrun relay says that it is not for people") {
  RunOptions options;
  options.input = "";
  const std::string word = GENERATE("relay", "agent");
  const auto outcome = finish(command({word, "--check=another-build"}), std::move(options));
  CHECK(outcome.code() == 1);
  const auto alone = finish({"sh", "-c", std::string(DDRUN_TEST_DDRUN) + " " + word + " </dev/null"});
  DDRUN_SHOW(alone);
  CHECK(alone.code() == 2);
  CHECK(has(alone.err, "is what --hosts starts on other machines"));
}
