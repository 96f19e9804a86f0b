#include "fold.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::logs;

namespace {

using std::chrono::milliseconds;

/// What a Fold shows, line by line as "[ranks] text"; its sources are the ranks.
struct Folded {
  explicit Folded(int ranks) {
    for (int i = 0; i < ranks; ++i) CHECK(fold.open() == i);
  }
  Fold::Time at(int ms) const { return start + milliseconds(ms); }
  void add(int ms, int rank, const std::string& text) {
    pass_time(ms);
    fold.add(rank, text + "\n", at(ms));
    fold.settle(rank, at(ms));
  }
  /// Until then deadlines pass.
  void pass_time(int ms) {
    while (const auto next = fold.deadline()) {
      if (*next > at(ms)) break;
      fold.expire(*next);
    }
  }

  Fold::Time start{std::chrono::hours(1)};
  std::vector<std::string> shown;
  std::size_t bytes = 0;  ///< shown, of all sources
  std::size_t calls = 0;  ///< that have shown them
  Fold fold{[this](const std::vector<int>& sources, std::string_view lines, Fold::Time) {
    ++calls;
    bytes += lines.size() * sources.size();
    for (; !lines.empty(); lines.remove_prefix(lines.find('\n') + 1)) {
      shown.push_back(concat('[', fold_ranks(sources), "] ", lines.substr(0, lines.find('\n'))));
    }
  }};
};

std::vector<std::string> traceback() {
  return {"Traceback (most recent call last):",
          "  File \"train.py\", line 9, in <module>",
          "    main()",
          "    ^^^^^^",
          "  File \"train.py\", line 7, in main",
          "    load()",
          "    ^^^^^^",
          "KeyError: 'train'"};
}

}  // namespace

