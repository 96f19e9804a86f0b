// Ranks that only speak PMI-1, on sockets, against the listener and the server as they are joined in the agent.

#include <fcntl.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>
#include <vector>

#include "ddrun/base/address.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/pmi/pmi_server.hpp"
#include "ddrun/pmi/rank_listener.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/processes.hpp"
#include "ddrun/test/soon.hpp"

using namespace ddrun;
using namespace ddrun::pmi;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

/// One end of a connection to the listener.
class FakeRank {
 public:
  explicit FakeRank(const std::string& address, int receive_buffer = 0)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto port = static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
    const auto to = SocketAddress::parse("127.0.0.1", port);
    if (receive_buffer > 0) ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    REQUIRE(::connect(fd_.get(), to->get(), to->size) == 0);
    REQUIRE(::fcntl(fd_.get(), F_SETFL, O_NONBLOCK) == 0);
  }
  /// As much of it as the socket takes.
  std::size_t send(const std::string& text) const {
    const ssize_t size = ::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL);
    return size < 0 ? 0 : static_cast<std::size_t>(size);
  }
  void say(const std::string& line) const { REQUIRE(send(line + "\n") == line.size() + 1); }
  void read() {
    std::string part(64 * 1024, '\0');
    for (ssize_t size; (size = ::recv(fd_.get(), part.data(), part.size(), 0)) != -1;) {
      if (size == 0) {
        at_end_ = true;
        return;
      }
      text_.append(part.data(), static_cast<std::size_t>(size));
    }
    if (errno != EAGAIN) at_end_ = true;
  }
  [[nodiscard]] bool at_end() const { return at_end_; }
  [[nodiscard]] const std::string& text() const { return text_; }
  void forget() { text_.clear(); }
  void close() { fd_.reset(); }

 private:
  UniqueFd fd_;
  std::string text_;
  bool at_end_ = false;
};

World world_of(int ranks) {
  World world{.size = ranks, .ranks = {}, .random = std::string(16, '\1')};
  for (int rank = 0; rank < ranks; ++rank) world.ranks.push_back(rank);
  return world;
}

/// The listener and the server of one round.
struct Machine {
  explicit Machine(int ranks) : world(world_of(ranks)), server(world) {
    REQUIRE(listener.open());
    REQUIRE(listener.begin_round(world.ranks, ranks));
    step(pmi_event::Start{});
  }
  ~Machine() { listener.close(); }

  void step(const PmiEvent& event) {
    for (const auto& action : server.step(event, Clock::now())) {
      if (const auto* answer = std::get_if<pmi_action::Answer>(&action)) listener.answer(answer->slot, answer->text);
      if (const auto* cut = std::get_if<pmi_action::CutOff>(&action)) listener.cut_off(cut->slot);
      if (const auto* fail = std::get_if<pmi_action::Fail>(&action)) failures.push_back(fail->why);
      if (const auto* notice = std::get_if<pmi_action::Notice>(&action)) notices.push_back(notice->text);
    }
  }
  bool run_until(const std::function<bool()>& condition) {
    for (const Deadline end = soon(); Clock::now() < end;) {
      io.restart();
      io.run_one_for(10ms);
      if (condition()) return true;
    }
    return false;
  }
  FakeRank connect(int slot, int receive_buffer = 0) {
    FakeRank rank(listener.address(), receive_buffer);
    rank.say("cmd=initack pmiid=" + listener.token(slot));
    return rank;
  }
  std::string ask(FakeRank& rank, const std::string& line) {
    rank.forget();
    rank.say(line);
    CHECK(run_until([&] { return rank.read(), rank.text().ends_with('\n') || rank.at_end(); }));
    return rank.text();
  }
  bool is_closed(FakeRank& rank) {
    return run_until([&] { return rank.read(), rank.at_end(); });
  }

  boost::asio::io_context io;
  World world;
  PmiServer server;
  int lines = 0;
  RankListener listener{io.get_executor(),
                        {[this](int slot, std::string line) {
                           ++lines;
                           step(pmi_event::Line{slot, std::move(line)});
                         },
                         [this](int slot, std::string why) {
                           step(pmi_event::Garbage{slot, std::move(why)});
                         }}};
  std::vector<std::string> failures, notices;
};

const std::string init = "cmd=init pmi_version=1 pmi_subversion=1";

}  // namespace

