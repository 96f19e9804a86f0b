#include "ddrun/logs/line_assembler.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/test/catch.hpp"

using ddrun::logs::LineAssembler;
using ddrun::logs::Piece;
using ddrun::logs::PieceEnd;
using namespace std::string_literals;

namespace {

/// Pieces as text: '|' behind each; "..." before one that continues, '~' behind an open and '#' behind a cut one.
struct Recorder {
  LineAssembler lines;
  std::string seen;

  auto writer() {
    return [this](const Piece& piece) {
      if (piece.continues) seen += "...";
      seen += piece.text;
      if (piece.end == PieceEnd::open) seen += '~';
      if (piece.end == PieceEnd::cut) seen += '#';
      seen += '|';
    };
  }
  void feed(std::string_view chunk) { lines.feed(chunk, writer()); }
  void flush_partial() { lines.flush_partial(writer()); }
  void finish() { lines.finish(writer()); }
};

}  // namespace

TEST_CASE("lines come out whole however they are cut into chunks") {
  const std::string text = "one\ntwo\r\n\n10%\r20%\r\r\nthree \0 \xff\x1b[31m\n\rfour"s;
  Recorder whole;
  whole.feed(text);
  whole.finish();
  CHECK(whole.seen == "one\n|two\r\n|\n|10%\r|20%\r|\r\n|three \0 \xff\x1b[31m\n|\r|four#|"s);
  for (std::size_t size = 1; size < text.size(); ++size) {
    Recorder pieces;
    for (std::size_t at = 0; at < text.size(); at += size) pieces.feed(std::string_view(text).substr(at, size));
    pieces.finish();
    CAPTURE(size);
    CHECK(pieces.seen == whole.seen);
  }
}

TEST_CASE("a carriage return at the end of a chunk waits for a newline that belongs to it") {
  Recorder r;
  r.feed("50%\r");
  CHECK(r.seen.empty());
  CHECK(r.lines.has_partial());
  SECTION("it comes") {
    r.feed("\nnext\n");
    CHECK(r.seen == "50%\r\n|next\n|");
  }
  SECTION("it does not") {
    r.feed("60%\r");
    CHECK(r.seen == "50%\r|");
    r.finish();
    CHECK(r.seen == "50%\r|60%\r#|");
  }
}

TEST_CASE("a partial line that was flushed early is continued") {
  Recorder r;
  r.feed("name? ");
  r.flush_partial();
  CHECK_FALSE(r.lines.has_partial());
  r.flush_partial();
  CHECK(r.seen == "name? ~|");
  SECTION("with the rest of the line") {
    r.feed("Bob\nnext\n");
    CHECK(r.seen == "name? ~|...Bob\n|next\n|");
  }
  SECTION("in two steps") {
    r.feed("Bo");
    r.flush_partial();
    r.feed("b\n");
    CHECK(r.seen == "name? ~|...Bo~|...b\n|");
  }
  SECTION("or ends there") {
    r.finish();
    CHECK(r.seen == "name? ~|...#|");
  }
}

TEST_CASE("a bar flushed early that ended in a carriage return is a whole line unless a newline follows") {
  Recorder r;
  r.feed("50%\r");
  r.flush_partial();
  SECTION("newline") {
    r.feed("\n");
    CHECK(r.seen == "50%\r~|...\n|");
  }
  SECTION("text") {
    r.feed("51%\n");
    CHECK(r.seen == "50%\r~|51%\n|");
  }
}

TEST_CASE("a line over the longest length is cut and ten megabytes are not") {
  std::vector<std::size_t> sizes;
  std::vector<PieceEnd> ends;
  LineAssembler lines;
  const auto emit = [&](const Piece& piece) {
    sizes.push_back(piece.text.size());
    ends.push_back(piece.end);
  };
  const std::string chunk(65536, 'x');
  for (int i = 0; i < 160; ++i) lines.feed(chunk, emit);
  CHECK(sizes.empty());
  lines.feed("\n", emit);
  REQUIRE(sizes == std::vector<std::size_t>{160 * 65536 + 1});
  for (int i = 0; i < 256; ++i) lines.feed(chunk, emit);
  REQUIRE(sizes.size() == 2);
  CHECK(sizes[1] == LineAssembler::max_line_bytes);
  CHECK(ends[1] == PieceEnd::cut);
  lines.finish(emit);
  CHECK(sizes.size() == 2);
}

TEST_CASE("many carriage returns without a newline take linear time") {
  // Searching for the newline again behind each of them would take minutes here.
  std::string chunk;
  for (int i = 0; i < 4'000'000; ++i) chunk += "\rx";
  LineAssembler lines;
  std::size_t count = 0;
  lines.feed(chunk, [&](const Piece&) { ++count; });
  CHECK(count == 4'000'000);
}