TEST_CASE("equal lines are folded: the table that the Python package passes, too") {
  std::ifstream file(DDRUN_FOLD_CASES);
  const auto cases = nlohmann::json::parse(file);
  REQUIRE(cases.size() >= 8);
  for (const auto& one : cases) {
    CAPTURE(one["name"]);
    Folded f(one["ranks"]);
    for (const auto& line : one["lines"]) f.add(line[0], line[1], line[2]);
    f.pass_time(10'000);
    CHECK(f.shown == one["shown"].get<std::vector<std::string>>());
  }
}

TEST_CASE("one exception on many ranks is one traceback, however its lines are interleaved") {
  const auto [ranks, seed] = GENERATE(table<int, unsigned>({{2, 1U}, {8, 2U}, {8, 3U}, {512, 4U}}));
  CAPTURE(ranks, seed);
  std::mt19937 random(seed);
  Folded f(ranks);
  const auto lines = traceback();
  std::vector<int> order;
  for (int rank = 0; rank < ranks; ++rank) order.insert(order.end(), lines.size(), rank);
  std::shuffle(order.begin(), order.end(), random);
  // Some have a line of their own before, between or behind.
  std::vector<std::size_t> next(static_cast<std::size_t>(ranks));
  int extra = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const int ms = static_cast<int>(i * 45 / order.size());
    const auto rank = static_cast<std::size_t>(order[i]);
    if (rank % 5 == 1 && next[rank] == rank % 3) f.add(ms, order[i], concat("only ", rank)), ++extra;
    f.add(ms, order[i], lines[next[rank]++]);
  }
  f.pass_time(10'000);
  CHECK(f.shown.size() == lines.size() + static_cast<std::size_t>(extra));
  const std::string all = concat("[0", ranks == 2 ? ',' : '-', ranks - 1, "] ");
  std::vector<std::string> common;
  for (const auto& line : f.shown) {
    if (line.starts_with(all)) common.push_back(line.substr(all.size()));
  }
  CHECK(common == lines);
}

TEST_CASE("lines of one rank keep their order, whatever the others write") {
  std::mt19937 random(7);
  for (int run = 0; run < 50; ++run) {
    Folded f(4);
    std::vector<std::vector<std::string>> written(4);
    for (int i = 0; i < 200; ++i) {
      const auto rank = random() % 4;
      written[rank].push_back(std::string(1, static_cast<char>('a' + random() % 6)));
      f.add(i * static_cast<int>(random() % 3), static_cast<int>(rank), written[rank].back());
    }
    if (run % 2 == 0) f.fold.release_all();
    f.pass_time(10'000);
    std::vector<std::vector<std::string>> seen(4);
    for (const auto& line : f.shown) {
      const std::string text = line.substr(line.find("] ") + 2);
      std::string ranks = line.substr(1, line.find(']') - 1) + ",";
      for (std::size_t at = 0; at < ranks.size(); at = ranks.find(',', at) + 1) {
        int first = 0;
        int last = 0;
        const int count = std::sscanf(ranks.c_str() + at, "%d-%d", &first, &last);
        for (int rank = first; rank <= (count == 2 ? last : first); ++rank) {
          seen[static_cast<std::size_t>(rank)].push_back(text);
        }
      }
    }
    CHECK(seen == written);
  }
}

TEST_CASE("what is equal on all open sources is shown at once") {
  Folded f(3);
  f.add(0, 0, "a");
  f.add(0, 1, "a");
  CHECK(f.shown.empty());
  SECTION("when the last has it") { f.add(1, 2, "a"); }
  SECTION("when the last has ended") { f.fold.close(2, f.at(1)); }
  CHECK(f.shown.size() == 1);
  CHECK_FALSE(f.fold.deadline());
}

TEST_CASE("what is held is shown when all sources are closed, and their numbers are used again") {
  Folded f(2);
  f.add(0, 0, "a");
  f.add(0, 1, "b");
  f.fold.close(0, f.at(1));
  CHECK(f.shown.empty());
  f.fold.close(1, f.at(1));
  CHECK(f.shown == std::vector<std::string>{"[0] a", "[1] b"});
  CHECK(f.fold.open() == 0);
}

TEST_CASE("release() shows what a source holds, with those that have the same") {
  Folded f(3);
  f.add(0, 0, "a");
  f.add(0, 1, "a");
  f.add(0, 1, "b");
  f.fold.release(0);
  CHECK(f.shown == std::vector<std::string>{"[0,1] a"});
  f.fold.release_all();
  CHECK(f.shown.back() == "[1] b");
}

TEST_CASE("memory is bounded, and a source that floods alone is not held") {
  const int ranks = GENERATE(2, 100);
  Folded f(ranks);
  const std::string line(99, 'x');
  std::size_t added = 0;
  for (int ms = 0; !f.fold.passes(0, f.at(ms)); ++ms) {
    REQUIRE(ms < 5000);
    for (int i = 0; i < 100; ++i, ++added) {
      f.fold.add(0, concat(added, line, '\n'), f.at(ms));
    }
    f.fold.settle(0, f.at(ms));
    CHECK((added - f.shown.size()) * 100 <= Fold::max_source_bytes + 10'000);
  }
  CHECK(f.shown.size() == added);
  CHECK_FALSE(f.fold.passes(1, f.at(5000)));
  // All together: with many sources each may hold less.
  f.bytes = 0;
  std::size_t written = 0;
  for (int rank = 1; rank < ranks; ++rank) {
    const std::string text = concat(rank, ' ', line, '\n');
    for (int i = 0; i < 500; ++i, written += text.size()) f.fold.add(rank, text, f.at(6000));
    f.fold.settle(rank, f.at(6000));
    CHECK(written - f.bytes <= Fold::max_bytes);
  }
}

TEST_CASE("equal lines in different order: no more than a number of them is compared, and floods are not held") {
  constexpr int ranks = 64;
  const unsigned words = GENERATE(10U, 10'000U);
  std::mt19937 random(words);
  Folded f(ranks);
  std::size_t written = 0;
  const auto add = [&](int rank, int lines, int ms) {
    for (int i = 0; i < lines; ++i) {
      const std::string line = concat(random() % words, '\n');
      f.fold.add(rank, line, f.at(ms));
      written += line.size();
    }
  };
  SECTION("at once") {
    for (int rank = 0; rank < ranks; ++rank) add(rank, 600, 0);
    f.fold.release_all();
    CHECK(f.bytes == written);
    CHECK(f.calls <= Fold::max_lines + ranks);
  }
  SECTION("one after another") {
    int passing = 0;
    for (int ms = 0; ms < 1000 && passing < ranks; ++ms) {
      f.pass_time(ms);
      passing = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        if (f.fold.passes(rank, f.at(ms))) {
          ++passing;
          continue;
        }
        add(rank, 5, ms);
        f.fold.settle(rank, f.at(ms));
      }
    }
    CHECK(passing == ranks);
    f.fold.release_all();
    CHECK(f.bytes == written);
  }
}
