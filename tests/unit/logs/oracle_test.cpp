// What a terminal shows of several ranks against what each rank alone would show on a terminal of its width: programs
// drawn from seeds, their bytes in random pieces and order. To repeat one: DDRUN_ORACLE_SEED=n (prints the bytes); for
// many: DDRUN_ORACLE_RUNS=n, from DDRUN_ORACLE_FIRST; DDRUN_ORACLE_KIND=name for one kind of program.

#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "ddrun/base/text.hpp"
#include "ddrun/logs/rank_console.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/test/screen.hpp"
#include "ddrun/test/terminal.hpp"
#include "output_harness.hpp"

using namespace ddrun;
using namespace ddrun::logs;
using namespace ddrun::test;

namespace {

constexpr int oracle_ranks = 4;
constexpr std::size_t oracle_columns = 80;
constexpr std::size_t oracle_rows = 24;
constexpr std::size_t oracle_label = 4;  ///< "[0] "
constexpr int rank_columns = oracle_columns - oracle_label;

using Texts = std::vector<std::string>;

std::uint64_t oracle_number(const char* variable, std::uint64_t otherwise) {
  const char* given = std::getenv(variable);
  return given != nullptr ? std::strtoull(given, nullptr, 10) : otherwise;
}

// ---- programs

/// Draws what a worker writes. Each kind begins and ends at the start of a line, in the style that was left on.
class OracleProgram {
 public:
  OracleProgram(std::uint64_t seed, int rank)
      : common_(static_cast<std::mt19937::result_type>(seed * 31)),
        random_(static_cast<std::mt19937::result_type>(seed * 64 + static_cast<std::uint64_t>(rank))),
        rank_(rank) {}

  using Kind = void (OracleProgram::*)();
  static const std::vector<std::pair<std::string, Kind>>& kinds();

  void draw(const std::string& kind) {
    const std::size_t parts = 2 + random_() % 4;
    for (std::size_t i = 0; i < parts; ++i) {
      if (kind != "mixed") {
        (this->*std::find_if(kinds().begin(), kinds().end(), [&](const auto& k) { return k.first == kind; })->second)();
      } else {
        (this->*kinds()[random_() % kinds().size()].second)();
      }
      if (chance(3)) plain_lines();
    }
  }
  /// Ends with a line that is not complete.
  void draw_unfinished() { add(concat("\rlive ", rank_, ' ', text(5, 40))); }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  void add(std::string_view bytes) { bytes_ += bytes; }

