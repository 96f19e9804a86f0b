// What the drivers of a member tell its agent, whose thread may be blocked.

#include "member_driver.hpp"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;

namespace {

LaunchSpec spec_of_two() {
  LaunchSpec spec;
  spec.rendezvous.standalone = false;
  spec.rendezvous.endpoint = "a:1";
  spec.rendezvous.min_nodes = spec.rendezvous.max_nodes = 2;
  return spec;
}

/// A member whose coordinator is the test.
class Driver final : public MemberDriver {
 public:
  Driver(boost::asio::io_context& io, RendezvousOptions options, RendezvousListener listener)
      : MemberDriver(io.get_executor(), std::move(options), std::move(listener)) {}
  Result<void> open() override {
    start_machine({});
    step(member_event::Begin{});
    step(FromCoordinator(Welcome{"b", 1000, 3, "", 0}));
    return {};
  }
  using MemberDriver::step;
  std::vector<Round> stopped;

 private:
  using MemberDriver::carry_out;
  void carry_out(const MemberAction& action) override {
    if (const auto* what = std::get_if<ToAgent>(&action)) return carry_out(*what);
    const auto* message = std::get_if<FromAgent>(&action);
    if (message != nullptr && std::holds_alternative<Stopped>(*message)) {
      stopped.push_back(std::get<Stopped>(*message).round);
    }
  }
};

}  // namespace

TEST_CASE("a round that is over before a blocked agent hears of it is not begun there, but the reason is heard") {
  boost::asio::io_context io;
  const LaunchSpec spec = spec_of_two();
  RendezvousOptions options;
  options.spec = &spec;
  std::vector<std::string> heard;
  const auto driver = std::make_shared<Driver>(io, std::move(options), [&](const ToAgent& what) {
    if (const auto* begins = std::get_if<RoundBegins>(&what)) heard.push_back(concat("round ", begins->round));
    if (std::holds_alternative<StopOrder>(what)) heard.emplace_back("stop");
    if (const auto* log = std::get_if<Log>(&what)) heard.push_back(log->text);
  });
  REQUIRE(driver->open());
  const auto starts = [&](Round round) { driver->step(FromCoordinator(Start{round, {}, 2, ""})); };
  const auto stops = [&](Round round) { driver->step(FromCoordinator(Stop{round, true, "why", 0})); };
  starts(1);
  stops(1);
  CHECK(driver->stopped == std::vector<Round>{1});
  starts(2);
  io.run();
  CHECK(heard == std::vector<std::string>{"why", "round 2"});
  // One that it has begun it has to stop.
  io.restart();
  stops(2);
  io.run();
  CHECK(heard == std::vector<std::string>{"why", "round 2", "stop"});
  CHECK(driver->stopped == std::vector<Round>{1});
}
