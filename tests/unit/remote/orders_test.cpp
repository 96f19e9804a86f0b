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
  sent.one_console = true;
  sent.ending_signal = 1;
  sent.grace = Milliseconds(1500);
  const auto got = bootstrap_from_json(to_json(sent));
  REQUIRE(got);
  CHECK(got->args == sent.args);
  CHECK(got->directory == sent.directory);
  CHECK(got->directory_needed == sent.directory_needed);
  CHECK(got->started_as == sent.started_as);
  CHECK(got->variables == sent.variables);
  CHECK(got->job_id == sent.job_id);
  CHECK(got->node_rank == sent.node_rank);
  CHECK(got->runs_coordinator);
  CHECK(got->first_round_nodes == sent.first_round_nodes);
  CHECK(got->node_count == sent.node_count);
  CHECK(got->min_nodes == sent.min_nodes);
  CHECK(got->max_nodes == sent.max_nodes);
  CHECK(got->slots == sent.slots);
  CHECK(got->coordinators == sent.coordinators);
  CHECK(got->reads_input == sent.reads_input);
  CHECK(got->color == sent.color);
  CHECK(got->one_console);
  CHECK(got->ending_signal == sent.ending_signal);
  CHECK(got->grace == sent.grace);
  sent.slots.reset();
  CHECK_FALSE(bootstrap_from_json(to_json(sent))->slots);
}

TEST_CASE("Invalid messages are rejected without being quoted") {
  Bootstrap sent;
  sent.variables = {{"TOKEN", "correct horse battery staple"}};
  std::string text = to_json(sent);
  text.pop_back();
  for (const std::string& wrong :
       {text, std::string("[]"), std::string("{\"variables\":\"correct horse\"}"), std::string()}) {
    const auto got = bootstrap_from_json(wrong);
    REQUIRE_FALSE(got);
    CHECK(got.error().code == Errc::protocol);
    CHECK(got.error().message.find("horse") == std::string::npos);
  }
}
