#include "screen.hpp"

#include "ddrun/test/catch.hpp"
#include "ddrun/test/screen.hpp"

using namespace ddrun;

namespace {

using Texts = std::vector<std::string>;

logs::Screen rows_of(const Texts& texts, std::size_t columns = 20) {
  logs::Screen rows;
  rows.columns = columns;
  for (const std::string& text : texts) rows.rows.push_back({rows.rows.size(), text, text.size()});
  rows.cursor_row = texts.empty() ? 0 : texts.size() - 1;
  rows.cursor_column = texts.empty() ? 0 : std::min(texts.back().size(), columns - 1);
  return rows;
}

/// Rows on a terminal of 20 columns and 10 lines.
struct DrawnScreen {
  Texts draw(const logs::Screen& wanted) {
    bytes = logs::draw(std::exchange(drawn, wanted), wanted, false);
    screen.write(bytes);
    return screen.lines();
  }
  /// Whole lines of another writer.
  void print(std::string_view text) {
    draw({.columns = 20});
    screen.write(text);
  }
  logs::Screen drawn{.columns = 20};
  std::string bytes;
  test::Screen screen{20, 10};
};

}  // namespace

TEST_CASE("rows are redrawn in place below other output") {
  DrawnScreen d;
  CHECK(d.draw(rows_of({"a 10%", "b 10%"})) == Texts{"a 10%", "b 10%"});
  CHECK(d.draw(rows_of({"a 2%", "b 10%"})) == Texts{"a 2%", "b 10%"});
  CHECK(d.bytes.find("b 10%") == std::string::npos);
  d.draw(rows_of({"a 2%", "b 10%"}));
  CHECK(d.bytes.empty());
  d.print("hello\r\n");
  CHECK(d.screen.lines() == Texts{"hello"});
  CHECK(d.draw(rows_of({"a", "b"})) == Texts{"hello", "a", "b"});
  CHECK(d.draw(rows_of({"c"})) == Texts{"hello", "c"});
  d.screen.write("x");
  CHECK(d.screen.lines() == Texts{"hello", "cx"});
  CHECK(d.draw(rows_of({})) == Texts{"hello"});
}

TEST_CASE("rows at the end of the screen scroll it and stay rows") {
  DrawnScreen d;
  for (int i = 0; i < 15; ++i) d.print("line\r\n");
  d.draw(rows_of({"a", "b"}));
  d.draw(rows_of({"c", "b"}));
  Texts expected(15, "line");
  expected.insert(expected.end(), {"c", "b"});
  CHECK(d.screen.lines() == expected);
}

TEST_CASE("a row that takes all columns keeps the last one, and takes one line") {
  DrawnScreen d;
  const std::string full(20, 'x');
  CHECK(d.draw(rows_of({full, full})) == Texts{full, full});
  CHECK(d.draw(rows_of({full, "b"})) == Texts{full, "b"});
  CHECK(d.draw(rows_of({full + "y", "c"}))[1] == "c");  // the terminal takes it for a longer one
}

TEST_CASE("the cursor is where it is wanted") {
  DrawnScreen d;
  logs::Screen wanted = rows_of({"a", "name? bob", "b"});
  wanted.cursor_row = 1;
  wanted.cursor_column = 6;
  d.draw(wanted);
  d.screen.write("t");
  CHECK(d.screen.lines() == Texts{"a", "name? tob", "b"});
  wanted.cursor_column = 7;
  wanted.rows[2].text = "c";
  CHECK(d.draw(wanted) == Texts{"a", "name? tob", "c"});
  wanted.hides_cursor = true;
  d.draw(wanted);
  CHECK(d.bytes.ends_with("\033[?25l"));
  d.print("x\r\n");
  CHECK(d.screen.lines() == Texts{"x"});
}

TEST_CASE("rows are found again on a terminal that was made narrower") {
  const logs::Screen before = rows_of({std::string(20, 'a'), std::string(11, 'b'), "c"});
  // Broken anew they take 2, 2 and 1 lines; cut, one each.
  CHECK(logs::draw(before, rows_of({}, 10), true).starts_with("\r\033[4A\033[K"));
  CHECK(logs::draw(before, rows_of({}, 10), false).starts_with("\r\033[2A\033[K"));
  CHECK(logs::draw(before, rows_of({}, 30), true).starts_with("\r\033[2A\033[K"));
}

TEST_CASE("rows are divided evenly, and where they do not suffice the last to change are shown") {
  const auto divide = [](const std::vector<std::size_t>& lines, std::size_t room) {
    std::vector<logs::Demand> demands;
    for (const std::size_t count : lines) demands.push_back({demands.size(), count, false});
    return logs::divide_rows(demands, room);
  };
  using Rows = std::vector<std::size_t>;
  CHECK(divide({2, 2, 2}, 8) == Rows{2, 2, 2});
  CHECK(divide({2, 4, 2, 2}, 8) == Rows{2, 2, 2, 2});
  CHECK(divide({2, 2, 2}, 5) == Rows{2, 2, 1});
  CHECK(divide({9, 1}, 8) == Rows{7, 1});
  CHECK(divide({2, 2, 2, 2}, 4) == Rows{1, 1, 1, 1});
  CHECK(divide({2, 2, 2, 2}, 3) == Rows{0, 0, 1, 1});
  CHECK(divide({1, 1}, 1) == Rows{0, 1});
  CHECK(divide({}, 3).empty());
  CHECK(logs::divide_rows({{5, 1, true}, {6, 1, false}, {7, 1, false}}, 2) == Rows{1, 0, 0});
}
