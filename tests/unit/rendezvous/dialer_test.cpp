#include "dialer.hpp"

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using namespace std::chrono_literals;

namespace {

DialerOptions options_for(std::vector<Endpoint> coordinators) {
  DialerOptions options;
  options.coordinators = std::move(coordinators);
  options.join.host = "here";
  options.connect_by = Clock::time_point() + 20s;
  return options;
}

/// A dialer and its last step, in virtual time.
struct Dialing {
  explicit Dialing(const DialerOptions& options) : dialer(options), step(dialer.begin(now)) {}
  explicit Dialing(std::vector<Endpoint> coordinators) : Dialing(options_for(std::move(coordinators))) {}

  /// An event; its arguments without the time. False if it changed nothing.
  template <class Event, class... Args>
  bool tell(Event event, const Args&... args) {
    std::optional<DialStep> next = (dialer.*event)(args..., now);
    if (!next) return false;
    step = std::move(*next);
    retries.insert(retries.end(), step.retries.begin(), step.retries.end());
    return true;
  }
  void wait() {
    REQUIRE(step.due != Deadline::max());
    now = step.due;
    tell(&Dialer::timed_out);
  }
  /// Through the handshake of the connection that it wants, up to JOIN or RESUME.
  void greet() {
    REQUIRE(wants<dial::Connect>());
    tell(&Dialer::connected);
    REQUIRE(wants<dial::Greet>());
    REQUIRE(tell(&Dialer::shook_hands, HandshakeState::done, protocol_version));
    REQUIRE(wants<FromAgent>());
  }
  void join() {
    greet();
    dialer.heard(now);
    REQUIRE(receive(Welcome{"its host", 1000, 3, "session", 5}));
    REQUIRE(wants<dial::Open>());
  }
  bool receive(const FromCoordinator& message) { return tell(&Dialer::received, message); }
  template <class What>
  [[nodiscard]] const What* wants() const {
    return std::get_if<What>(&step.next);
  }
  [[nodiscard]] std::string target() const {
    const auto* connect = wants<dial::Connect>();
    return connect != nullptr ? host_port_text(connect->to.host, connect->to.port) : "";
  }
  [[nodiscard]] std::string end() const { return wants<LinkLoss>() != nullptr ? wants<LinkLoss>()->error.message : ""; }

  Clock::time_point now;
  Dialer dialer;
  DialStep step;
  std::vector<std::string> retries;
};

using Texts = std::vector<std::string>;
const std::string first_coordinator = "the coordinator on 10.0.0.1:7 ";

}  // namespace

TEST_CASE("a dialer tries all addresses in turn, with growing pauses, until the time is over") {
  Dialing d({{"10.0.0.1", 7}, {"node0", 8}});
  for (Milliseconds pause{2}; pause < 1s; pause *= 2) {
    CHECK(d.target() == "10.0.0.1:7");
    d.tell(&Dialer::refused);
    REQUIRE(d.wants<dial::LookUp>());
    CHECK(d.wants<dial::LookUp>()->host == "node0");
    CHECK(d.wants<dial::LookUp>()->timeout == std::min<Clock::duration>(10s, Clock::time_point() + 20s - d.now));
    d.tell(&Dialer::resolved, Result<Texts>({"10.0.0.1", "fd00::1"}));
    CHECK(d.target() == "10.0.0.1:8");
    d.tell(&Dialer::unreachable, "no route");
    CHECK(d.target() == "[fd00::1]:8");
    d.wait();  // connecting takes too long
    REQUIRE(d.wants<dial::Pause>());
    CHECK_FALSE(d.step.not_listening);
    CHECK(d.step.due == std::min(d.now + pause, Clock::time_point() + 20s));
    CHECK(d.retries == Texts{"no process listens on 10.0.0.1:7", "node0:8 (10.0.0.1) cannot be reached: no route",
                             "node0:8 (fd00::1) does not answer; is there a firewall in between?"});
    d.retries.clear();
    d.wait();
    if (d.wants<LinkLoss>() != nullptr) break;
  }
  CHECK(d.end() ==
        "the coordinator could not be reached in time: no process listens on 10.0.0.1:7; node0:8 (fd00::1) does not "
        "answer; is there a firewall in between?. Is the ddrun there running, and is its port open for this machine?");
  CHECK(d.wants<LinkLoss>()->error.code == Errc::timeout);
  CHECK(d.now == Clock::time_point() + 20s);
}

