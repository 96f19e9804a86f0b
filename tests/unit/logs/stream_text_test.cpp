#include "stream_text.hpp"

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::logs;

namespace {

using Lines = std::vector<std::string>;
using std::chrono::milliseconds;

/// A stream on a clock of its own.
struct TextStream {
  explicit TextStream(Progress progress = Progress::rows, bool terminal = true)
      : options{.progress = progress, .terminal = terminal} {}
  void write(int ms, std::string_view bytes) {
    pass_time(ms);
    text.feed(bytes, at(ms), sink());
  }
  /// Until then deadlines pass.
  void pass_time(int ms) {
    for (auto next = text.deadline(); next && *next <= at(ms); next = text.deadline()) text.expire(*next, sink());
  }
  Lines rows() const {
    Lines rows;
    if (text.block() == nullptr) return rows;
    for (const auto& line : text.block()->shown(100)) rows.push_back(line.text);
    return rows;
  }
  /// The lines so far, which are forgotten.
  Lines take() { return std::exchange(lines, {}); }
  Lines finish(int ms) {
    pass_time(ms);
    text.finish(at(ms), sink());
    return take();
  }
  StreamText::Time at(int ms) const { return StreamText::Time{std::chrono::hours(1)} + milliseconds(ms); }
  /// Lines without newline; a part of one with '~'.
  struct Sink {
    Lines* lines;
    void operator()(const Piece& piece) const {
      std::string line(piece.text);
      if (line.ends_with('\n')) line.pop_back();
      else if (piece.end != PieceEnd::cut) line += '~';
      lines->push_back(line);
    }
  };
  PieceSink sink() { return PieceSink(to); }

  StreamText::Options options;
  StreamText text{options};
  Lines lines;
  Sink to{&lines};
};

/// What a program on a terminal has on its screen in the end.
Lines shown(std::string_view bytes) {
  TextStream stream;
  stream.write(0, bytes);
  return stream.finish(0);
}

}  // namespace

TEST_CASE("plain lines pass at once, and a bar has a row until it is complete") {
  TextStream s;
  s.write(0, "one\ntwo\r\n\033[31mthree\033[m\n");
  CHECK(s.take() == Lines{"one", "two\r", "\033[31mthree\033[m"});
  s.write(0, "\r 10%");
  s.write(10, "\r 20%");
  CHECK(s.rows() == Lines{" 20%"});
  s.write(20, "\r100%\nnext\n");
  CHECK(s.lines.empty());
  CHECK(s.rows() == Lines{"100%", "next"});
  s.pass_time(120);
  CHECK(s.take() == Lines{"100%", "next"});
  CHECK(s.text.block() == nullptr);
  s.write(130, "later\n");
  CHECK(s.take() == Lines{"later"});
}

TEST_CASE("a line that is written over keeps what stood behind") {
  CHECK(shown("abcdef\rX\n") == Lines{"Xbcdef"});
  CHECK(shown("abcdef\r\033[KX\n") == Lines{"X"});
  CHECK(shown("abc\b\bX\n") == Lines{"aXc"});
  // A terminal would go back to the last of the rows that the line takes.
  CHECK(shown(std::string(200, 'x') + "\rab\n") == Lines{"ab" + std::string(198, 'x')});
  CHECK(shown("abc\033[1Kx\n") == Lines{"   x"});
  CHECK(shown("abcdef\r\033[2P\033[C\033[@-\n") == Lines{"c-def"});
  CHECK(shown("abcdef\033[3D\033[2X|\n") == Lines{"abc| f"});
  CHECK(shown("a\033[5Gb\033[2Dc\n") == Lines{"a  cb"});
  CHECK(shown("\xe4\xb8\xad\xe4\xb8\xad\r\033[Cx\n") == Lines{" x\xe4\xb8\xad"});
  CHECK(shown("\033[32mabc\r\033[mX\n") == Lines{"X\033[32mbc\033[m"});
  CHECK(shown("a\r\033[44m  \033[m\n") == Lines{"\033[44m  \033[m"});
  CHECK(shown("e\xcc\x81x\r\n"
              "\xff\xe9\rA\n") == Lines{"e\xcc\x81x", "A\xe9"});
}

