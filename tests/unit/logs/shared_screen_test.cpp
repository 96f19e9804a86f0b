#include "shared_screen.hpp"

#include "ddrun/test/catch.hpp"

using namespace ddrun::logs;

namespace {

std::string shown(std::string_view text, ScreenState state = {}) {
  std::string out;
  append_filtered(out, text, "[3] ", state);
  return out;
}

}  // namespace

TEST_CASE("colours, links and changes of the present line pass") {
  for (const char* text :
       {"plain\n", "\033[1;31mred\033[0m\n", "\033[38;5;237mx\033[m\r", "\033[K\033[0K\033[2C\033[3D",
        "\033]8;;https://example.org\033\\link\033]8;;\033\\", "\033(B\033[m", "\033[?25l\033[?25h"}) {
    CHECK(shown(text) == text);
  }
}

TEST_CASE("a line that is erased or restarted keeps its prefix") {
  CHECK(shown("\033[2Kbar\r") == "\r[3] \033[Kbar\r");
  CHECK(shown("\033[1Gbar") == "\r[3] bar");
  CHECK(shown("\033[11Gbar") == "\r[3] \033[10Cbar");
}

TEST_CASE("a worker moves up only over lines that it has written") {
  CHECK(shown("\033[2A\033[Kx", {.above = 3}) == "\033[2A\033[Kx");
  CHECK(shown("\033[2Ax", {.above = 1}) == "\033[1Ax");
  CHECK(shown("\033[9999999999Ax", {.above = 1}) == "\033[1Ax");
  CHECK(shown("\033[Ax") == "x");
  CHECK(shown("\033[1Fx") == "\r[3] x");
  CHECK(shown("\033[5B", {.below = 2}) == "\033[2B");
  ScreenState state;
  std::string out;
  append_filtered(out, "one\ntwo\n", "", state);
  CHECK(state.above == 2);
  append_filtered(out, "\033[2A", "", state);
  CHECK((state.above == 0 && state.below == 2));
  append_filtered(out, "one\n", "", state);
  CHECK((state.above == 1 && state.below == 1));
}

TEST_CASE("sequences that change other lines or query the terminal are dropped") {
  for (const char* text : {"\033[2J",
                           "\033[H",
                           "\033[3;4H",
                           "\033[1J",
                           "\0337",
                           "\0338",
                           "\033[s",
                           "\033[u",
                           "\033[5S",
                           "\033[2L",
                           "\033[1;5r",
                           "\033[?1049h",
                           "\033c",
                           "\033M",
                           "\033]0;title\a",
                           "\033[6n",
                           "\033[c",
                           "\033Pq...\033\\",
                           "\033]52;c;eA==\a",
                           "\033[",
                           "\033",
                           "\033[5",
                           "\033]0;cut off",
                           "\033(0",
                           "\033ktitle\033\\",
                           "\v\f",
                           "\x05\x0e\x0f",
                           "\xc2\x9b"
                           "2J",
                           "\xc2\x9d"
                           "0;title\a",
                           "\xc2\x85\xc2\x84\xc2\x8d",
                           "\xc2\x90q...\xc2\x9c",
                           "\xc2\x9b"
                           "5"}) {
    INFO(text + 1);
    CHECK(shown(text).empty());
  }
}

TEST_CASE("8-bit control characters are the sequences that they stand for") {
  CHECK(shown("\xc2\x9b"
              "31mred\xc2\x9bm \xc2\xa0\xc2\xb0 \xc2 \xc2"
              "A") ==
        "\033[31mred\033[m \xc2\xa0\xc2\xb0 \xc2 \xc2"
        "A");
  CHECK(
      moves_cursor("\xc2\x9b"
                   "2A"));
  CHECK_FALSE(
      moves_cursor("20 \xc2\xb0"
                   "C\v"));
  CHECK(without_erasing("step 3\v\f\xc2\x9bK") == "step 3");
}

TEST_CASE("the state has colours and a hidden cursor that are left behind") {
  ScreenState state;
  std::string out;
  append_filtered(out, "\033[31mred\033[?25l", "", state);
  CHECK((state.styled && state.hidden));
  append_filtered(out, "\033[0m\033[?25h", "", state);
  CHECK_FALSE((state.styled || state.hidden));
}
