// Machines that vote, over real connections, and connections to them that are no agents of the job.

#include <boost/asio/io_context.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/ports.hpp"
#include "raw_agent.hpp"
#include "vote_messages.hpp"
#include "voting_lease.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

/// Three machines that vote, in one thread.
class Machines {
 public:
  struct Machine {
    std::shared_ptr<lease::Lease> lease;
    std::optional<lease::Leader> leader;
    std::string verdict, trouble, lost;
    std::optional<Error> unusable;
  };

  Machines() {
    for (int i = 0; i < 3; ++i) ports.push_back(static_cast<std::uint16_t>(free_port()));
  }
  ~Machines() {
    for (auto& machine : all) machine.lease.reset();
    context.poll();
  }

  void start(std::size_t i, const std::string& job = "job") {
    Machine& machine = all[i];
    VotingOptions voting;
    for (const std::uint16_t port : ports) voting.voters.push_back({"127.0.0.1", port});
    voting.mine = {i};
    voting.addresses = {"127.0.0.1"};
    voting.secret.emplace(the_secret);
    lease::Callbacks told;
    told.on_leader = [&machine](const lease::Leader& leader) { machine.leader = leader; };
    told.on_no_leader = [&machine] { machine.leader.reset(); };
    told.on_lost = [&machine](std::string_view why) {
      machine.leader.reset();
      machine.lost = why;
    };
    told.on_verdict = [&machine](std::string_view text) { machine.verdict = text; };
    told.on_trouble = [&machine](std::string_view text) { machine.trouble = text; };
    told.on_unusable = [&machine](const Error& error) { machine.unusable = error; };
    auto made = make_voting_lease(context.get_executor(), {job, 2000ms}, std::move(voting), std::move(told));
    REQUIRE(made);
    machine.lease = *made;
    machine.lease->start();
    machine.lease->campaign("machine " + std::to_string(i));
  }
  void start_all() {
    for (std::size_t i = 0; i < 3; ++i) start(i);
  }
  void stop(std::size_t i) {
    all[i].lease.reset();
    all[i].leader.reset();
  }

  template <class Condition>
  [[nodiscard]] bool comes(Condition condition) {
    const auto until = Clock::now() + 20s;
    while (!condition() && Clock::now() < until) context.run_for(2ms);
    return condition();
  }
  /// The one that leads, once all know it.
  std::optional<std::size_t> leader() {
    std::optional<std::size_t> found;
    const bool agreed = comes([&] {
      found.reset();
      std::optional<std::uint64_t> term;
      for (std::size_t i = 0; i < 3; ++i) {
        if (!all[i].lease) continue;
        if (!all[i].leader || (term && *term != all[i].leader->term)) return false;
        term = all[i].leader->term;
        if (all[i].leader->is_me) found = i;
      }
      return found && all[*found].lease->leads();
    });
    return agreed ? found : std::nullopt;
  }

  boost::asio::io_context context{1};
  std::vector<std::uint16_t> ports;
  std::vector<Machine> all{3};
};

}  // namespace

TEST_CASE("machines that vote: one leads, the others know where it is, and the next one has a higher term") {
  Machines machines;
  machines.start_all();
  const auto first = machines.leader();
  REQUIRE(first);
  const std::uint64_t term = machines.all[*first].leader->term;
  for (const auto& machine : machines.all) CHECK(machine.leader->address == "machine " + std::to_string(*first));
  std::optional<bool> given_back;
  machines.all[*first].lease->resign([&](const Result<void>& result) { given_back = result.has_value(); });
  CHECK_FALSE(machines.all[*first].lease->leads());
  machines.all[*first].leader.reset();
  REQUIRE(machines.comes([&] { return given_back.has_value(); }));
  CHECK(*given_back);
  const auto second = machines.leader();
  REQUIRE(second);
  CHECK(*second != *first);
  CHECK(machines.all[*second].leader->term > term);
}

TEST_CASE("machines that vote: the end of the leader's process is known at once, and one that was away votes again") {
  Machines machines;
  machines.start_all();
  for (int i = 0; i < 3; ++i) {
    const auto first = machines.leader();
    REQUIRE(first);
    machines.stop(*first);
    REQUIRE(machines.leader());
    machines.start(*first);
  }
}

