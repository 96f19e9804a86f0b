#include "rows.hpp"

#include "ddrun/test/catch.hpp"
#include "ddrun/test/screen.hpp"

using namespace ddrun::logs;
using namespace ddrun::test;

namespace {

using Lines = std::vector<std::string>;

/// Rows on a terminal of 20 columns and 10 lines, three of them for rows.
struct Drawn {
  Drawn() { rows.set_size(20, 3); }
  Lines draw() {
    screen.write(rows.draw());
    return screen.lines();
  }
  /// Whole lines of another writer.
  void print(std::string_view text) {
    screen.write(rows.erase());
    screen.write(text);
  }
  Rows rows;
  Screen screen{20, 10};
};

}  // namespace

TEST_CASE("each row is redrawn in place, below other output") {
  Drawn d;
  d.rows.set(2, "[1] ", "10%");
  d.rows.set(0, "[0] ", "\033[32m20%\033[m");
  CHECK(d.rows.is_dirty());
  CHECK(d.draw() == Lines{"[0] 20%", "[1] 10%"});
  CHECK_FALSE(d.rows.is_dirty());
  d.rows.set(0, "[0] ", "30%");
  CHECK(d.draw() == Lines{"[0] 30%", "[1] 10%"});
  d.print("[1] hello\r\n");
  CHECK(d.screen.lines() == Lines{"[1] hello"});
  CHECK(d.rows.is_dirty());
  CHECK(d.draw() == Lines{"[1] hello", "[0] 30%", "[1] 10%"});
  d.rows.remove(0);
  CHECK(d.draw() == Lines{"[1] hello", "[1] 10%"});
  d.rows.remove(2);
  CHECK(d.draw() == Lines{"[1] hello"});
  CHECK_FALSE(d.rows.is_drawn());
}

TEST_CASE("rows at the end of the screen scroll it and stay rows") {
  Drawn d;
  for (int i = 0; i < 15; ++i) d.print("line\r\n");
  d.rows.set(0, "[0] ", "a");
  d.rows.set(2, "[1] ", "b");
  d.draw();
  d.rows.set(0, "[0] ", "c");
  d.draw();
  Lines expected(15, "line");
  expected.insert(expected.end(), {"[0] c", "[1] b"});
  CHECK(d.screen.lines() == expected);
}

TEST_CASE("a text that is longer than the terminal is wide takes one line") {
  Drawn d;
  d.rows.set(0, "[0] ", std::string(100, 'x'));
  d.rows.set(2, "[1] ", "b");
  CHECK(d.draw() == Lines{"[0] " + std::string(16, 'x'), "[1] b"});
}

TEST_CASE("of many rows those that changed last are drawn, and the others counted") {
  Drawn d;
  for (Rows::Key key = 0; key < 100; ++key) d.rows.set(key, "", "r" + std::to_string(key));
  CHECK(d.draw() == Lines{"r98", "r99", "… 98 more"});
  d.rows.set(5, "", "new");
  CHECK(d.draw() == Lines{"new", "r99", "… 98 more"});
  d.rows.set_input(40);
  d.rows.set(7, "", "seven");
  CHECK(d.draw() == Lines{"seven", "… 98 more", "r40"});
}

TEST_CASE("the prompt has the lowest row, where the user types while other rows change") {
  Drawn d;
  d.rows.set_input(0);
  d.rows.set(2, "[1] ", "10%");
  d.rows.set(4, "[2] ", "10%");
  d.rows.set(0, "[0] ", "name? ");
  CHECK(d.draw() == Lines{"[1] 10%", "[2] 10%", "[0] name?"});
  d.screen.type("bo");
  d.rows.set(2, "[1] ", "20%");
  CHECK(d.draw() == Lines{"[1] 20%", "[2] 10%", "[0] name? bo"});
  d.screen.type("b\n");
  d.screen.write(d.rows.erase_answered());
  d.rows.remove(0);
  CHECK(d.draw() == Lines{"[0] name? bob", "[1] 20%", "[2] 10%"});
}

TEST_CASE("a prompt without other rows stays with its answer") {
  Drawn d;
  d.rows.set_input(0);
  d.rows.set(0, "[0] ", "name? ");
  d.draw();
  d.screen.type("bob\n");
  d.screen.write(d.rows.erase_answered());
  d.rows.remove(0);
  d.print("[0] hello bob\r\n");
  CHECK(d.screen.lines() == Lines{"[0] name? bob", "[0] hello bob"});
}