TEST_CASE("a dialer without a usable address gives up") {
  CHECK(Dialing(std::vector<Endpoint>{}).end() == "there is no address of a coordinator");
  Dialing d({{"node0", 7}});
  d.tell(&Dialer::resolved, Result<Texts>(fail(Errc::unavailable, "node0 is unknown")));
  CHECK(d.retries == Texts{"node0 is unknown"});
  auto options = options_for({{"10.0.0.1", 7}});
  options.local_address = "fd00::9";
  CHECK(Dialing(options).step.retries ==
        Texts{"10.0.0.1:7 cannot be reached from 'fd00::9', which is no address of the same kind"});
  options.local_address = "10.0.0.9";
  const Dialing bound(options);
  REQUIRE(bound.wants<dial::Connect>());
  CHECK(bound.wants<dial::Connect>()->from == "10.0.0.9");
  options.connect_by = Clock::time_point();
  CHECK(Dialing(options).end().find("the time was over before it could be tried") != std::string::npos);
}

TEST_CASE("a dialer knows that no process listens once all connections were refused for half a second") {
  auto options = options_for({{"10.0.0.1", 7}});
  options.was_reachable = GENERATE(false, true);
  const bool was_accepted = GENERATE(false, true);
  Dialing d(options);
  d.tell(&Dialer::refused);
  CHECK_FALSE(d.step.not_listening);
  d.now += 500ms;
  d.tell(&Dialer::timed_out);
  if (was_accepted) d.tell(&Dialer::connected);
  d.tell(&Dialer::refused);
  CHECK(d.step.not_listening == (!was_accepted && !options.was_reachable));
  CHECK(d.end().empty() == (was_accepted || !options.was_reachable));
}

TEST_CASE("a dialer explains each failed handshake, and which of them a retry cannot mend") {
  using Row = std::tuple<HandshakeState, const char*, std::optional<Errc>>;
  const auto [state, text, permanent] =
      GENERATE(Row{HandshakeState::foreign_protocol, "is not ddrun: give the coordinator's port", Errc::protocol},
               Row{HandshakeState::other_version, "speaks version 7 of ddrun's protocol", Errc::protocol},
               Row{HandshakeState::needs_secret, "asks for a secret and this ddrun has none", Errc::invalid_argument},
               Row{HandshakeState::needs_no_secret, "was started with --insecure", Errc::invalid_argument},
               Row{HandshakeState::busy, "has too many connections to greet at once", std::nullopt},
               Row{HandshakeState::rejected, "this machine's is /a/secret on here;", Errc::invalid_argument},
               Row{HandshakeState::wrong_secret, "does not know this job's secret", Errc::invalid_argument});
  auto options = options_for({{"10.0.0.1", 7}});
  options.secret_file = "/a/secret";
  Dialing d(options);
  d.tell(&Dialer::connected);
  CHECK_FALSE(d.tell(&Dialer::shook_hands, HandshakeState::in_progress, std::uint16_t{0}));
  CHECK(d.tell(&Dialer::shook_hands, state, std::uint16_t{7}));
  CHECK(d.retries.at(0).find(text) != std::string::npos);
  CHECK(d.end().empty() != permanent.has_value());
  if (permanent) CHECK(d.wants<LinkLoss>()->error.code == *permanent);
}

TEST_CASE("a dialer goes to the next address where it is not answered or let in") {
  Dialing d({{"10.0.0.1", 7}, {"10.0.0.2", 7}});
  d.tell(&Dialer::connected);
  SECTION("without a hello") {
    d.tell(&Dialer::hung_up, "closed", true);
    CHECK(d.retries == Texts{"10.0.0.1:7 hung up before it answered: closed"});
  }
  SECTION("after the hello") {
    CHECK_FALSE(d.tell(&Dialer::shook_hands, HandshakeState::in_progress, protocol_version));
    d.tell(&Dialer::hung_up, "closed", true);
    CHECK(d.retries == Texts{first_coordinator + "hung up before it let us in: closed"});
  }
  SECTION("in time") {
    CHECK(d.step.due == d.now + 5s);
    d.wait();
    CHECK(d.retries == Texts{"what listens on 10.0.0.1:7 does not answer ddrun's greeting"});
  }
  SECTION("to its JOIN") {
    d.tell(&Dialer::shook_hands, HandshakeState::done, protocol_version);
    CHECK(d.step.due == d.now + 10s);
    d.wait();
    CHECK(d.retries == Texts{first_coordinator + "does not say whether this ddrun may take part"});
  }
  CHECK(d.target() == "10.0.0.2:7");
}

