// Lines of the protocol, percent-encoding, and the fence.

#include "ddrun/lease/fence.hpp"
#include "ddrun/lease/lease.hpp"
#include "ddrun/lease/program_lines.hpp"
#include "ddrun/test/catch.hpp"

#include <boost/asio/io_context.hpp>

using namespace ddrun;
using namespace ddrun::lease;
using namespace std::chrono_literals;

TEST_CASE("bytes come back from words as they were, and nothing else is one") {
  const std::vector<std::string> texts{"",  "a",     "ab", "abc", "a b/c%", "\xff\x01\n", std::string(3, '\0'),
                                       "%", "~-._A9"};
  for (const std::string& text : texts) {
    CHECK(percent_decode(percent_encode(text)) == text);
    CHECK(percent_encode(text).find_first_of(" \n/\"\\") == std::string::npos);
  }
  CHECK(percent_encode("a job/ü") == "a%20job%2F%C3%BC");
  for (const auto* wrong : {"", "%4", "%41", "%zz", "%c3", "a b", "%%", "ü"}) {
    CAPTURE(wrong);
    CHECK_FALSE(percent_decode(wrong));
  }
}

TEST_CASE("lines of a program") {
  const auto mine = from_program::parse("mine 7 12");
  REQUIRE(mine);
  CHECK(std::get<from_program::Mine>(*mine).term == 7);
  CHECK(std::get<from_program::Mine>(*mine).tick == 12);
  CHECK(std::get<from_program::Other>(from_program::parse("leader 7 n0%3A1").value()).address == "n0:1");
  CHECK(std::get<from_program::Other>(from_program::parse("leader 7 %").value()).address.empty());
  CHECK(std::get<from_program::Verdict>(from_program::parse("verdict exit%200").value()).text == "exit 0");
  CHECK(std::get<from_program::Refused>(from_program::parse("refused for a reason").value()).why == "for a reason");
  CHECK(std::get<from_program::Trouble>(from_program::parse("trouble \x1b[31mred").value()).text == "red");
  for (const auto* wrong : {"",
                            " ",
                            "mine",
                            "mine 7",
                            "mine 7 ",
                            "mine 0 1",
                            "mine -1 1",
                            "mine 7 1 ",
                            "mine 7 1 2",
                            "mine 7x 1",
                            "mine 99999999999999999999 1",
                            "leader 7",
                            "leader 7 a b",
                            "leader 7 a%",
                            "verdict",
                            "verdict %",
                            "none ",
                            "None",
                            "done",
                            "done x",
                            "trouble",
                            "recorded x",
                            "lost"}) {
    CAPTURE(wrong);
    CHECK_FALSE(from_program::parse(wrong));
  }
}

TEST_CASE("lines from ddrun") {
  const auto job = to_program::parse("job 1 5000 a%20job");
  REQUIRE(job);
  CHECK(std::get<to_program::Job>(*job).version == 1);
  CHECK(std::get<to_program::Job>(*job).ttl == 5s);
  CHECK(std::get<to_program::Job>(*job).job == "a job");
  // The rest of a line of an unknown version is ignored.
  CHECK(std::get<to_program::Job>(to_program::parse("job 2 and more of it").value()).version == 2);
  CHECK(std::get<to_program::Campaign>(to_program::parse("campaign n0%3A1").value()).address == "n0:1");
  CHECK(std::get<to_program::Campaign>(to_program::parse("campaign %").value()).address.empty());
  CHECK(std::get<to_program::Tick>(to_program::parse("tick 18446744073709551615").value()).number ==
        18446744073709551615U);
  CHECK(std::get<to_program::Depose>(to_program::parse("depose 7").value()).term == 7);
  CHECK(std::holds_alternative<to_program::Resign>(to_program::parse("resign").value()));
  CHECK(std::get<to_program::Verdict>(to_program::parse("verdict exit%200").value()).text == "exit 0");
  for (const auto* wrong : {"",
                            " ",
                            "job",
                            "job 0 5000 a",
                            "job 1",
                            "job 1 5000",
                            "job 1 0 a",
                            "job 1 -5 a",
                            "job 1 99999999999 a",
                            "job 1 5000 a b",
                            "job 1 5000 %a",
                            "campaign",
                            "campaign a b",
                            "campaign a%",
                            "tick",
                            "tick 0",
                            "tick x",
                            "tick 1 ",
                            "depose",
                            "depose 0",
                            "depose x",
                            "depose 1 2",
                            "resign now",
                            "verdict",
                            "verdict %",
                            "done 1",
                            "Tick 1"}) {
    CAPTURE(wrong);
    CHECK_FALSE(to_program::parse(wrong));
  }
}

TEST_CASE("a fence is held from the sending of a request, less a margin, and reports its expiry") {
  boost::asio::io_context io;
  int over = 0;
  auto fence = std::move(*Fence::make(io.get_executor(), [&] { ++over; }));
  CHECK_FALSE(fence->is_held());
  const auto begin = FenceClock::now();
  fence->renewed(begin, 200ms);
  CHECK(fence->is_held());
  CHECK(fence->remaining() <= 180ms);
  // An earlier request shortens nothing.
  fence->renewed(begin - 1s, 200ms);
  CHECK(fence->is_held());
  while (over == 0) io.run_one();
  CHECK(FenceClock::now() - begin >= 180ms);
  CHECK_FALSE(fence->is_held());
  CHECK(fence->remaining() == 0ms);

  // Expires even if the event loop has not run.
  fence->renewed(FenceClock::now() - 1s, 1s);
  CHECK_FALSE(fence->is_held());
  fence->renewed(FenceClock::now(), 1s);
  CHECK(fence->is_held());
  fence->drop();
  CHECK_FALSE(fence->is_held());
  fence.reset();
  io.run();
  CHECK(over <= 2);
}
