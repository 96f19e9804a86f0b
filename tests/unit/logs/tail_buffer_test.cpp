#include "ddrun/logs/tail_buffer.hpp"

#include "ddrun/test/catch.hpp"

using ddrun::logs::last_lines;
using ddrun::logs::TailBuffer;
using Lines = std::vector<std::string>;

TEST_CASE("the last lines are as a screen would show them") {
  CHECK(last_lines("", 3, false).empty());
  CHECK(last_lines("a\nb\nc\n", 2, false) == Lines{"b", "c"});
  CHECK(last_lines("a\nb\nc", 5, false) == Lines{"a", "b", "c"});
  CHECK(last_lines("rest\nb\nc\n", 5, true) == Lines{"b", "c"});
  CHECK(last_lines("rest of one", 5, true) == Lines{"rest of one"});
  CHECK(last_lines("1%\r2%\r3%\r\ndone\r\n", 5, false) == Lines{"3%", "done"});
  CHECK(last_lines("a\n\nb\n", 2, false) == Lines{"", "b"});
}

TEST_CASE("a tail keeps the end of a long stream") {
  TailBuffer tail;
  for (int i = 0; i < 100'000; ++i) tail.add("line " + std::to_string(i) + "\n");
  CHECK(tail.lines(2) == Lines{"line 99998", "line 99999"});
  const Lines all = tail.lines(1'000'000);
  CHECK(all.size() > TailBuffer::limit / 12);
  CHECK(all.size() < 2 * TailBuffer::limit / 11 + 1);
  CHECK(all.front().rfind("line ", 0) == 0);
  tail.add(std::string(100'000, 'x') + "\nlast\n");
  CHECK(tail.lines(5) == Lines{"last"});
}
