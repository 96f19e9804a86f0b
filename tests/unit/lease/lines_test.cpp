// Lines of the protocol, texts as words, and the clock of a lease.

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
    CHECK(from_word(to_word(text)) == text);
    CHECK(to_word(text).find_first_of(" \n/\"\\") == std::string::npos);
  }
  CHECK(to_word("a job/ü") == "a%20job%2F%C3%BC");
  for (const auto* wrong : {"", "%4", "%41", "%zz", "%c3", "a b", "%%", "ü"}) {
    CAPTURE(wrong);
    CHECK_FALSE(from_word(wrong));
  }
}

TEST_CASE("lines of a program") {
  const auto mine = line::parse("mine 7 12");
  REQUIRE(mine);
  CHECK(std::get<line::Mine>(*mine).term == 7);
  CHECK(std::get<line::Mine>(*mine).tick == 12);
  CHECK(std::get<line::Other>(line::parse("leader 7 n0%3A1").value()).address == "n0:1");
  CHECK(std::get<line::Other>(line::parse("leader 7 %").value()).address.empty());
  CHECK(std::get<line::Verdict>(line::parse("verdict exit%200").value()).text == "exit 0");
  CHECK(std::get<line::Refused>(line::parse("refused for a reason").value()).why == "for a reason");
  CHECK(std::get<line::Trouble>(line::parse("trouble \x1b[31mred").value()).text == "red");
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
    CHECK_FALSE(line::parse(wrong));
  }
}

TEST_CASE("lines that ddrun says") {
  const auto job = said::parse("job 1 5000 a%20job");
  REQUIRE(job);
  CHECK(std::get<said::Job>(*job).version == 1);
  CHECK(std::get<said::Job>(*job).ttl == 5s);
  CHECK(std::get<said::Job>(*job).job == "a job");
  // What comes behind a version that is not known may be anything.
  CHECK(std::get<said::Job>(said::parse("job 2 and more of it").value()).version == 2);
  CHECK(std::get<said::Campaign>(said::parse("campaign n0%3A1").value()).address == "n0:1");
  CHECK(std::get<said::Campaign>(said::parse("campaign %").value()).address.empty());
  CHECK(std::get<said::Tick>(said::parse("tick 18446744073709551615").value()).number == 18446744073709551615U);
  CHECK(std::get<said::Depose>(said::parse("depose 7").value()).term == 7);
  CHECK(std::holds_alternative<said::Resign>(said::parse("resign").value()));
  CHECK(std::get<said::Verdict>(said::parse("verdict exit%200").value()).text == "exit 0");
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
    CHECK_FALSE(said::parse(wrong));
  }
}

TEST_CASE("a fence holds from the sending of a request, less a margin, and says when it is over") {
  boost::asio::io_context io;
  int over = 0;
  auto fence = std::move(*Fence::make(io.get_executor(), [&] { ++over; }));
  CHECK_FALSE(fence->holds());
  const auto begin = FenceClock::now();
  fence->renewed(begin, 200ms);
  CHECK(fence->holds());
  CHECK(fence->left() <= 180ms);
  // One that was sent earlier shortens nothing.
  fence->renewed(begin - 1s, 200ms);
  CHECK(fence->holds());
  while (over == 0) io.run_one();
  CHECK(FenceClock::now() - begin >= 180ms);
  CHECK_FALSE(fence->holds());
  CHECK(fence->left() == 0ms);

  // It is over whether the loop has run or not.
  fence->renewed(FenceClock::now() - 1s, 1s);
  CHECK_FALSE(fence->holds());
  fence->renewed(FenceClock::now(), 1s);
  CHECK(fence->holds());
  fence->drop();
  CHECK_FALSE(fence->holds());
  fence.reset();
  io.run();
  CHECK(over <= 2);
}