  void plain_lines() {
    for (int i = number(1, 4); i > 0; --i) {
      // Half of the lines are those of all ranks.
      std::mt19937& from = chance(2) ? common_ : random_;
      add(concat(text(from, 0, 60), '\n'));
    }
  }
  void blank_lines() { add(concat(text(1, 20), "\n\n   \n", text(1, 20), "\n\n")); }
  void wide_lines() {
    add(concat(text(rank_columns + 1, 3 * rank_columns), '\n'));
    add(concat(std::string(rank_columns, 'f'), '\n', std::string(std::size_t{2} * rank_columns, 'g'), '\n'));
  }
  void colored_lines() {
    static const std::array<const char*, 10> styles{"31",   "1;32",       "4",     "7", "38;5;200",
                                                    "0;44", "38;2;1;2;3", "0;3;9", "",  "97;101"};
    for (int i = number(1, 5); i > 0; --i) {
      add(concat(text(0, 10), "\033[", styles[random_() % styles.size()], 'm', text(1, 20)));
      if (chance(3)) add("\033[39m");
      if (chance(3)) add("\033[m");
      add(concat(text(0, 9), '\n'));
    }
    if (!chance(3)) add("\033[0mreset\n");
  }
  void links() { add(concat("see \033]8;;http://x/", number(0, 9), "\033\\", text(3, 9), "\033]8;;\033\\ there\n")); }
  void bars() {
    const bool returns_first = chance(2);
    const int width = chance(3) ? rank_columns - 6 : 30;  // a bar over the whole width is one of them
    for (int i = 0, last = number(2, 8); i <= last; ++i) {
      const std::string bar =
          concat(padded(i * 100 / last, 3), "%|", std::string(static_cast<std::size_t>(i * width / last), '#'),
                 std::string(static_cast<std::size_t>(width - i * width / last), ' '), '|');
      add(returns_first ? concat('\r', bar) : concat(bar, '\r'));
    }
    add("\n");
  }
  void shorter_text() {
    add(concat('\r', text(20, 60), '\r', text(1, 19), '\n'));
    add(concat(text(20, 60), "\rdone", chance(2) ? "\r\n" : "\n"));
  }
  void backspaces() { add(concat(text(3, 20), " 7%\b\b\b 8%\b\b\b12%\n|\b/\b-\b\\\bok\n")); }
  void tabs() { add(concat("a\tbb\t", text(1, 12), "\tc\n\t", text(1, 5), "\n12345678\tx\n")); }
  void wide_characters() {
    static const std::array<const char*, 7> pieces{"中文", "日本", "😀", "e\xcc\x81", "ñ", "－", "█▌"};
    std::string line;
    for (int i = number(1, 18); i > 0; --i) line += pieces[random_() % pieces.size()];
    add(concat(line, '\n', line, "\rab中", chance(2) ? "" : "\033[K", '\n'));
  }
  void erasing() {
    switch (number(0, 6)) {
      case 0: return add(concat(text(5, 30), "\r\033[K", text(1, 20), '\n'));
      case 1: return add(concat(text(5, 30), "\033[2K\r", text(1, 20), '\n'));
      case 2: return add(concat(text(9, 30), "\033[5D\033[1K", text(1, 5), '\n'));
      case 3: return add(concat(text(9, 30), "\033[5G\033[K!", text(1, 5), '\n'));
      case 4: return add(concat(text(9, 30), "\033[3G\033[2P\033[1@<\033[4X\033[20C>\n"));
      case 5: return add(concat(text(9, 30), "\033[2K\033[1G", text(1, 5), "\033[0K\n"));
      default: return add(concat("\r\033[K", text(9, 30), "\r\033[K\r", text(1, 9), "\033[K\n"));
    }
  }
  void tqdm() { add_tqdm(0, 0, chance(2) ? 20 : rank_columns); }
  /// One position for each rank, as for workers that share a terminal.
  void tqdm_positions() { add_tqdm(rank_, 0, 30); }
  void nested_tqdm() { add_tqdm(0, number(1, 3), 30); }
  void rich_live() {
    add("\033[?25l");
    std::size_t drawn = 0;
    const int rows = number(1, 7);
    for (int i = 0, last = number(2, 5); i <= last; ++i) {
      std::string home = "\r\033[2K";
      for (std::size_t row = 1; row < drawn; ++row) home += "\033[1A\033[2K";
      if (drawn > 0) add(home);
      if (chance(3)) {
        for (int above = number(1, 3); above > 0; --above) add(concat("above ", text(1, 30), '\n'));
      }
      drawn = static_cast<std::size_t>(chance(4) ? number(1, 7) : rows);
      for (std::size_t row = 0; row < drawn; ++row) {
        add(concat(row > 0 ? "\n" : "", "task ", row, " \033[32m", std::string(static_cast<std::size_t>(i) * 3, '='),
                   "\033[0m ", i));
      }
    }
    add("\n\033[?25h");
  }

