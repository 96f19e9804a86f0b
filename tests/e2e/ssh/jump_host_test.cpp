// --hosts behind a jump host whose sshd closes connections that have not logged in yet, where there are many of them.
#include "ssh_hosts.hpp"

using namespace ddrun::test;

namespace {

/// ssh's default; OpenSSH 10 says nothing of a connection that was closed with ERROR, which all hosts have here.
const std::string with_words = "  LogLevel INFO";
const std::string through_jump = "  ProxyJump jump\n" + with_words;

/// Fails without another try, though behind a proxy ssh's last words are those of a connection that was closed.
void fails_at_once(const SshHosts& hosts, const std::string& list, const std::string& reason) {
  CAPTURE(list);
  const auto outcome = finish_on(hosts, hosts.shell(list, {"-v"}, "echo must not run"));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 125);
  CHECK(outcome.out.empty());
  CHECK(has(outcome.err, "ddrun: error: cannot start ddrun on host "));
  CHECK(has(outcome.err, reason));
  CHECK_FALSE(has(outcome.err, "trying again"));
}

}  // namespace

TEST_CASE("More hosts than a jump host lets log in at a time") {
  SshHosts hosts;
  hosts.add("jump", "MaxStartups 3", with_words);
  hosts.add("behind*", {}, through_jump);
  const auto outcome = finish_on(hosts, hosts.shell("behind[1-24]", {"-v"}, "echo up"));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(count(outcome.out, "up\n") == 24);
  CHECK(has(outcome.err, "; trying again, 16 at a time\n"));
}

TEST_CASE("A jump host that is busy for the whole join timeout") {
  SshHosts hosts;
  hosts.add("jump", "MaxStartups 1", with_words);
  hosts.add("behind", {}, through_jump);
  const auto occupied = hosts.occupy("jump");
  const auto outcome = finish_on(hosts, hosts.shell("behind,one", {"--join-timeout=3s"}, "echo must not run"));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 125);
  CHECK(outcome.out.empty());
  CHECK(count(outcome.err, "error: cannot start ddrun on host behind: ") == 1);
  CHECK(has(outcome.err, "; trying again, 8 at a time\n"));
  CHECK(has(outcome.err, "; trying again, 4 at a time\n"));
}

TEST_CASE("A host that is tried again can be done without, and does not delay the end") {
  SshHosts hosts;
  hosts.add("jump", "MaxStartups 1", with_words);
  hosts.add("behind", {}, through_jump);
  auto occupied = hosts.occupy("jump");
  // The job ends while the other host is still being tried.
  const auto outcome = finish_on(hosts, hosts.shell("one,behind", {"--nnodes=1:2", "--last-call=100ms"}, "echo up"));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(count(outcome.out, "up\n") == 1);

  Run run(hosts.shell("one,behind", {"-v"}, "echo up"));
  REQUIRE(wait_until([&] { return has(run.err(), "trying again"); }));
  occupied.reset();
  CHECK(run.wait().code() == 0);
  CHECK(count(run.out(), "up\n") == 2);

  occupied = hosts.occupy("jump");
  Run stopped(hosts.shell("one,behind", {"-v"}, "echo up"));
  REQUIRE(wait_until([&] { return has(stopped.err(), "trying again"); }));
  stopped.signal(SIGINT);
  CHECK(stopped.wait().code() == -SIGINT);
  CHECK(hosts.all_gone());
}

TEST_CASE("A refusal behind a jump host, or by it, is final") {
  SshHosts hosts;
  hosts.add("jump");
  hosts.add("closed", "DenyUsers *", through_jump);
  fails_at_once(hosts, "closed,one", "Permission denied");
  hosts.add("closed-jump", "DenyUsers *");
  hosts.add("beyond", {}, "  ProxyJump closed-jump");
  fails_at_once(hosts, "one,beyond", "Permission denied");
  hosts.add("fake", {}, through_jump + "\n  UserKnownHostsFile " + hosts.file("known-wrong"));
  fails_at_once(hosts, "fake", "Host key verification failed");
  hosts.add("off", {}, "  ProxyCommand ssh -F " + hosts.config() + " -W 127.0.0.1:1 jump");
  fails_at_once(hosts, "off", "stdio forwarding failed");
  hosts.add("lost", {}, "  ProxyJump nowhere.invalid");
  fails_at_once(hosts, "lost", "Could not resolve");
}

TEST_CASE("A busy host without a jump host in between is not tried again") {
  SshHosts hosts;
  hosts.add("busy", "MaxStartups 1", with_words);
  const auto occupied = hosts.occupy("busy");
  fails_at_once(hosts, "busy,one", "kex_exchange_identification");
}
