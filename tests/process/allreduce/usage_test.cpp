#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::test;

namespace {

using Environment = std::vector<std::pair<std::string, std::string>>;

void check_refused(const std::vector<std::string>& args, const Environment& env, const std::string& words) {
  std::vector<std::string> argv{DDRUN_TEST_ALLREDUCE};
  argv.insert(argv.end(), args.begin(), args.end());
  RunOptions options;
  options.env = env;
  Run run(argv, options);
  const Outcome outcome = run.wait();
  CAPTURE(words, outcome.err, outcome.out);
  CHECK(outcome.code() == 2);
  CHECK(outcome.out.empty());
  CHECK(lines_of(outcome.err).size() == 1);
  CHECK(outcome.err.find("ddrun-allreduce: error: ") == 0);
  CHECK(outcome.err.find(words) != std::string::npos);
}

}  // namespace

TEST_CASE("wrong options are refused in one line with status 2") {
  check_refused({"--no-such-option"}, {}, "--no-such-option");
  check_refused({"-b", "2"}, {}, "--minbytes: must be at least 4, not 2");
  check_refused({"-b", "lots"}, {}, "--minbytes: ");
  check_refused({"-b", "1M", "-e", "1K"}, {}, "--maxbytes: 1024 is less than --minbytes, 1048576");
  check_refused({"-f", "1"}, {}, "--stepfactor: must be at least 2");
  check_refused({"-n", "0"}, {}, "--iters: ");
  check_refused({"-c", "7"}, {}, "--check: ");
  check_refused({"--backend=gloo"}, {}, "--backend: must be auto or shm or tcp, not 'gloo'");
  check_refused({"--timeout=0"}, {}, "--timeout: must be more than 0");
  check_refused({"-d", "half"}, {}, "--datatype: must be float, not 'half'");
  check_refused({"-J", "/no/such/directory/x.json"}, {}, "--json: cannot write /no/such/directory/x.json");
  check_refused({"-e", "1000000G"}, {}, "of memory that are free");
}

TEST_CASE("half an environment is refused with an example of how to start") {
  const std::string example = "start it with a launcher, for example: ddrun --nproc-per-node=4 ddrun-allreduce";
  check_refused({}, {{"RANK", "0"}}, "WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set: " + example);
  check_refused({}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}},
                "MASTER_PORT is not set: " + example);
  check_refused({}, {{"WORLD_SIZE", "1"}}, "RANK is not set: " + example);
  const Environment rest{{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}};
  Environment outside = rest;
  outside.insert(outside.end(), {{"RANK", "2"}, {"WORLD_SIZE", "2"}});
  check_refused({}, outside, "RANK=2: ");
}

TEST_CASE("help fits the screen and ends with examples") {
  Run run({DDRUN_TEST_ALLREDUCE, "--help"});
  const Outcome outcome = run.wait();
  CHECK(outcome.code() == 0);
  CHECK(outcome.out.find("ddrun --nproc-per-node=4 ddrun-allreduce\n") != std::string::npos);
  for (const std::string& line : lines_of(outcome.out)) {
    CAPTURE(line);
    CHECK(line.size() <= 80);
  }
}
