// Which machine an endpoint's name means. The name server is a getent of the test's.
#include "agents.hpp"

using namespace ddrun::test;

namespace {

/// One of two agents that meet at "train.example", whose addresses `lines` are; it does not wait long.
Outcome one_agent(const Words& lines, const Words& more = {}, const std::string& name = "train.example") {
  const TemporaryDirectory dir;
  std::string script = "#!/bin/sh\n";
  for (const std::string& line : lines) script += "echo '" + line + " STREAM'\n";
  dir.file("getent", script + "exit 0\n", 0755);
  RunOptions options;
  options.env = {{"PATH", dir.path() + ":/usr/bin:/bin"}, {"DDRUN_SECRET", job_secret}};
  Words words{"--nnodes=2", "--join-timeout=1s", "--rdzv-endpoint=" + name + ":" + std::to_string(free_port())};
  words.insert(words.end(), more.begin(), more.end());
  return finish(job(words, {"print", "must not run"}), options);
}

}  // namespace

TEST_CASE("An endpoint's name that is this machine's and another's is refused at once") {
  const auto outcome = one_agent({"127.0.0.1", "192.0.2.7"}, {"--rdzv-backend=c10d"});
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 2);
  CHECK(outcome.err ==
        "ddrun: error: the endpoint's name train.example has several addresses (127.0.0.1, 192.0.2.7), and not all are "
        "this machine's: name one machine, or say which one runs the coordinator: --rdzv-conf=is_host=true there, "
        "is_host=false elsewhere\n");
  CHECK(has(one_agent({"127.0.0.1", "192.0.2.7"}).err, "--node-rank=0 there, --node-rank=N elsewhere"));
}

TEST_CASE("Who hosts can be said where a name does not tell") {
  const Words lines{"127.0.0.1", "192.0.2.7"};
  const auto host = one_agent(lines, {"--rdzv-backend=c10d", "--rdzv-conf=is_host=true"});
  DDRUN_SHOW(host);
  CHECK(has(host.err, "1 of 2 nodes were there after"));
  CHECK(has(one_agent(lines, {"--node-rank=0"}).err, "1 of 2 nodes were there after"));
}

TEST_CASE("A name all of whose addresses are this machine's is this machine") {
  CHECK(has(one_agent({"127.0.1.1", "127.0.0.1", "::1"}).err, "1 of 2 nodes were there after"));
}