TEST_CASE("machines that vote: without more than half of them the lease is lost, and told") {
  Machines machines;
  machines.start_all();
  const auto first = machines.leader();
  REQUIRE(first);
  for (std::size_t i = 0; i < 3; ++i) {
    if (i != *first) machines.stop(i);
  }
  auto& left = machines.all[*first];
  REQUIRE(machines.comes([&] { return !left.lost.empty(); }));
  CHECK_FALSE(left.lease->leads());
  REQUIRE(machines.comes([&] { return !left.trouble.empty(); }));
  CHECK_THAT(left.trouble, contains("only 1 of the 3 machines of --rdzv-endpoint answer, and 2 are needed"));
}

TEST_CASE("machines that vote: a verdict is recorded once, known to all, and ends the search for a leader") {
  Machines machines;
  machines.start_all();
  const auto first = machines.leader();
  REQUIRE(first);
  std::optional<Result<void>> recorded;
  machines.all[*first].lease->record_verdict("well", [&](Result<void> result) { recorded = std::move(result); });
  REQUIRE(machines.comes([&] { return recorded.has_value(); }));
  CHECK(*recorded);
  for (auto& machine : machines.all) CHECK(machines.comes([&] { return machine.verdict == "well"; }));
  recorded.reset();
  machines.all[*first].lease->record_verdict("badly", [&](Result<void> result) { recorded = std::move(result); });
  REQUIRE(machines.comes([&] { return recorded.has_value(); }));
  CHECK(recorded->error().code == Errc::invalid_argument);
  machines.stop(*first);
  // One that remembers nothing hears of it from the others.
  machines.all[*first].verdict.clear();
  machines.start(*first);
  CHECK(machines.comes([&] { return machines.all[*first].verdict == "well"; }));
  CHECK_FALSE(machines.all[*first].leader);
}

TEST_CASE("a voter hears agents of its job only") {
  Machines machines;
  machines.start_all();
  const auto first = machines.leader();
  REQUIRE(first);
  // While this thread waits for an answer the voters have to run.
  std::thread runs([&] { machines.context.run_for(4s); });
  const std::uint16_t port = machines.ports[0];
  const auto sealed = [](RawAgent& agent, std::uint8_t type, const std::string& payload) {
    std::string bytes;
    REQUIRE(agent.keys().sealer.seal(type, payload, bytes));
    return bytes;
  };
  VoteRequest enter;
  enter.number = 1;
  enter.text = "job";
  enter.ttl_ms = 2000;
  VoteRequest depose;
  depose.kind = VoteRequest::Kind::depose;
  depose.number = 1;
  depose.term = 1'000'000;
  {
    RawAgent stranger(port);
    stranger.send("GET / HTTP/1.1\r\n\r\n");
    CHECK(stranger.receive_all().empty());
  }
  {
    RawAgent stranger(port);
    CHECK(stranger.greet("another secret, also long") == Greeting::turned_away);
  }
  for (const auto& [type, payload] :
       {std::pair<std::uint8_t, std::string>{vote_request_type, encode(depose)},  // before it has entered
        {1, encode(enter)},
        {vote_request_type, encode(enter).substr(1)},
        {vote_request_type, std::string(max_vote_payload + 1, 'x')}}) {
    RawAgent agent(port);
    REQUIRE(agent.greet() == Greeting::done);
    agent.send(sealed(agent, type, payload));
    CHECK(agent.receive_all().empty());
  }
  // More than a voter lets in at once that have not entered: the others wait or are cut off, and agents go on.
  std::vector<std::unique_ptr<RawAgent>> many;
  for (int i = 0; i < 40; ++i) many.push_back(std::make_unique<RawAgent>(port));
  CHECK(many.back()->receive_all().empty());
  many.clear();
  runs.join();
  machines.context.restart();
  CHECK(machines.leader() == first);
  for (const auto& machine : machines.all) CHECK(machine.lost.empty());
}
