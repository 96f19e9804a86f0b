#include "ddrun/base/text.hpp"

#include "ddrun/test/catch.hpp"

using ddrun::cut_line;
using ddrun::plain_line;

TEST_CASE("escape sequences and control characters are taken out of a worker's line") {
  CHECK(plain_line("\033[1;31mValueError\033[0m: boom\r") == "ValueError: boom");
  CHECK(plain_line("\033]0;title\007bell\a and \x01 control\x7f") == "bell and  control");
  CHECK(plain_line("\033]8;;http://x\033\\link\033]8;;\033\\") == "link");
  CHECK(plain_line("\033Pq#0;2\033\\after \033_x\033\\apc") == "after apc");
  CHECK(plain_line("\033ktitle\033\\text") == "text");
  CHECK(plain_line("\033(Bascii \0337saved\033c") == "ascii saved");
  CHECK(plain_line("\xc2\x9b"
                   "31mred \xc2\x85") == "31mred ");
  CHECK(plain_line("a\tb") == "a    b");
  CHECK(plain_line(" 10%\r 20%\r 30%\r") == " 30%");
  CHECK(plain_line("\xc3\xa4\xe2\x82\xac\xf0\x9f\x94\xa5") == "\xc3\xa4\xe2\x82\xac\xf0\x9f\x94\xa5");
  CHECK(plain_line("a\x9b"
                   "b\xff\xc3") == "a?b??");
  // Longer than needed, half a surrogate pair, and behind the last character.
  CHECK(plain_line("\xc0\x80 \xe0\x9f\xbf \xed\xa0\x80 \xf0\x8f\xbf\xbf \xf4\x90\x80\x80") == "?? ??? ??? ???? ????");
  CHECK(plain_line("\xed\x9f\xbf\xf4\x8f\xbf\xbf") == "\xed\x9f\xbf\xf4\x8f\xbf\xbf");
  for (const char* unfinished : {"\033", "\033[", "\033[1;", "\033]0;x", "\033]0;x\033", "\033(", "\033P"}) {
    INFO(unfinished + 1);
    CHECK(plain_line(unfinished).empty());
  }
}

TEST_CASE("characters that reorder or end a displayed line, or hide in it, are taken out of it") {
  for (const char* hidden :
       {"\xD8\x9C", "\xE2\x80\x8B", "\xE2\x80\x8E", "\xE2\x80\x8F", "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAA",
        "\xE2\x80\xAE", "\xE2\x81\xA0", "\xE2\x81\xA6", "\xE2\x81\xA9", "\xE2\x81\xAF", "\xEF\xBB\xBF", "\xEF\xBF\xB9",
        "\xEF\xBF\xBB", "\xF3\xA0\x80\x80", "\xF3\xA0\x81\x81", "\xF3\xA0\x84\x80", "\xF3\xA0\xBF\xBF"}) {
    CHECK(plain_line(std::string("user") + hidden + "nimda") == "usernimda");
  }
  // Their neighbours, and a character that is cut off.
  const std::string kept =
      "\xD8\x9B\xE2\x80\x8A\xE2\x80\x8D\xE2\x80\x90\xE2\x80\xA7\xE2\x80\xAF\xE2\x81\x9F\xE2\x81\xB0\xEF\xBB\xBE\xEF\xBC"
      "\x80"
      "\xEF\xBF\xB8\xEF\xBF\xBC\xF3\x9F\xBF\xBF\xF3\xA1\x80\x80";
  CHECK(plain_line(kept) == kept);
  CHECK(plain_line("a\xE2\x80") == "a??");
}

TEST_CASE("a line is cut between characters") {
  CHECK(cut_line("abc", 3) == "abc");
  CHECK(cut_line("abcd", 3) == "abc...");
  CHECK(cut_line("\xc3\xa4\xc3\xb6\xc3\xbc", 2) == "\xc3\xa4\xc3\xb6...");
}