TEST_CASE("a rank with its token is given its rank, once") {
  Machine machine(2);
  CHECK(machine.listener.address().starts_with("127.0.0.1:"));
  CHECK(machine.listener.token(0) != machine.listener.token(1));
  FakeRank rank = machine.connect(1);
  REQUIRE(machine.run_until([&] { return rank.read(), rank.text().ends_with("debug=0\n"); }));
  CHECK(rank.text() == "cmd=initack\ncmd=set size=2\ncmd=set rank=1\ncmd=set debug=0\n");
  CHECK(machine.ask(rank, init) == "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");

  FakeRank again = machine.connect(1), wrong(machine.listener.address()), other(machine.listener.address());
  wrong.say("cmd=initack pmiid=0");
  other.say("GET / HTTP/1.1");
  const auto before = Clock::now();
  for (FakeRank* stranger : {&again, &wrong, &other}) {
    CHECK(machine.is_closed(*stranger));
    CHECK(stranger->text().empty());
  }
  // Guessing takes its time.
  CHECK(Clock::now() - before > 900ms);
  CHECK(machine.ask(rank, "cmd=get_universe_size") == "cmd=universe_size size=2\n");

  // The next round has other tokens, and no connection of this one.
  const std::string old = machine.listener.token(0);
  REQUIRE(machine.listener.begin_round({0, 1}, 2));
  CHECK(machine.is_closed(rank));
  FakeRank late(machine.listener.address());
  late.say("cmd=initack pmiid=" + old);
  CHECK(machine.is_closed(late));
  CHECK(late.text().empty());
}

TEST_CASE("no descriptor of the listener is inherited") {
  const auto inheritable = [] {
    int count = 0;
    for (int fd = 3; fd < 256; ++fd) {
      const int flags = ::fcntl(fd, F_GETFD);
      if (flags >= 0 && (flags & FD_CLOEXEC) == 0) ++count;
    }
    return count;
  };
  const int before = inheritable();
  Machine machine(1);
  FakeRank rank = machine.connect(0);
  machine.ask(rank, init);
  CHECK(inheritable() == before);
}

TEST_CASE("garbage cuts off that rank alone") {
  Machine machine(2);
  FakeRank one = machine.connect(0), two = machine.connect(1);
  machine.ask(one, init);
  machine.ask(two, init);
  SECTION("a line that is none") { one.say("\x01\x02\x03"); }
  SECTION("a line that has no end") {
    std::string left(64 * 1024 + 1, 'x');
    REQUIRE(machine.run_until([&] { return left.erase(0, one.send(left)), left.empty(); }));
  }
  CHECK(machine.is_closed(one));
  CHECK(machine.notices.size() == 1);
  CHECK(machine.ask(two, "cmd=get_appnum") == "cmd=appnum appnum=0\n");
  CHECK(machine.failures.empty());
}

TEST_CASE("a line of 64 KiB is read") {
  Machine machine(1);
  FakeRank rank = machine.connect(0);
  machine.ask(rank, init);
  rank.forget();
  std::string left = "cmd=get key=" + std::string(64 * 1024 - 12, 'k') + "\n";
  REQUIRE(machine.run_until([&] { return left.erase(0, rank.send(left)), left.empty(); }));
  REQUIRE(machine.run_until([&] { return rank.read(), rank.text().ends_with("unknown\n"); }));
}

TEST_CASE("a rank that does not read its answers is not read either") {
  Machine machine(2);
  FakeRank slow = machine.connect(0, 4096), other = machine.connect(1);
  machine.ask(slow, init);
  machine.ask(other, init);
  machine.ask(slow, "cmd=put kvsname=k key=a value=" + std::string(1024, 'v'));
  slow.forget();
  const std::string question = "cmd=get kvsname=k key=a\n";
  constexpr int questions = 16'384;  // their answers take 17 MB, more than the buffers of a socket
  std::string unsent;
  for (int i = 0; i < questions; ++i) unsent += question;
  REQUIRE(machine.run_until([&] { return unsent.erase(0, slow.send(unsent)), unsent.empty(); }));
  int lines = 0, idle = 0;
  REQUIRE(machine.run_until([&] { return (idle = std::exchange(lines, machine.lines) == lines ? idle + 1 : 0) > 20; }));
  CHECK(lines < questions);
  CHECK(machine.ask(other, "cmd=get_appnum") == "cmd=appnum appnum=0\n");
  CHECK(machine.lines == lines + 1);
  // All is answered as soon as it reads.
  const std::size_t answer = sizeof "cmd=get_result rc=0 msg=success value=" + 1024;
  REQUIRE(machine.run_until([&] { return slow.read(), slow.text().size() == questions * answer; }));
}