TEST_CASE("a dialer is sent elsewhere by a coordinator that refuses it") {
  auto options = options_for({{"10.0.0.1", 7}, {"10.0.0.2", 7}});
  options.join.claim.term = 6;
  Dialing d(options);
  d.greet();
  SECTION("another coordinator leads") {
    CHECK(d.receive(Refused{RefusalKind::moved, "moved"}));
    CHECK(d.retries == Texts{"moved"});
  }
  SECTION("it leads no more, and does not know") {
    CHECK(d.receive(Welcome{"its host", 1000, 3, "session", 5}));
    CHECK(d.retries == Texts{"the coordinator on its host (10.0.0.1:7) leads no more"});
  }
  SECTION("another job, unless that is the last address") {
    CHECK(d.receive(Refused{RefusalKind::other_job, "another job"}));
    d.greet();
    CHECK(d.receive(Refused{RefusalKind::other_job, "another job"}));
    CHECK(d.wants<dial::Open>());  // the refusal is for the owner
    return;
  }
  SECTION("its node rank is taken, for as long as a lost member may keep it") {
    CHECK(d.receive(Refused{RefusalKind::taken, "taken"}));
    CHECK(d.retries.empty());
    d.greet();
    d.now += 6s;
    CHECK(d.receive(Refused{RefusalKind::taken, "taken"}));
    CHECK(d.wants<dial::Open>());
    return;
  }
  SECTION("its node rank is taken until the time is over") {
    for (const auto wait : {0s, 20s}) {
      CHECK(d.receive(Refused{RefusalKind::taken, "taken"}));
      d.now += wait;
      if (wait == 0s) d.greet();
    }
    d.tell(&Dialer::timed_out);
    CHECK(d.end() == "the coordinator did not admit this machine in time: taken; taken");
    return;
  }
  CHECK(d.target() == "10.0.0.2:7");
}

TEST_CASE("a dialer gives up a node rank that it only wishes for once a lost member would have left it") {
  auto options = options_for({{"10.0.0.1", 7}});
  options.join.node_rank = 3;
  options.join.rank_is_wish = true;
  Dialing d(options);
  const auto joins = [&] {
    d.greet();
    return std::get<Join>(*d.wants<FromAgent>());
  };
  CHECK(joins().rank_is_wish);
  CHECK(d.receive(Refused{RefusalKind::taken, "taken"}));
  d.wait();
  CHECK(joins().node_rank == 3);
  d.now += 6s;
  CHECK(d.receive(Refused{RefusalKind::taken, "taken"}));
  d.wait();
  const Join join = joins();
  CHECK(join.node_rank == -1);
  CHECK_FALSE(join.rank_is_wish);
  d.now += 6s;
  CHECK(d.receive(Refused{RefusalKind::taken, "an agent of this id is there"}));
  CHECK(d.wants<dial::Open>());
}

TEST_CASE("a dialer resumes a broken connection at the same address until the coordinator gives the member up") {
  Dialing d({{"10.0.0.1", 7}, {"10.0.0.2", 7}});
  d.join();
  CHECK(d.dialer.is_joined());
  const std::string broke = "the connection to the coordinator on its host (10.0.0.1:7) broke: ";
  const auto broken_at = d.now;
  const bool in_order = GENERATE(false, true);
  d.tell(&Dialer::hung_up, in_order ? "closed" : "reset", in_order);
  CHECK(d.dialer.is_member());
  CHECK(d.dialer.is_joined() == in_order);
  if (in_order) {
    CHECK(d.end() == broke + "closed");
    CHECK_FALSE(d.wants<LinkLoss>()->unreachable);
    return;
  }
  SECTION("and succeeds") {
    d.tell(&Dialer::unreachable, "no route");
    CHECK(d.step.due == d.now + 2ms);
    d.wait();
    CHECK(d.target() == "10.0.0.1:7");
    d.greet();
    CHECK(std::get<Resume>(*d.wants<FromAgent>()).session == "session");
    CHECK(d.receive(Resumed{}));
    CHECK(d.wants<dial::Open>());
    CHECK(d.receive(Resumed{}));  // once is enough
    CHECK(d.end() == "the connection to " + first_coordinator + "cannot be used: a message came out of its order");
  }
  SECTION("and fails in time") {
    d.now = broken_at + 3s;
    d.tell(&Dialer::unreachable, "no route");
    CHECK(d.end() == broke + "reset; it could not be made again: 10.0.0.1:7 cannot be reached: no route");
    CHECK(d.wants<LinkLoss>()->unreachable);
  }
  SECTION("and fails sooner where no process listens") {
    d.tell(&Dialer::refused);
    d.now += 500ms;
    d.tell(&Dialer::refused);
    CHECK(d.end() == broke + "reset; it could not be made again: no process listens on 10.0.0.1:7");
    CHECK_FALSE(d.wants<LinkLoss>()->unreachable);
  }
  CHECK(d.retries.empty());  // of no use to the user
}

TEST_CASE("a dialer closes a connection on which an answer comes twice, or another message before it") {
  Dialing d({{"10.0.0.1", 7}});
  const std::string lost = "the connection to " + first_coordinator + "cannot be used: a message came out of its order";
  d.greet();
  SECTION("before WELCOME") {
    d.receive(GENERATE(FromCoordinator(Start{}), FromCoordinator(Open{}), FromCoordinator(Stop{}),
                       FromCoordinator(Waiting{}), FromCoordinator(Log{}), FromCoordinator(Resumed{})));
    CHECK(d.end() == lost);
  }
  SECTION("after it") {
    d.receive(Welcome{"its host", 1000, 3, "session", 5});
    d.receive(GENERATE(FromCoordinator(Welcome{"other", 1, 1, "other", 9}), FromCoordinator(Resumed{})));
    CHECK(d.end() == lost);
  }
}

