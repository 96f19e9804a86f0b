#include "ddrun/logs/tail_buffer.hpp"

#include <set>

#include "ddrun/test/catch.hpp"

using ddrun::logs::TailBuffer;
using Lines = std::vector<std::string>;
using Time = std::chrono::system_clock::time_point;
using namespace std::chrono_literals;

namespace {

Lines texts(const TailBuffer& tail, std::size_t count) {
  Lines texts;
  for (const auto& line : tail.lines(count)) texts.push_back(line.text);
  return texts;
}

Lines last_lines(std::string_view text, std::size_t count, bool cut = false) {
  TailBuffer tail;
  if (cut) tail.skip();
  tail.add(text, Time());
  return texts(tail, count);
}

}  // namespace

TEST_CASE("the last lines are as a screen would show them") {
  CHECK(last_lines("", 3).empty());
  CHECK(last_lines("a\nb\nc\n", 2) == Lines{"b", "c"});
  CHECK(last_lines("a\nb\nc", 5) == Lines{"a", "b", "c"});
  CHECK(last_lines("rest\nb\nc\n", 5, true) == Lines{"b", "c"});
  CHECK(last_lines("rest of one", 5, true) == Lines{"rest of one"});
  CHECK(last_lines("1%\r2%\r3%\r\ndone\r\n", 5) == Lines{"3%", "done"});
  CHECK(last_lines("a\n\nb\n", 2) == Lines{"", "b"});
}

TEST_CASE("a tail keeps the end of a long stream") {
  TailBuffer tail;
  for (int i = 0; i < 100'000; ++i) tail.add("line " + std::to_string(i) + "\n", Time(i * 1s), i);
  CHECK(texts(tail, 2) == Lines{"line 99998", "line 99999"});
  const auto all = tail.lines(1'000'000);
  CHECK(all.size() > TailBuffer::limit / 12);
  CHECK(all.size() < 3 * TailBuffer::limit / 2 / 11 + 1);
  std::set<Time> times;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto number = 100'000 - all.size() + i;
    INFO(number);
    CHECK(all[i].text == "line " + std::to_string(number));
    // Of older short lines the times are thinned out, which bounds the memory for times.
    const bool recent = i + TailBuffer::max_times / 2 >= all.size();
    CHECK((recent ? all[i].at == Time(number * 1s) : all[i].at >= Time(number * 1s)));
    CHECK(all[i].at == Time(all[i].shown * 1s));
    CHECK(all[i].at >= all[i - (i > 0 ? 1 : 0)].at);
    times.insert(all[i].at);
  }
  CHECK(times.size() <= TailBuffer::max_times);
  tail.add(std::string(100'000, 'x') + "\nlast\n", Time(200'000s));
  CHECK(texts(tail, 5) == Lines{"last"});
  CHECK(tail.lines(5).front().at == Time(200'000s));
}

TEST_CASE("a line has the time at which its end was read") {
  TailBuffer tail;
  tail.add("begin", Time(1s), 1);
  tail.add(" and end\nnext\nunfini", Time(2s), 2);
  tail.add("shed", Time(3s), 3);
  const auto lines = tail.lines(9);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].text == "begin and end");
  CHECK(lines[0].at == Time(2s));
  CHECK(lines[1].text == "next");
  CHECK(lines[1].shown == 2);
  CHECK(lines[2].text == "unfinished");
  CHECK(lines[2].at == Time(3s));
}

TEST_CASE("lines keep their times in front of a line that comes in many small chunks") {
  TailBuffer tail;
  tail.add("first\nsecond", Time(1s), 1);
  tail.add("\n", Time(2s), 2);
  for (int i = 0; i < 20'000; ++i) tail.add(".", Time(3s + i * 2ms), 3, static_cast<std::uint64_t>(i));
  const auto lines = tail.lines(9);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].at == Time(1s));
  CHECK(lines[1].at == Time(1s));
  CHECK(lines[2].text.size() == 20'000);
  CHECK(lines[2].at == Time(3s + 19'999 * 2ms));
  CHECK(lines[2].turn == 19'999);
}

TEST_CASE("a gap does not join two lines") {
  TailBuffer tail;
  tail.add("one\ntw", Time(1s));
  tail.skip();
  tail.add("ree\nfour\n", Time(2s));
  CHECK(texts(tail, 9) == Lines{"four"});
  CHECK(tail.lines(1).front().at == Time(2s));
}