TEST_CASE("when a worker has ended, what its socket holds comes before its end") {
  Machine machine(1);
  FakeRank rank = machine.connect(0);
  machine.ask(rank, init);
  SECTION("MPI_Finalize") {
    rank.say("cmd=finalize");
    rank.close();
    machine.listener.drain(0);
    machine.step(pmi_event::Ended{0, true});
    CHECK(machine.failures.empty());
  }
  SECTION("MPI_Abort") {
    rank.say("cmd=abort exitcode=3");
    rank.close();
    machine.listener.drain(0);
    machine.step(pmi_event::Ended{0, false});
    CHECK(machine.failures == std::vector<std::string>{"called MPI_Abort(3)"});
  }
  SECTION("nothing, though a process that it has left behind holds the connection") {
    machine.listener.drain(0);
    CHECK(machine.is_closed(rank));
    machine.listener.drain(0);
    CHECK(machine.lines == 1);
  }
  SECTION("questions without end") {
    std::string questions;
    while (questions.size() < 60'000) questions += "cmd=get_appnum\n";
    REQUIRE(rank.send(questions) == questions.size());
    machine.listener.drain(0);
    rank.forget();
    CHECK(machine.is_closed(rank));
    CHECK(rank.text().empty());
    CHECK(machine.lines > 1000);
  }
}

TEST_CASE("silent strangers are closed after a second, but only where a rank waits") {
  Machine machine(1);
  std::vector<std::unique_ptr<FakeRank>> strangers;
  for (int i = 0; i < 64; ++i) strangers.push_back(std::make_unique<FakeRank>(machine.listener.address()));
  const auto closed = [&] {
    int count = 0;
    for (const auto& stranger : strangers) {
      stranger->read();
      if (stranger->at_end()) ++count;
    }
    return count;
  };
  const Deadline quiet = Clock::now() + 1500ms;
  REQUIRE(machine.run_until([&] { return Clock::now() > quiet; }));
  CHECK(closed() == 0);
  FakeRank rank = machine.connect(0);
  CHECK(machine.ask(rank, init).find("cmd=response_to_init") != std::string::npos);
  CHECK(closed() > 0);
}

TEST_CASE("128 ranks meet in barriers") {
  constexpr int ranks = 128;
  Machine machine(ranks);
  std::vector<std::unique_ptr<FakeRank>> all;
  // All connect before one is accepted.
  for (int rank = 0; rank < ranks; ++rank) all.push_back(std::make_unique<FakeRank>(machine.connect(rank)));
  const auto all_have = [&](const std::string& end) {
    return machine.run_until([&] {
      return std::all_of(all.begin(), all.end(), [&](const auto& rank) {
        rank->read();
        return rank->text().ends_with(end);
      });
    });
  };
  REQUIRE(all_have("debug=0\n"));
  for (const auto& rank : all) rank->say(init);
  REQUIRE(all_have("rc=0\n"));
  for (int fence = 0; fence < 3; ++fence) {
    for (int rank = 0; rank < ranks; ++rank) {
      all[static_cast<std::size_t>(rank)]->say(concat("cmd=put kvsname=k key=", fence, "-", rank, " value=", rank));
    }
    REQUIRE(all_have("success\n"));
    for (const auto& rank : all) rank->say("cmd=barrier_in");
    REQUIRE(all_have("barrier_out\n"));
    for (int rank = 0; rank < ranks; ++rank) {
      all[static_cast<std::size_t>(rank)]->say(concat("cmd=get kvsname=k key=", fence, "-", (rank + 1) % ranks));
    }
    for (int rank = 0; rank < ranks; ++rank) {
      FakeRank& one = *all[static_cast<std::size_t>(rank)];
      const std::string value = concat("value=", (rank + 1) % ranks, "\n");
      REQUIRE(machine.run_until([&] { return one.read(), one.text().ends_with(value); }));
    }
  }
  for (const auto& rank : all) rank->say("cmd=finalize");
  REQUIRE(all_have("finalize_ack\n"));
  CHECK(machine.notices.empty());
}