 private:
  [[nodiscard]] bool chance(unsigned of) { return random_() % of == 0; }
  [[nodiscard]] int number(int from, int to) {
    return from + static_cast<int>(random_() % static_cast<unsigned>(to - from + 1));
  }
  [[nodiscard]] static std::string padded(int number, std::size_t width) {
    const std::string digits = std::to_string(number);
    return std::string(width - std::min(width, digits.size()), ' ') + digits;
  }
  /// Words, of this many columns.
  [[nodiscard]] static std::string text(std::mt19937& random, int from, int to) {
    static const std::array<const char*, 8> words{"loss", "step", "epoch", "a", "ok", "0.25", "warning:", "rank"};
    const auto size = static_cast<std::size_t>(from) + random() % static_cast<std::size_t>(to - from + 1);
    std::string line;
    while (line.size() < size) line += concat(words[random() % words.size()], ' ', random() % 10, ' ');
    line.resize(size);
    if (!line.empty() && line.back() == ' ') line.back() = '.';
    return line;
  }
  [[nodiscard]] std::string text(int from, int to) { return text(random_, from, to); }

  /// The bytes of tqdm.std: moveto(n), '\r', the bar with blanks over the rest of the last one, moveto(-n).
  void display(int position, const std::string& bar, std::size_t& last) {
    add(std::string(static_cast<std::size_t>(position), '\n'));
    add(concat('\r', bar, std::string(last - std::min(last, bar.size()), ' ')));
    last = bar.size();
    for (int i = 0; i < position; ++i) add("\033[A");
  }
  void add_tqdm(int position, int inner_bars, int width) {
    const auto bar = [&](const std::string& name, int at, int of) {
      std::string line =
          concat(name, ": ", padded(at * 100 / of, 3), "%|", std::string(static_cast<std::size_t>(at) * 2, '#'), "| ",
                 at, '/', of, " [00:0", at, "<00:01,  9.", number(0, 9999), "it/s]");
      if (width == rank_columns) line.resize(static_cast<std::size_t>(width), '.');
      return line;
    };
    std::size_t last = 0;
    const int steps = number(2, 4);
    for (int i = 0; i <= steps; ++i) {
      display(position, bar("outer", i, steps), last);
      if (i == steps) break;
      std::vector<std::size_t> last_inner(static_cast<std::size_t>(inner_bars));
      for (int j = 0; j <= 3; ++j) {
        for (int k = 0; k < inner_bars; ++k)
          display(k + 1, bar(concat("inner ", k), j, 3), last_inner[static_cast<std::size_t>(k)]);
      }
      for (int k = inner_bars; k-- > 0;) display(k + 1, "", last_inner[static_cast<std::size_t>(k)]);
    }
    display(0, bar("outer", steps, steps), last);
    add("\n");
    // The bar's last state at another position stays below.
    for (int i = 0; i < position; ++i) add("\n");
  }

  std::mt19937 common_;
  std::mt19937 random_;
  int rank_;
  std::string bytes_;
};

const std::vector<std::pair<std::string, OracleProgram::Kind>>& OracleProgram::kinds() {
  static const std::vector<std::pair<std::string, Kind>> all{
      {"plain", &OracleProgram::plain_lines},
      {"blank", &OracleProgram::blank_lines},
      {"long", &OracleProgram::wide_lines},
      {"colors", &OracleProgram::colored_lines},
      {"links", &OracleProgram::links},
      {"bars", &OracleProgram::bars},
      {"shorter", &OracleProgram::shorter_text},
      {"backspaces", &OracleProgram::backspaces},
      {"tabs", &OracleProgram::tabs},
      {"unicode", &OracleProgram::wide_characters},
      {"erasing", &OracleProgram::erasing},
      {"tqdm", &OracleProgram::tqdm},
      {"positions", &OracleProgram::tqdm_positions},
      {"nested", &OracleProgram::nested_tqdm},
      {"rich", &OracleProgram::rich_live},
  };
  return all;
}

// ---- consoles

std::string with_returns(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += c == '\n' ? "\r\n" : std::string(1, c);
  return out;
}

/// The console under test, with what the terminal shows.
class OracleConsole {
 public:
  explicit OracleConsole(bool fold, Milliseconds idle) : terminal_(&size_) {
    ::setenv("TERM", "xterm", 1);
    RankConsoleOptions options;
    options.fold = fold;
    options.progress = Progress::rows;
    options.idle_flush_delay = idle;
    console_ = std::make_unique<RankConsole>(io_.get_executor(), terminal_.tty.get(), options);
    for (int rank = 0; rank < oracle_ranks; ++rank) {
      RankStream& stream = streams_[static_cast<std::size_t>(rank)];
      stream.rank = rank;
      stream.prefix = concat('[', rank, "] ");
      console_->open_stream(stream);
    }
  }

