// Agents and a coordinator that know each other by MUNGE, with programs in place of MUNGE's that do as they are told.
#include <stdlib.h>

#include "credential_keeper.hpp"
#include "credential_reader.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "fixture.hpp"
#include "linked_agent.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

/// `munge` and `unmunge` that seal nothing: a credential is the number of a file. Files in `directory` say what goes
/// wrong.
struct FakeMunge {
  FakeMunge() : path_before(variable("PATH").value_or("")) {
    const auto program = [&](const char* name, const char* lines) {
      directory.file(name, concat("#!/bin/sh\ncd ", directory.path(), " || exit 1\n", lines), 0755);
    };
    program("munge", R"sh(
[ ! -e munge-fails ] || { echo 'munge: Error: Failed to access the socket' >&2; exit 6; }
n=$(ls | grep -c '^sealed')
cat > sealed.$n
echo "MUNGE:$n:"
)sh");
    program("unmunge", R"sh(
IFS=: read -r _ n _
echo "$n" >> opened
while [ -e unmunge-hangs ]; do sleep 0.01; done
printf 'STATUS: 0\nUID: %s\n\n' "$(cat uid 2>/dev/null || id -u)"
cat "sealed.$n"
exit "$(cat status 2>/dev/null || echo 0)"
)sh");
    ::setenv("PATH", concat(directory.path(), ":", path_before).c_str(), 1);
  }
  ~FakeMunge() { ::setenv("PATH", path_before.c_str(), 1); }
  FakeMunge(const FakeMunge&) = delete;
  FakeMunge& operator=(const FakeMunge&) = delete;

  void set(const std::string& name, const std::string& content = "") const { directory.file(name, content); }
  void unset(const std::string& name) const { ::unlink(directory.file(name).c_str()); }
  /// How often a credential was opened.
  [[nodiscard]] auto times_opened() const {
    const auto lines = read_file(directory.file("opened"));
    return std::count(lines.begin(), lines.end(), '\n');
  }

  TemporaryDirectory directory;
  std::string path_before;
};

const MungePlace place{"12", ""};

/// A coordinator with a credential.
struct SealedServer {
  SealedServer() : keeper(context.get_executor(), place) {
    REQUIRE(keeper.try_out());
    options.secret = keeper.secret();
    options.credential = keeper.credential();
  }
  void start() {
    clear_coordinator_log();
    options.coordinator.heartbeat_interval = Milliseconds(60'000);
    options.on_notice = [this](const std::string& text) {
      const std::lock_guard lock(mutex);
      told += text;
    };
    auto started = CoordinatorServer::start(options);
    REQUIRE(started);
    server = std::move(*started);
  }
  bool has_noticed(const std::string& part) {
    return comes_true([&] {
      const std::lock_guard lock(mutex);
      return told.find(part) != std::string::npos;
    });
  }

  boost::asio::io_context context;
  CredentialKeeper keeper;
  CoordinatorServerOptions options;
  std::mutex mutex;
  std::string told;
  std::unique_ptr<CoordinatorServer> server;
};

AgentLinkOptions by_munge(const std::string& job = "12") {
  AgentLinkOptions options;
  options.munge = MungePlace{job, ""};
  return options;
}

}  // namespace

TEST_CASE("agents without a secret join by MUNGE, several of one machine and again") {
  const FakeMunge munge;
  SealedServer f;
  f.start();
  for (int i = 1; i <= 3; ++i) {
    if (i == 2) munge.set("status", "17");  // it has been opened on this machine
    Agent agent({{"127.0.0.1", f.server->port()}}, by_munge());
    REQUIRE(agent.link->start());
    REQUIRE(agent.hear_of<Welcome>());
    CHECK(munge.times_opened() == i);
    agent.link->send(Opened{5, 1});
    CHECK(agent.hear_of<Start>().value_or(Start{}).round == 5);
  }
}

TEST_CASE("the agent beside the coordinator needs no program") {
  const FakeMunge munge;
  SealedServer f;
  f.start();
  auto options = by_munge();
  options.secret = f.keeper.secret();
  Agent agent({{"127.0.0.1", f.server->port()}}, options);
  REQUIRE(agent.link->start());
  CHECK(agent.hear_of<Welcome>());
  CHECK(munge.times_opened() == 0);
}

TEST_CASE("an agent ends where MUNGE says that the coordinator is not of its job") {
  const FakeMunge munge;
  SealedServer f;
  f.start();
  std::string job = "12", expected;
  SECTION("of another user, who may not read it") {
    munge.set("status", "18");
    expected = "it belongs to another user";
  }
  SECTION("of another user, who lets all read it") {
    munge.set("uid", "4711");
    expected = "it belongs to user 4711";
  }
  SECTION("of another job of the same user") {
    job = "13";
    expected = "it belongs to Slurm job 12, and this ddrun to job 13";
  }
  SECTION("with another key") {
    munge.set("status", "14");
    expected = "the same key of MUNGE";
  }
  Agent agent({{"127.0.0.1", f.server->port()}}, by_munge(job));
  REQUIRE(agent.link->start());
  CHECK(has(agent.end(), expected));
  CHECK(agent.lost.value_or(Error{}).code == Errc::invalid_argument);
  CHECK(agent.messages.empty());
  CHECK(f.server->stats().joined == 0);
}

