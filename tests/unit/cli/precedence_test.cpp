#include "support.hpp"

using namespace ddrun;
using namespace ddrun::cli::test;
using namespace std::chrono_literals;

TEST_CASE("command line then DDRUN then PET then file then default") {
  const TemporaryDirectory dir;
  const std::string config = "DDRUN_CONFIG=" + dir.file("c.toml", "nproc-per-node = 5\n");
  CHECK(launched({"w"}).spec.first().nproc.count == 1);
  CHECK(launched({"w"}, {config}).spec.first().nproc.count == 5);
  CHECK(launched({"w"}, {config, "PET_NPROC_PER_NODE=6"}).spec.first().nproc.count == 6);
  CHECK(launched({"w"}, {"DDRUN_NPROC_PER_NODE=7", config, "PET_NPROC_PER_NODE=6"}).spec.first().nproc.count == 7);
  CHECK(launched({"-n8", "w"}, {"DDRUN_NPROC_PER_NODE=7", config, "PET_NPROC_PER_NODE=6"}).spec.first().nproc.count ==
        8);
}

TEST_CASE("the config option wins over its variable") {
  const TemporaryDirectory dir;
  const std::string one = dir.file("one.toml", "nproc-per-node = 3\n");
  const std::string two = dir.file("two.toml", "max-restarts = 2\n");
  const auto launch = launched({"--config", two, "w"}, {"DDRUN_CONFIG=" + one});
  CHECK(launch.spec.first().nproc.count == 1);
  CHECK(launch.spec.restart.max_restarts == 2);
}

TEST_CASE("an empty variable counts as not set") {
  const auto launch = launched({"w"}, {"DDRUN_NPROC_PER_NODE=", "PET_NPROC_PER_NODE=2", "DDRUN_CONFIG="});
  CHECK(launch.spec.first().nproc.count == 2);
}

TEST_CASE("a variable may have blanks, a line end and a byte order mark around it") {
  const auto launch =
      launched({"w"}, {"PET_NPROC_PER_NODE=2\n", "PET_RDZV_ENDPOINT=\xef\xbb\xbf host:29400 \r\n", "PET_NNODES= 2\t",
                       "DDRUN_ENV=A=b \r\nC=d", "DDRUN_LOG_LINE_PREFIX_TEMPLATE=${rank}: "});
  CHECK(launch.spec.first().nproc.count == 2);
  CHECK(launch.spec.rendezvous.endpoint == "host:29400");
  CHECK(launch.spec.rendezvous.min_nodes == 2);
  CHECK(launch.spec.first().env.front().second == "b ");
  CHECK(launch.spec.log.line_prefix_template == "${rank}: ");
}

TEST_CASE("flags in variables take 0 and 1") {
  CHECK(launched({"w"}, {"PET_STANDALONE=1"}).spec.rendezvous.standalone);
  CHECK_FALSE(launched({"w"}, {"PET_STANDALONE=0"}).spec.rendezvous.standalone);
  CHECK(launched({"w"}, {"DDRUN_TIMESTAMPS=true"}).spec.log.timestamps);
  CHECK(launched({"w"}, {"DDRUN_TIMESTAMPS=Yes"}).spec.log.timestamps);
  CHECK_FALSE(launched({"w"}, {"DDRUN_TIMESTAMPS=n"}).spec.log.timestamps);
  CHECK_FALSE(launched({"--timestamps=0", "w"}, {"DDRUN_TIMESTAMPS=1"}).spec.log.timestamps);
  CHECK(refused({"w"}, {"PET_STANDALONE=maybe"}) == "PET_STANDALONE=maybe: 'maybe' is neither 0 nor 1");
  CHECK(launched({"w"}, {"DDRUN_VERBOSE=2"}).messages.shown == Level::debug);
  CHECK(launched({"w"}, {"PET_NPROC_PER_NODE=2", "PET_NO_PYTHON=1"}).spec.first().nproc.count == 2);
}

TEST_CASE("torchrun's older variables have the lowest precedence") {
  CHECK(launched({"w"}, {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7"}).spec.stop.grace == 7s);
  CHECK(launched({"w"}, {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7", "PET_SHUTDOWN_TIMEOUT=8"}).spec.stop.grace == 8s);
  CHECK(launched({"w"}, {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=x"}).spec.log.line_prefix_template == "x");
}

TEST_CASE("variables of options that torchrun has none for are not read") {
  CHECK(launched({"w"}, {"PET_TIMEOUT=7", "PET_NUMA_BINDING=bad", "PET_LOGS_SPECS=x"}).spec.timeout == std::nullopt);
}

TEST_CASE("a bad value in a variable names the variable") {
  CHECK(refused({"w"}, {"PET_NPROC_PER_NODE=0"}) ==
        "PET_NPROC_PER_NODE=0: '0' is not a number from 1 to 100000, auto, cpu or gpu");
  // An overridden value is not checked.
  CHECK(launched({"-n2", "w"}, {"PET_NPROC_PER_NODE=0"}).spec.first().nproc.count == 2);
}

TEST_CASE("variables for the workers are merged from all sources by precedence") {
  const TemporaryDirectory dir;
  const std::string config = dir.file("c.toml", "[env]\nA = 1\nB = \"file\"\nC = \"file\"\n");
  const auto env =
      launched({"--config=" + config, "--env", "A=typed", "w"}, {"DDRUN_ENV=B=variable, with comma\n\nD=4\n"})
          .spec.first()
          .env;
  const std::vector<std::pair<std::string, std::string>> expected{
      {"A", "typed"}, {"B", "variable, with comma"}, {"C", "file"}, {"D", "4"}};
  CHECK(env == expected);
}