  void feed(std::size_t rank, std::string_view chunk) { console_->feed(streams_[rank], chunk); }
  void close_stream(std::size_t rank) { console_->close_stream(streams_[rank]); }
  /// Runs what is due, and takes what has come to the terminal.
  void poll() {
    io_.restart();
    io_.poll();
    const std::string bytes = terminal_.shown();
    screen.write(bytes);
    raw += bytes;
  }
  /// poll() until then, for 1.5 s at most.
  bool poll_until(const std::function<bool()>& condition) {
    const Deadline deadline = Clock::now() + Milliseconds(1500);
    for (poll(); !condition(); poll()) {
      if (Clock::now() > deadline) return false;
      io_.restart();
      io_.run_one_for(std::chrono::milliseconds(5));
    }
    return true;
  }
  void close() {
    console_->release();
    console_->flush();
    poll_until([&] { return console_->console().queued() == 0; });
    console_->close();
    poll();
  }

  Screen screen{oracle_columns, oracle_rows};
  std::string raw;  ///< all that the terminal got

 private:
  winsize size_{oracle_rows, oracle_columns, 0, 0};
  Terminal terminal_;
  boost::asio::io_context io_;
  std::unique_ptr<RankConsole> console_;
  std::array<RankStream, oracle_ranks> streams_;
};

/// Feeds the programs in pieces of random size and order; `done` is called when a rank's program is over.
void feed_interleaved(OracleConsole& console, const Texts& programs, std::uint64_t seed,
                      const std::function<void(std::size_t)>& done = {}) {
  std::mt19937 random(static_cast<std::mt19937::result_type>(seed));
  std::array<std::size_t, oracle_ranks> at{};
  std::vector<std::size_t> left{0, 1, 2, 3};
  const std::size_t most = seed % 3 == 0 ? 7 : 200;
  while (!left.empty()) {
    const std::size_t pick = random() % left.size();
    const std::size_t rank = left[pick];
    for (std::size_t pieces = 1 + random() % 4; pieces > 0 && at[rank] < programs[rank].size(); --pieces) {
      const std::string_view chunk = std::string_view(programs[rank]).substr(at[rank], 1 + random() % most);
      console.feed(rank, chunk);
      at[rank] += chunk.size();
    }
    if (random() % 4 == 0) console.poll();
    if (at[rank] < programs[rank].size()) continue;
    if (done) done(rank);
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(pick));
  }
}

// ---- comparison

Screen screen_of(std::string_view program) {
  Screen screen(rank_columns, oracle_rows);
  screen.write(with_returns(program));
  return screen;
}

/// Lines that are not blank.
Texts expected_lines(std::string_view program) {
  Texts lines;
  for (const auto& line : screen_of(program).logical_lines()) {
    if (!line.empty()) lines.push_back(styled(line));
  }
  return lines;
}

/// The ranks that a line's label names, and the number of its columns; none if it has no label.
std::pair<std::vector<int>, std::size_t> read_label(const Screen::Line& line) {
  const std::string text = plain(line);
  const std::size_t end = text.find("] ");
  const std::size_t size = end == std::string::npos ? text.find(']') : end;
  if (!text.starts_with('[') || size == std::string::npos) return {};
  std::vector<int> ranks;
  int number = -1;
  int range_from = -1;
  for (const char c : text.substr(1, size)) {
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      number = std::max(number, 0) * 10 + (c - '0');
    } else if (c == '-') {
      range_from = std::exchange(number, -1);
    } else if (c == ',' || c == ']') {
      if (number < 0 || number >= oracle_ranks) return {};
      for (int rank = range_from < 0 ? number : range_from; rank <= number; ++rank) ranks.push_back(rank);
      number = range_from = -1;
    } else {
      return {};
    }
  }
  return {ranks, std::min(size + 2, line.size())};
}

