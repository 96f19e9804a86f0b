#include "protocol.hpp"

#include <set>

#include "ddrun/remote/bootstrap.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::remote;

namespace {

std::vector<Target> hosts(std::uint32_t count) {
  std::vector<Target> all;
  for (std::uint32_t i = 0; i < count; ++i) all.push_back({i, "h" + std::to_string(i)});
  return all;
}

}  // namespace

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

TEST_CASE("Orders to start others arrive whole") {
  const FanOutOrder sent{hosts(3), {"ssh", "-F", "my file"}, "/usr/bin/ddrun"};
  const auto got = fan_out_from_json(to_json(sent));
  REQUIRE(got);
  CHECK(got->targets == sent.targets);
  CHECK(got->ssh == sent.ssh);
  CHECK(got->program == sent.program);
  CHECK_FALSE(fan_out_from_json("{}"));
}

TEST_CASE("Few hosts are a branch each, many are shared out evenly") {
  CHECK(split_targets({}, 4).empty());
  const auto few = split_targets(hosts(4), 4);
  REQUIRE(few.size() == 4);
  for (const auto& branch : few) CHECK(branch.rest.empty());

  for (const std::uint32_t count : {5U, 8U, 9U, 100U}) {
    CAPTURE(count);
    const auto many = split_targets(hosts(count), 4);
    REQUIRE(many.size() == 4);
    std::set<std::uint32_t> seen;
    std::size_t least = count;
    std::size_t most = 0;
    for (std::uint32_t i = 0; i < 4; ++i) {
      CHECK(many[i].root.index == i);
      seen.insert(many[i].root.index);
      for (const auto& target : many[i].rest) seen.insert(target.index);
      least = std::min(least, many[i].rest.size());
      most = std::max(most, many[i].rest.size());
    }
    CHECK(seen.size() == count);
    CHECK(most - least <= 1);
  }
}