TEST_CASE("styles and links go on in the next line, and each line ends them") {
  CHECK(shown("\033[1;38;5;200mred\nmore\033[22;39m no\n") ==
        Lines{"\033[1;38;5;200mred\033[m", "\033[1;38;5;200mmore\033[m no"});
  CHECK(shown("\033[4:3;58:2::1:2:3mx\nrow\ry\n") ==
        Lines{"\033[4:3;58;2;1;2;3mx\033[m", "\033[4:3;58;2;1;2;3myow\033[m"});
  CHECK(shown("\033]8;;http://x\033\\a\nb\033]8;;\033\\c\n") ==
        Lines{"\033]8;;http://x\033\\a\033]8;;\033\\", "\033]8;;http://x\033\\b\033]8;;\033\\c"});
  CHECK(shown("\033]8;;http://x\aab\033]8;;\a\rc\n") == Lines{"c\033]8;;http://x\033\\b\033]8;;\033\\"});
  CHECK(shown("a\tb\n") == Lines{"a       b"});
}

TEST_CASE("sequences that change the terminal are left out, and none takes the end of its line") {
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
                           "\033P cut off",
                           "\033(0",
                           "\033ktitle\033\\",
                           "\033ktitle",
                           "\033Ptmux;\033\033]0;title\a\033\\",
                           "\033%@",
                           "\033#8",
                           "\v\f",
                           "\x05\x0e\x0f",
                           "\x7f",
                           "\xc2\x9b"
                           "2J",
                           "\xc2\x9d"
                           "0;title\a",
                           "\xc2\x85\xc2\x84\xc2\x8d",
                           "\xc2\x90q...\xc2\x9c",
                           "\xc2\x9b"
                           "5"}) {
    INFO(text + 1);
    const std::string line(text);
    CHECK(shown("a" + line + "\nb\n") == Lines{"a", "b"});
    CHECK(shown("x\ra" + line + "\nb\n") == Lines{"a", "b"});
    TextStream all(Progress::all);
    all.write(0, "a" + line + "\nb\n");
    CHECK(all.take() == Lines{"a", "b"});
  }
  CHECK(shown("\xc2\x9b"
              "31mred\xc2\x9bm \xc2\xa0\xc2\xb0 \xc2 \xc2"
              "A\xe9\n") == Lines{"\033[31mred\033[m \xc2\xa0\xc2\xb0 \xc2 \xc2"
                                  "A\xe9"});
  CHECK(shown("a\x9b"
              "2Jb\n") == Lines{"a\xef\xbf\xbd"
                                "2Jb"});
}