/// By rank; lines without a label are those of rank -1.
std::map<int, Texts> shown_lines(const Screen& screen) {
  std::map<int, Texts> lines;
  for (const auto& line : screen.logical_lines()) {
    const auto [ranks, label] = read_label(line);
    const Screen::Line rest(line.begin() + static_cast<std::ptrdiff_t>(label), line.end());
    if (ranks.empty() && !line.empty()) lines[-1].push_back(styled(line));
    for (const int rank : ranks) {
      if (!rest.empty()) lines[rank].push_back(styled(rest));
    }
  }
  return lines;
}

std::string escaped(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    if (c == '\033') out += "\\e";
    else if (c == '\n') out += "\\n";
    else if (c == '\r') out += "\\r";
    else if (c == '\t') out += "\\t";
    else if (c == '\b') out += "\\b";
    else out += c;
  }
  return out;
}

/// Empty if they are the same.
std::string describe_difference(const Texts& expected, const Texts& shown) {
  const auto at = std::mismatch(expected.begin(), expected.end(), shown.begin(), shown.end());
  if (at.first == expected.end() && at.second == shown.end()) return {};
  const auto line = [](const auto& iterator, const Texts& of) {
    return iterator == of.end() ? std::string("(none)") : concat('"', escaped(*iterator), '"');
  };
  return concat("line ", at.first - expected.begin(), ": expected ", line(at.first, expected), ", shown ",
                line(at.second, shown), " (", expected.size(), " and ", shown.size(), " lines)");
}

/// What is wrong after the programs were shown, for each rank.
std::string describe_differences(const OracleConsole& console, const Texts& programs, std::size_t from_rank = 0) {
  std::map<int, Texts> shown = shown_lines(console.screen);
  std::string all;
  for (std::size_t rank = from_rank; rank < programs.size(); ++rank) {
    const std::string difference = describe_difference(expected_lines(programs[rank]), shown[static_cast<int>(rank)]);
    if (!difference.empty()) all += concat("\n    rank ", rank, ", ", difference);
  }
  if (const Texts& others = shown[-1]; !others.empty() && from_rank == 0) {
    all += concat("\n    ", others.size(), " lines without a label, the first \"", escaped(others.front()), '"');
  }
  return all;
}

/// Runs `check(seed)` for each seed; reports those that it says something of, the first in detail.
void for_oracle_seeds(const std::string& name, std::uint64_t runs,
                      const std::function<std::string(std::uint64_t)>& check) {
  std::uint64_t first = oracle_number("DDRUN_ORACLE_FIRST", 1);
  runs = oracle_number("DDRUN_ORACLE_RUNS", runs);
  if (std::getenv("DDRUN_ORACLE_SEED") != nullptr) first = oracle_number("DDRUN_ORACLE_SEED", 1), runs = 1;
  std::uint64_t bad = 0;
  std::string details;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    const std::string differences = check(seed);
    if (differences.empty()) continue;
    if (++bad <= 2) details += concat("\n  seed ", seed, ':', differences);
  }
  if (bad > 0) FAIL_CHECK(name << ": " << bad << " of " << runs << " seeds differ" << details);
}

Texts draw_programs(const std::string& kind, std::uint64_t seed, bool unfinished = false) {
  Texts programs;
  for (int rank = 0; rank < oracle_ranks; ++rank) {
    OracleProgram program(seed, rank);
    program.draw(kind);
    if (unfinished) program.draw_unfinished();
    programs.push_back(program.bytes());
    if (std::getenv("DDRUN_ORACLE_SEED") != nullptr) {
      std::fputs(concat(kind, ", rank ", rank, ": ", escaped(programs.back()), '\n').c_str(), stderr);
    }
  }
  return programs;
}

