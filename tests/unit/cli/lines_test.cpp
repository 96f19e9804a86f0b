#include "ddrun/base/text.hpp"
#include "support.hpp"

using namespace ddrun;
using namespace ddrun::cli::test;

TEST_CASE("public command lines of torchrun are read as torchrun reads them") {
  const auto settings = [](std::string_view line) {
    Args args = split(line, ' ');
    args.insert(args.begin(), {"config", "show"});
    return answered(args);
  };
  std::string typed;
  int lines = 0;
  for (const std::string& line : split(read_file(DDRUN_SOURCE_DIR "/tests/support/cases/torchrun_lines.txt"), '\n')) {
    if (line.empty() || line.starts_with('#')) continue;
    if (!line.starts_with("= ")) {
      typed = line;
      continue;
    }
    CAPTURE(typed);
    ++lines;
    CHECK(settings(typed) == settings(line.substr(2)));
    const Args words = split(line.substr(line.find("-- ") + 3), ' ');
    const auto launch = launched(split(typed, ' '));
    CHECK(launch.spec.first().name == words.front());
    CHECK(launch.spec.first().args == Args(words.begin() + 1, words.end()));
  }
  CHECK(lines > 30);
}
