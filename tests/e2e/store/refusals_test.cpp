// What the store has to say about its clients, which its thread finds out, comes between the workers' lines.
#include "../job.hpp"

using namespace ddrun::test;

TEST_CASE("Whom the store cuts off is told between whole lines while workers write") {
  const Words verbs{"rank", "0", "lines", "20000", ";", "rank", "1", "cut-off", "64", ";"};
  Words through_one_pipe{"sh", "-c", "exec \"$@\" 2>&1", "sh"};
  const Words argv = job({"-n2"}, verbs);
  through_one_pipe.insert(through_one_pipe.end(), argv.begin(), argv.end());
  const auto outcome = finish(through_one_pipe);
  INFO("code " << outcome.code() << "\n" << outcome.out.substr(0, 4000));
  REQUIRE(outcome.code() == 0);

  std::size_t notices = 0;
  std::size_t lines = 0;
  for (std::size_t at = 0; at < outcome.out.size();) {
    const std::size_t end = outcome.out.find('\n', at);
    REQUIRE(end != std::string::npos);
    const std::string line = outcome.out.substr(at, end - at);
    at = end + 1;
    INFO("line: " << line);
    if (line.starts_with("ddrun: ")) {
      CHECK(has(line, "warning: the store has cut off its client 127.0.0.1:"));
      ++notices;
    } else {
      CHECK(line.starts_with("[0] line " + std::to_string(lines) + " of rank 0 "));
      CHECK(line.size() == 4 + 99);
      ++lines;
    }
  }
  CHECK(lines == 20000);
  CHECK(notices > 8);
}