bool is_oracle_kind(const std::string& kind) {
  const char* only = std::getenv("DDRUN_ORACLE_KIND");
  return only == nullptr || kind == only;
}

// ---- hostile bytes

/// None of these may come to the terminal.
const Texts& forbidden_sequences() {
  static const Texts all{"\033[2J",  "\033[3J",    "\033[H",  "\033[T",      "\033[6n", "\033[c", "\033[4h",
                         "\033[20h", "\033[5;10r", "\033]0;", "\033[?1049h", "\033c",   "\033P",  "\033#8",
                         "\033(0",   "\033%@",     "\033N",   "\xc2\x9b",    "\x0b",    "\x0c",   "\x0e"};
  return all;
}

const Texts& evil_pieces() {
  static const Texts all{"\033[2J",
                         "\033[3J",
                         "\033[H",
                         "\033[5;5H",
                         "\033[3T",
                         "\033[6n",
                         "\033[c",
                         "\033[4h",
                         "\033[20h",
                         "\033[5;10r",
                         "\033]0;t\007",
                         "\033[?1049h",
                         "\033c",
                         "\033P+q544e\033\\",
                         "\033#8",
                         "\033(0",
                         "\033%@",
                         "\033N",
                         "\x9b\x32J",
                         "\xc2\x9b\x32J",
                         "\x0b",
                         "\x0c",
                         "\x0e",
                         "\033D",
                         "\033[?7l",
                         "\033[?25l",
                         "\033[31m",
                         "\033[999B",
                         "\033[99999999999C",
                         "\033[",
                         "\033]",
                         "\033_x",
                         "\033k title",
                         "\xff\xfe",
                         "\xe4\xb8",
                         "\xcc\x81",
                         "中😀e\xcc\x81",
                         "\033[1;2;3;4;5;6;7;8;9m",
                         std::string(1, '\0'),
                         std::string(300, '\b'),
                         std::string(40, '\t'),
                         std::string(5000, 'x')};
  return all;
}

std::string draw_hostile(std::uint64_t seed, bool moves_up) {
  std::mt19937 random(static_cast<std::mt19937::result_type>(seed * 7 + 5));
  static const Texts up{"\033[10A", "\033M", "\033[99F", "\033[3L", "\033[2M"};
  std::string bytes;
  int lines = 0;
  for (int i = 0; i < 60; ++i) {
    const auto pick = random() % 10;
    if (pick < 3) bytes += concat("\rprogress ", random() % 100, "% ", std::string(random() % 60, '#'));
    else if (pick < 5) bytes += concat("\nR0-", lines++, "-end\n");
    else if (moves_up && pick == 6) bytes += up[random() % up.size()];
    else bytes += evil_pieces()[random() % evil_pieces().size()];
    if (random() % 9 == 0) bytes += static_cast<char>(random() % 256);
  }
  return bytes + concat("\nR0-", lines, "-end\n");
}

/// The whole "R0-n-end" lines among these, or in a worker's bytes.
Texts whole_lines(const Texts& lines) {
  Texts whole;
  for (const auto& line : lines) {
    const std::size_t begin = line.find("R0-");
    if (begin != std::string::npos && line.find("-end", begin) != std::string::npos) {
      whole.push_back(line.substr(begin, line.find("-end", begin) + 4 - begin));
    }
  }
  return whole;
}

}  // namespace

