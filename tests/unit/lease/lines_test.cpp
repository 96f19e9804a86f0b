// Lines of the protocol, and percent-encoding.

#include "ddrun/lease/program_lines.hpp"
#include "ddrun/test/catch.hpp"

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
  using namespace to_program;
  CHECK(serialize(Job{5s, "a job"}) == "job 1 5000 a%20job");
  CHECK(serialize(Campaign{"n0:1"}) == "campaign n0%3A1");
  CHECK(serialize(Campaign{""}) == "campaign %");
  CHECK(serialize(Tick{18446744073709551615U}) == "tick 18446744073709551615");
  CHECK(serialize(Depose{7}) == "depose 7");
  CHECK(serialize(Resign{}) == "resign");
  CHECK(serialize(to_program::Verdict{"exit 0\n"}) == "verdict exit%200%0A");
}
