// Machines that vote, over real connections, and connections to them that are no agents of the job.

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/ports.hpp"
#include "raw_agent.hpp"
#include "vote_connection.hpp"
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

  void start(std::size_t i, const std::string& job = "job") { start(i, job, ports); }
  void start(std::size_t i, const std::string& job, const std::vector<std::uint16_t>& list) {
    Machine& machine = all[i];
    VotingOptions voting;
    for (const std::uint16_t port : list) voting.voters.push_back({"127.0.0.1", port});
    voting.mine = {static_cast<std::size_t>(std::find(list.begin(), list.end(), ports[i]) - list.begin())};
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

TEST_CASE("a machine with another list of machines that vote neither leads nor helps to, and is told why") {
  Machines machines;
  const std::vector<std::uint16_t> other{machines.ports[2], machines.ports[1], static_cast<std::uint16_t>(free_port())};
  machines.start(2, "job", other);
  machines.start(1);
  const auto of_another = [&](std::size_t i) {
    const std::string& said = machines.all[i].trouble;
    return said.find("votes for the job job at 127.0.0.1:") != said.npos && said.find(", not job at ") != said.npos;
  };
  CHECK(machines.comes([&] { return of_another(1) && of_another(2); }));
  CHECK_FALSE(machines.all[1].leader);
  CHECK_FALSE(machines.all[2].leader);
  machines.start(0);
  const auto leads = [&](std::size_t i) { return machines.all[i].leader && machines.all[i].lease->leads(); };
  CHECK(machines.comes([&] { return leads(0) || leads(1); }));
  CHECK_FALSE(machines.all[2].leader);
}

TEST_CASE("a voter that answers what is no answer is left, told and tried again") {
  using boost::asio::ip::tcp;
  Machines machines;
  const HmacKey key(the_secret);
  tcp::acceptor acceptor(machines.context, {boost::asio::ip::make_address("127.0.0.1"), machines.ports[0]});
  std::vector<std::shared_ptr<VoteConnection>> taken;
  std::function<void()> take = [&] {
    acceptor.async_accept([&](const boost::system::error_code& ec, tcp::socket socket) {
      if (ec) return;
      VoteConnection::Callbacks callbacks;
      callbacks.on_frame = [&, i = taken.size()](std::uint8_t, std::string_view) { taken[i]->send(99, "no answer"); };
      taken.push_back(
          std::make_shared<VoteConnection>(std::move(socket), VoteConnection::voters(&key), std::move(callbacks)));
      taken.back()->start(5s);
      take();
    });
  };
  take();
  machines.start(1);
  CHECK(machines.comes([&] {
    return taken.size() > 2 && machines.all[1].trouble.find("it sent what cannot be used") != std::string::npos;
  }));
  for (const auto& connection : taken) connection->close(true);
  acceptor.close();
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
  enter.text = "job at";
  for (std::size_t i = 0; i < 3; ++i)
    enter.text += (i == 0 ? " 127.0.0.1:" : ",127.0.0.1:") + std::to_string(machines.ports[i]);
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

TEST_CASE("who is greeted by a voter and never enters is dismissed") {
  Machines machines;
  machines.start_all();
  REQUIRE(machines.leader());
  std::atomic<bool> done = false;
  std::thread runs([&] {
    while (!done) machines.context.run_for(20ms);
  });
  {
    RawAgent silent(machines.ports[0]);
    CHECK(silent.greet() == Greeting::done);
    CHECK(silent.receive_all().empty());  // until the voter hangs up
  }
  done = true;
  runs.join();
}