TEST_CASE("the reference terminal does what xterm does") {
  const auto [bytes, lines] = GENERATE(table<std::string, Texts>({
      {"abc\rX\n\ry", {"Xbc", "y"}},
      {"a\nb", {"a", " b"}},
      {"1234567890", {"1234567890"}},
      {"1234567890\rX", {"X234567890"}},
      {"1234567890ab", {"1234567890", "ab"}},
      {"1234567890\033[K", {"123456789"}},
      {"1234567890\bX", {"12345678X0"}},
      {"\033[?7l1234567890abc\033[?7h", {"123456789c"}},
      {"123456789中", {"123456789", "中"}},
      {"中文\r\033[Cx", {" x文"}},
      {"e\xcc\x81x\xcc", {"e\xcc\x81x"}},
      {"a\tb\tc", {"a       bc"}},
      {"a\vb\fc", {"a", " b", "  c"}},
      {"abcdef\033[3D\033[1Kx\033[2Dy", {"  yxef"}},
      {"abcdef\033[3G\033[2Px\033[3@!", {"abx!  f"}},
      {"a\r\nb\r\nc\033[2A\033[2K\033[B\rB", {"", "B", "c"}},
      {"a\r\nb\r\nc\r\nd\r\ne", {"a", "b", "c", "d", "e"}},
      {"a\r\nb\r\nc\r\n\033[HX\033[3;2HY\033[J", {"X", "b", "cY"}},
      {"a\r\nb\033[A\033[LX\033[Mz", {"z", "b"}},
      {"a\033]0;title\007b\033Pq\033\\c\033k t\033\\d\033]x\030e", {"abcde"}},
      {"a\xc2\x9b"
       "2Cb\xc2\x9d"
       "0;t\xc2\x9c"
       "c",
       {"a  bc"}},
      {"a\033(0b\033[?1;2cc\033[ qd", {"abcd"}},
  }));
  CAPTURE(escaped(bytes));
  Screen screen(10, 4);
  if (bytes.size() % 2 == 0) screen.write(bytes);
  else
    for (const char c : bytes) screen.write(std::string_view(&c, 1));
  if (bytes.ends_with("\033[J")) CHECK(screen.scrollback() == 0);
  CHECK(screen.lines() == lines);
}

TEST_CASE("the reference terminal joins wrapped lines, and keeps styles and links") {
  Screen screen(10, 3);
  screen.write(
      "1234567890abc\r\n123456789中\r\n\033[1;31mre\033[39md\033[0;44m \033[38;5;1mx\033[m "
      "\033]8;;u\033\\l\033]8;;\007.");
  const auto lines = screen.logical_lines();
  REQUIRE(lines.size() == 3);
  CHECK(plain(lines[0]) == "1234567890abc");
  CHECK(plain(lines[1]) == "123456789中");
  CHECK(styled(lines[2]) == "{1;31}re{1}d{44} {31;44}x{} { u}l{}.");
  CHECK(screen.scrollback() == 2);
  CHECK(screen.cursor() == std::pair<std::size_t, std::size_t>(2, 8));
}

TEST_CASE("each rank's lines are those that its own terminal would show") {
  const bool fold = GENERATE(false, true);
  std::vector<std::string> kinds{"mixed"};
  for (const auto& [kind, draw] : OracleProgram::kinds()) kinds.push_back(kind);
  for (const auto& kind : kinds) {
    if (!is_oracle_kind(kind)) continue;
    for_oracle_seeds(concat(kind, fold ? ", folded" : ""), kind == "mixed" ? 6 : 2, [&](std::uint64_t seed) {
      const Texts programs = draw_programs(kind, seed);
      OracleConsole console(fold, Milliseconds(seed % 4 == 0 ? 1 : 200));
      const bool ends_early = seed % 2 == 0;
      feed_interleaved(console, programs, seed, [&](std::size_t rank) {
        if (ends_early) console.close_stream(rank);
      });
      for (std::size_t rank = 0; !ends_early && rank < programs.size(); ++rank) console.close_stream(rank);
      console.close();
      return describe_differences(console, programs);
    });
  }
}