TEST_CASE("an agent tries again where MUNGE may say something else the next time") {
  const FakeMunge munge;
  SealedServer f;
  std::string expected;
  SECTION("the credential has expired") {
    munge.set("status", "15");
    expected = "has expired: do the clocks of the two machines differ?";
  }
  SECTION("munged does not run on its machine") {
    munge.set("status", "6");
    expected = "is munged running?";
  }
  SECTION("the coordinator has none at this moment") {
    f.options.credential = "";
    expected = "has no MUNGE credential at this moment: is munged running there?";
  }
  f.start();
  Agent agent({{"127.0.0.1", f.server->port()}}, by_munge());
  REQUIRE(agent.link->start());
  REQUIRE(agent.run_until([&] { return !agent.retries.empty(); }));
  CHECK(has(agent.retries[0], expected));
  munge.unset("status");
  f.server->set_credential(f.keeper.credential());
  CHECK(agent.hear_of<Welcome>());
}

TEST_CASE("sides of which one has a secret and the other MUNGE say so") {
  const FakeMunge munge;
  SealedServer f;
  SECTION("the agent has a secret") {
    f.start();
    Agent agent({{"127.0.0.1", f.server->port()}});
    REQUIRE(agent.link->start());
    CHECK(has(agent.end(), "knows agents by MUNGE, and this ddrun has a secret: give all agents the same secret"));
    CHECK(f.has_noticed("has a secret of its own, or --insecure, and was turned away"));
  }
  SECTION("the agent has --insecure") {
    f.start();
    Agent agent({{"127.0.0.1", f.server->port()}}, "");
    REQUIRE(agent.link->start());
    CHECK(has(agent.end(), "knows agents by MUNGE, and this ddrun was started with --insecure"));
  }
  SECTION("the coordinator has a secret") {
    f.options.credential.reset();
    f.start();
    Agent agent({{"127.0.0.1", f.server->port()}}, by_munge());
    REQUIRE(agent.link->start());
    CHECK(has(agent.end(), "asks for a secret and this ddrun has none"));
    CHECK(f.has_noticed("has no secret and was turned away"));
  }
  SECTION("the coordinator has --insecure") {
    f.options.credential.reset();
    f.options.secret.reset();
    f.start();
    Agent agent({{"127.0.0.1", f.server->port()}}, by_munge());
    REQUIRE(agent.link->start());
    CHECK(has(agent.end(), "was started with --insecure and this ddrun was not"));
    CHECK(f.has_noticed("was started with --insecure"));
  }
  CHECK(munge.times_opened() == 0);
}