TEST_CASE("bars below each other are lines of one block") {
  TextStream s;
  const auto inner = [](int percent) { return "\n\rsteps " + std::to_string(percent) + "%\033[A"; };
  s.write(0, "\repochs 0%");
  for (int i = 0; i < 5; ++i) s.write(i * 100, inner(i));
  CHECK(s.rows() == Lines{"epochs 0%", "steps 4%"});
  s.write(500, "\n\r        \r\033[A");  // the inner one is removed
  s.write(510, "\repochs 1%");
  CHECK(s.rows() == Lines{"epochs 1%"});
  s.write(520, inner(0));
  // A line above, as tqdm.write() does it.
  s.write(530, "\r         \r\n\r        \r\033[Ahello\n\repochs 1%\n\rsteps 0%\033[A");
  CHECK(s.rows() == Lines{"hello", "epochs 1%", "steps 0%"});
  for (int i = 1; i < 12; ++i) s.write(600 + i * 100, inner(i));
  CHECK(s.take() == Lines{"hello"});
  CHECK(s.rows() == Lines{"epochs 1%", "steps 11%"});
  s.pass_time(60'000);
  CHECK(s.rows() == Lines{"epochs 1%", "steps 11%"});
  s.write(60'000, "\repochs 2%\nloss 1\n");
  CHECK(s.take() == Lines{"epochs 2%", "loss 111%"});  // written over, as on any terminal
  CHECK(s.finish(62'000) == Lines{});
}

TEST_CASE("a live display has its rows, and what is printed stands above") {
  TextStream s;
  const std::string back = "\r\033[2K\033[1A\033[2K";
  s.write(0, "\033[?25la 0\nb 0");
  for (int i = 1; i < 5; ++i) s.write(i * 100, back + "a " + std::to_string(i) + "\nb 0");
  CHECK(s.rows() == Lines{"a 4", "b 0"});
  CHECK(s.text.block()->hides_cursor());
  s.write(450, back + "half way\na 4\nb 1");
  for (int i = 5; i < 17; ++i) s.write(i * 100, back + "a " + std::to_string(i) + "\nb 1");
  CHECK(s.take() == Lines{"half way"});
  CHECK(s.rows() == Lines{"a 16", "b 1"});
  s.write(1700, back + "a done\nb done\n\033[?25hafter\n");
  s.pass_time(1900);
  CHECK(s.take() == Lines{"a done", "b done", "after"});
  CHECK(s.text.block() == nullptr);
}

TEST_CASE("a block without updates stays, and lines that follow it end it") {
  TextStream s;
  s.write(0, "\ra\nb\n\033[2Ac\nd\n");
  s.pass_time(100'000);
  CHECK(s.rows() == Lines{"c", "d"});
  s.write(100'000, "\033[2Ae\nf\nend\n");
  s.pass_time(100'900);
  CHECK(s.rows() == Lines{"e", "f", "end"});
  s.pass_time(101'000);
  CHECK(s.take() == Lines{"e", "f", "end"});
}

TEST_CASE("moves beyond the terminal of the program are limited") {
  TextStream s;
  s.text.set_size(10, 3);
  s.write(0, "\rone\ntwo\nthree\nfour\033[99A\rX\033[99B\033[99C|");
  CHECK(s.take() == Lines{"one"});
  CHECK(s.rows() == Lines{"Xwo", "three", "four     |"});
}

TEST_CASE("a terminal may become lower than a block, and any size") {
  TextStream s;
  s.write(0, "\r1\n2\n3\n4\033[3A");
  for (const int rows : {2, 1, 3, 0, 50}) {
    s.text.set_size(rows * 7, rows);
    s.write(0, "\nx\033[9B\033[9A\n\033[99C|\t\033[99G\b\033[9@\033[9P\033[9X\033[J\033[A");
  }
  CHECK(s.finish(0).size() >= 4);
}

TEST_CASE("an unfinished line is shown after a silence") {
  TextStream s;
  s.write(0, "name? ");
  CHECK(s.rows().empty());
  s.pass_time(200);
  CHECK(s.rows() == Lines{"name? "});
  s.write(300, "bx\b \bob\nhello\n");
  CHECK(s.take() == Lines{"name? bob", "hello"});
  TextStream plain(Progress::all);
  plain.write(0, "name? ");
  plain.pass_time(200);
  CHECK(plain.take() == Lines{"name? ~"});
  plain.write(300, "b");
  CHECK(plain.take() == Lines{"b~"});
  plain.write(400, "\n");
  CHECK(plain.take() == Lines{""});
  TextStream pipe(Progress::last, false);
  pipe.write(0, "name? ");
  CHECK_FALSE(pipe.text.deadline());
}

TEST_CASE("elsewhere the last state of lines that change is a line now and then") {
  TextStream s(Progress::last, false);
  s.write(0, "\033[31mas it is\033[2K\t\x05\033]0;t\a\n");
  CHECK(s.take() == Lines{"\033[31mas it is\033[2K\t\x05\033]0;t\a"});
  s.write(0, "\r1%");
  s.write(9'000, "\r2%");
  s.pass_time(10'000);
  CHECK(s.take() == Lines{"2%"});
  s.pass_time(50'000);
  CHECK(s.lines.empty());
  s.write(50'000, "\n\rinner 1%\033[A\r3%");
  s.pass_time(60'000);
  CHECK(s.take() == Lines{"3%", "inner 1%"});
  s.write(60'000, "\r4%");
  CHECK(s.finish(60'001) == Lines{"4%", "inner 1%"});
  s.write(65'000, "\r5%\na\tb\x05 \r\n \033]0;t\a\n");
  s.pass_time(65'100);
  CHECK(s.take() == Lines{"5%", "a\tb\x05 \r", " \033]0;t\a"});
  s.write(70'000, "\rx\r");
  s.pass_time(80'000);
  CHECK(s.take() == Lines{"x"});
  CHECK(s.finish(80'001).empty());
}

TEST_CASE("combining characters stay in a display that is drawn for long") {
  TextStream s;
  for (int i = 0; i < 10'000; ++i) s.write(i, "\r\033[?25le\xcc\x81\n\033[A");
  CHECK(s.rows() == Lines{"e\xcc\x81"});
}

TEST_CASE("a line of many columns in a block is not kept") {
  TextStream s;
  const std::string wide(100'000, 'x');
  s.write(0, "\rbar\n" + wide);
  CHECK(s.take() == Lines{"bar"});
  s.write(0, wide + "\n");
  CHECK(s.take() == Lines{wide + wide});
}