TEST_CASE("the unfinished line of each rank stands on the screen") {
  if (!is_oracle_kind("live")) return;
  for_oracle_seeds("live", 2, [](std::uint64_t seed) {
    const Texts programs = draw_programs("mixed", seed, true);
    OracleConsole console(seed % 2 == 0, Milliseconds(20));
    feed_interleaved(console, programs, seed);
    std::string missing;
    console.poll_until([&] {
      const Texts lines = console.screen.lines();
      const auto visible = lines.begin() + static_cast<std::ptrdiff_t>(console.screen.scrollback());
      missing.clear();
      for (std::size_t rank = 0; rank < programs.size(); ++rank) {
        const Texts own = screen_of(programs[rank]).lines();
        const std::size_t row = screen_of(programs[rank]).cursor().first + screen_of(programs[rank]).scrollback();
        const std::string live = concat('[', rank, "] ", own[row]);
        if (std::find(visible, lines.end(), live) == lines.end()) missing += concat("\n    missing \"", live, '"');
      }
      return missing.empty();
    });
    if (!missing.empty()) {
      for (const auto& line : console.screen.lines()) missing += concat("\n      | ", line);
    }
    for (std::size_t rank = 0; rank < programs.size(); ++rank) console.close_stream(rank);
    console.close();
    return missing + describe_differences(console, programs);
  });
}

TEST_CASE("hostile bytes of one rank leave the terminal and the lines of others alone") {
  const bool moves_up = GENERATE(false, true);
  if (!is_oracle_kind("hostile")) return;
  for_oracle_seeds(moves_up ? "hostile, moves up" : "hostile", 5, [&](std::uint64_t seed) {
    Texts programs = draw_programs("plain", seed);
    programs[0] = draw_hostile(seed, moves_up);
    OracleConsole console(false, Milliseconds(seed % 2 == 0 ? 1 : 200));
    feed_interleaved(console, programs, seed);
    for (std::size_t rank = 0; rank < programs.size(); ++rank) console.close_stream(rank);
    console.close();
    std::string wrong = describe_differences(console, programs, 1);
    for (const auto& sequence : forbidden_sequences()) {
      if (console.raw.find(sequence) != std::string::npos) wrong += concat("\n    passed on: ", escaped(sequence));
    }
    if (!moves_up) {
      Texts written;
      for (std::size_t at = 0; (at = programs[0].find("\nR0-", at)) != std::string::npos; ++at) {
        written.push_back(programs[0].substr(at + 1, programs[0].find('\n', at + 1) - at - 1));
      }
      const std::string difference = describe_difference(written, whole_lines(shown_lines(console.screen)[0]));
      if (!difference.empty()) wrong += concat("\n    whole lines of rank 0, ", difference);
    }
    return wrong;
  });
}

TEST_CASE("log files have the bytes of programs that redraw, whatever the terminal shows") {
  const TemporaryDirectory dir;
  const winsize size{oracle_rows, oracle_columns, 0, 0};
  ::setenv("TERM", "xterm", 1);
  Terminal terminal(&size);
  OutputHarness h(oracle_ranks, [&](OutputOptions& options) {
    options.console_out = options.console_err = terminal.tty.get();
    options.log.pty = PtyUse::never;
    options.log.dir = dir.path();
    options.programs[0].streams.tee.all_ranks = Streams::both;
  });
  h.start();
  const Texts programs = draw_programs("mixed", 1);
  Screen screen(oracle_columns, oracle_rows);
  for (std::size_t at = 0, more = 1; more > 0; at += 100) {
    more = 0;
    for (std::size_t rank = 0; rank < programs.size(); ++rank) {
      if (at >= programs[rank].size()) continue;
      more = 1;
      put(rank % 2 == 0 ? h.workers[rank].out : h.workers[rank].err, programs[rank].substr(at, 100));
    }
    h.io.restart();
    h.io.poll();
    screen.write(terminal.shown());
  }
  Texts files;
  for (int rank = 0; rank < oracle_ranks; ++rank) {
    files.push_back(rank % 2 == 0 ? h.output->stdout_log(rank) : h.output->stderr_log(rank));
  }
  CHECK(h.end());
  for (std::size_t rank = 0; rank < programs.size(); ++rank) CHECK(read_file(files[rank]) == programs[rank]);
}