TEST_CASE("a dialer whose step the order lacks loses its link") {
  auto options = options_for({{"10.0.0.1", 7}});
  const std::string state = GENERATE("connecting", "greeting", "joining", "joined");
  options.on_step = [&](std::string_view, std::string_view next, bool) { return next != state; };
  Dialing d(options);
  if (d.wants<dial::Connect>()) d.tell(&Dialer::connected);
  if (d.wants<dial::Greet>()) d.tell(&Dialer::shook_hands, HandshakeState::done, protocol_version);
  if (d.wants<FromAgent>()) d.receive(Welcome{"its host", 1000, 3, "session", 5});
  INFO(d.end());
  CHECK(
      d.end().starts_with("the connection to " + first_coordinator + "cannot be used: this ddrun took a wrong step, "));
}

TEST_CASE("a dialer with workers counts silence from what the coordinator has confirmed") {
  Dialing d({{"10.0.0.1", 7}});
  d.join();
  const auto begun = d.now;
  const auto ping = [&](std::uint32_t number, std::uint32_t heard) {
    d.now += 1s;
    d.dialer.heard(d.now);
    d.dialer.pinged(Ping{number, 0, heard}, d.now);
  };
  const auto start = [&] { return d.receive(Start{}) && !d.wants<LinkLoss>(); };
  SECTION("before the first PONG from JOIN") {
    d.now += 200ms;
    REQUIRE(start());
    CHECK(d.step.due == begun + 5500ms);
    CHECK(d.dialer.pinged(Ping{1}, d.now)->due == begun + 200ms + 4500ms);  // the coordinator may hear the PONG
  }
  SECTION("from a PONG, and an interval more") {
    ping(4'000'000'000, 0);
    ping(4'000'000'007, 4'000'000'000);
    REQUIRE(start());
    CHECK(d.step.due == begun + 1s + 4500ms);
    ping(4, 4'000'000'007);
    SECTION("and no longer with what it hears") {
      ping(11, 4'000'000'007);
      ping(18, 4'000'000'000);
      d.wait();
      CHECK(d.step.due == begun + 2s + 4500ms);
      d.wait();
      CHECK(d.end() ==
            "the coordinator on its host (10.0.0.1:7) does not confirm that it has heard this machine within 3.0 s");
      CHECK(d.wants<LinkLoss>()->unreachable);
    }
    SECTION("until STOPPED is sent") {
      d.dialer.workers_ended();
      ping(11, 4'000'000'007);
      d.wait();
      CHECK(d.step.due == begun + 4s + 3500ms);
    }
    SECTION("also for a connection to be resumed") {
      ping(11, 4'000'000'007);
      d.tell(&Dialer::hung_up, "reset", false);
      CHECK(d.step.due == begun + 2s + 1s + 3s);
      d.greet();
      const auto resumed = d.now;
      d.now += 500ms;
      CHECK(d.receive(Resumed{}));
      CHECK(d.step.due == resumed + 4500ms);
    }
    SECTION("but after a suspension of its own process it waits for a PING and for what that confirms") {
      d.now = d.step.due + 60s;
      d.tell(&Dialer::timed_out);
      CHECK(d.step.due == d.now + 2s);
    }
  }
  SECTION("so that it does not begin what comes too late") {
    for (std::uint32_t number = 1; number < 6; ++number) {
      if (number == 4) d.tell(&Dialer::timed_out);
      ping(number, 0);
    }
    d.now += 499ms;
    const bool too_late = GENERATE(true, false);
    if (too_late) d.now += 1ms;
    CHECK(start() == !too_late);
  }
}

TEST_CASE("a dialer takes a silent coordinator for lost, but not after a suspension of its own process") {
  auto options = options_for({{"10.0.0.1", 7}});
  options.is_local = true;
  Dialing local(options);
  local.join();
  CHECK(local.step.due == Deadline::max());
  Dialing d({{"10.0.0.1", 7}});
  d.join();
  d.now += 1s;
  d.dialer.heard(d.now);
  d.wait();
  CHECK(d.step.due == Clock::time_point() + 4500ms);
  d.now = d.step.due + 2s;  // the timer was late
  d.tell(&Dialer::timed_out);
  CHECK(d.step.due == d.now + 1s);
  d.wait();
  CHECK(d.end() == "nothing was heard from the coordinator on its host (10.0.0.1:7) for 3.0 s");
  CHECK(d.wants<LinkLoss>()->unreachable);
}