TEST_CASE("a coordinator that speaks before it was shown a proof is none") {
  const FakeMunge munge;
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(listener, 1) == 0);
  REQUIRE(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  Agent agent({{"127.0.0.1", ntohs(address.sin_port)}}, by_munge());
  REQUIRE(agent.link->start());
  const int fd = ::accept(listener, nullptr, nullptr);
  const auto said = "DDRUN-RV" + unhex("0200 0000 00000000") + std::string(32, 'n') + unhex("0800") +
                    "MUNGE:0:" + std::string(32, 'p');
  REQUIRE(::send(fd, said.data(), said.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(said.size()));
  CHECK(has(agent.end(), "is not ddrun"));
  CHECK(munge.times_opened() == 0);
  ::close(fd);
  ::close(listener);
}

TEST_CASE("an unmunge that does not end is ended with its agent") {
  const FakeMunge munge;
  SealedServer f;
  f.start();
  munge.set("unmunge-hangs");
  const auto begin = Clock::now();
  {
    Agent agent({{"127.0.0.1", f.server->port()}}, by_munge());
    REQUIRE(agent.link->start());
    REQUIRE(agent.run_until([&] { return munge.times_opened() == 1; }));
    CHECK_FALSE(helper::running_helpers().empty());
  }
  CHECK(helper::running_helpers().empty());
  CHECK(Clock::now() - begin < munge_limits.time);
}

TEST_CASE("a credential is opened once, and who asks again meanwhile is told in the end") {
  const FakeMunge munge;
  boost::asio::io_context context;
  CredentialKeeper keeper(context.get_executor(), place);
  REQUIRE(keeper.try_out());
  CredentialReader reader(context.get_executor(), place);
  std::vector<int> told;
  const auto read = [&](int who) {
    reader.read(keeper.credential(), [&told, who](const Result<HmacKey>& secret) {
      CHECK(secret.has_value());
      told.push_back(who);
    });
  };
  const auto wait = [&](std::size_t count) {
    for (const auto end = soon(); told.size() < count && Clock::now() < end;) {
      context.restart();
      context.run_one_for(50ms);
    }
  };
  munge.set("unmunge-hangs");
  read(1);
  context.run_for(20ms);
  read(2);  // the first has lost his patience
  CHECK(told.empty());
  munge.unset("unmunge-hangs");
  wait(1);
  read(3);
  CHECK(told.size() == 1);  // not from within the call
  wait(2);
  CHECK(told == std::vector<int>{2, 3});
  CHECK(munge.times_opened() == 1);

  // One that could not be opened is tried again.
  REQUIRE(keeper.try_out());
  munge.set("status", "6");
  bool failed = false;
  reader.read(keeper.credential(), [&](const Result<HmacKey>& secret) { failed = !secret; });
  for (const auto end = soon(); !failed && Clock::now() < end;) {
    context.restart();
    context.run_one_for(50ms);
  }
  munge.unset("status");
  read(4);
  wait(3);
  CHECK(told == std::vector<int>{2, 3, 4});
  CHECK(munge.times_opened() == 3);
}

TEST_CASE("a coordinator's credential is sealed anew before it expires") {
  const FakeMunge munge;
  boost::asio::io_context context;
  CredentialKeeper keeper(context.get_executor(), place, {20ms, 30s, 10ms});
  CHECK(keeper.credential().empty());
  munge.set("munge-fails");
  const auto fails = keeper.try_out();
  REQUIRE_FALSE(fails);
  CHECK(has(fails.error().message, "munge: Error: Failed to access the socket"));
  munge.unset("munge-fails");
  REQUIRE(keeper.try_out());
  const auto first = keeper.credential();
  std::vector<std::string> credentials, troubles;
  keeper.keep([&](const std::string& credential) { credentials.push_back(credential); },
              [&](const std::string& trouble) { troubles.push_back(trouble); });
  const auto wait = [&](auto condition) {
    for (const auto end = soon(); !condition() && Clock::now() < end;) {
      context.restart();
      context.run_one_for(50ms);
    }
    return condition();
  };
  REQUIRE(wait([&] { return credentials.size() >= 2; }));
  CHECK(credentials[0] != first);
  CHECK(credentials[1] != credentials[0]);
  CHECK(keeper.credential() == credentials.back());
  CHECK(troubles.empty());

  // While munged is away the last one is good, and it is said once.
  munge.set("munge-fails");
  REQUIRE(wait([&] { return troubles.size() == 1; }));
  CHECK(has(troubles[0], "MUNGE gives the coordinator no new credential (munge: Error: Failed to access the socket)"));
  CHECK(keeper.credential() == credentials.back());
  const auto so_far = credentials.size();
  munge.unset("munge-fails");
  REQUIRE(wait([&] { return credentials.size() > so_far + 1; }));
  CHECK(troubles.size() == 1);

  keeper.rest();
  const auto at_rest = credentials.size();
  context.restart();
  context.run_for(100ms);
  CHECK(credentials.size() == at_rest);
}

TEST_CASE("a credential is sealed anew twice before it may expire, and not sent in its last moments") {
  CHECK(credential_life == 300s);
  CHECK(CredentialTimes{}.renewed_after == 100s);
  CHECK(CredentialTimes{}.good_for == 280s);
}

TEST_CASE("a credential that may have expired is given to nobody") {
  const FakeMunge munge;
  boost::asio::io_context context;
  CredentialKeeper keeper(context.get_executor(), place, {1h, 50ms, 1h});
  REQUIRE(keeper.try_out());
  CHECK(comes_true([&] { return keeper.credential().empty(); }));
}

TEST_CASE("who gives credentials to agents is told when the last one may have expired and there is no new one") {
  const FakeMunge munge;
  boost::asio::io_context context;
  CredentialKeeper keeper(context.get_executor(), place, {20ms, 100ms, 10ms});
  REQUIRE(keeper.try_out());
  munge.set("munge-fails");
  std::vector<std::string> credentials;
  keeper.keep([&](const std::string& credential) { credentials.push_back(credential); }, [](const std::string&) {});
  const auto wait = [&](std::size_t count) {
    for (const auto end = soon(); credentials.size() < count && Clock::now() < end;) {
      context.restart();
      context.run_one_for(50ms);
    }
    return credentials.size() == count;
  };
  REQUIRE(wait(1));
  CHECK(credentials[0].empty());
  munge.unset("munge-fails");
  REQUIRE(wait(2));
  CHECK_FALSE(credentials[1].empty());
}
