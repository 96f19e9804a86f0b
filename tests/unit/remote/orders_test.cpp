#include "protocol.hpp"

#include "ddrun/remote/bootstrap.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::remote;

TEST_CASE("A host's part of the job arrives whole, with bytes that are no text") {
  Bootstrap sent;
  sent.args = {"--nproc-per-node=2", "--", "./train", "a\xff\xc3 b", ""};
  sent.directory = "/home/\xe4";
  sent.directory_needed = false;
  sent.started_as = "/v/bin/ddrun";
  sent.variables = {{"A", "1"}, {"B", "x=y\n\x80"}};
  sent.job_id = "ssh-1";
  sent.node_rank = 3;
  sent.runs_coordinator = true;
  sent.first_round_nodes = 4;
  sent.node_count = 5;
  sent.min_nodes = 4;
  sent.max_nodes = 5;
  sent.slots = 8;
  sent.coordinators = {{"10.0.0.1", 29400}, {"fd00::1", 29400}};
  sent.reads_input = true;
  sent.color = true;
  sent.all_progress = true;
  sent.one_console = true;
  sent.ending_signal = 1;
  sent.grace = Milliseconds(1500);
  const auto got = decode_bootstrap(encode(sent));
  REQUIRE(got);
  CHECK(*got == sent);
}

TEST_CASE("Invalid messages are rejected without being quoted") {
  Bootstrap sent;
  sent.variables = {{"TOKEN", "correct horse battery staple"}};
  std::string text = encode(sent);
  text.pop_back();
  // Also an empty array, and an object with one string.
  for (const std::string& wrong : {text, std::string("\x80"),
                                   std::string("\xa1\x64"
                                               "args\x6d"
                                               "correct horse"),
                                   std::string()}) {
    const auto got = decode_bootstrap(wrong);
    REQUIRE_FALSE(got);
    CHECK(got.error().code == Errc::protocol);
    CHECK(got.error().message.find("horse") == std::string::npos);
  }
}
