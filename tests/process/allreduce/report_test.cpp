// The JSON report.

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::test;

TEST_CASE("a report on standard output is alone there") {
  const std::string path = GENERATE("-", "/dev/stdout");
  const TemporaryDirectory directory;
  const std::string file = directory.file("out");
  RunOptions options;
  options.in_child = [&file] { dup2(open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDOUT_FILENO); };
  const Outcome outcome = run_alone({"-b", "8", "-e", "64", "-n", "2", "-J", path}, options);
  CAPTURE(outcome.err);
  CHECK(outcome.code() == 0);
  CHECK(outcome.err.find("# Out of bounds values : 0 OK") != std::string::npos);
  CHECK(nlohmann::json::parse(read_file(file))["results"].size() == 4);
}

TEST_CASE("a report that cannot be written is refused before the measurement") {
  const Outcome outcome = run_alone({"-J", "/no/such/directory/x"});
  check_ends(outcome, 2, "--output_file: cannot write /no/such/directory/x: No such file or directory");
  CHECK(outcome.out.empty());
  check_ends(run_alone({"-J", ""}), 2, "--output_file: must not be empty");
}

TEST_CASE("a full disk is reported, and all ranks exit with the same status") {
  Ranks ranks(2, {"-e", "64", "-n", "2", "-J", "/dev/full"});
  const auto outcomes = ranks.wait();
  check_ends(outcomes[0], 1, "--output_file: cannot write /dev/full: No space left on device");
  CHECK(outcomes[1].code() == 1);
  CHECK(outcomes[1].err.empty());
}
