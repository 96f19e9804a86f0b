#include "option_table.hpp"

#include <algorithm>
#include <set>

#include "support.hpp"

using namespace ddrun;
using namespace ddrun::cli;
using namespace ddrun::cli::test;

TEST_CASE("every choice of an option is accepted by it") {
  for (const Option* option : all_options()) {
    if (!option->is_setting() || option->choices.empty()) continue;
    std::istringstream args{std::string(option->choices)};
    for (std::string word; args >> word;) {
      CAPTURE(std::string(option->name));
      CAPTURE(word);
      ParsedOptions parsed;
      REQUIRE(option->set(parsed, word).has_value());
      CHECK(option->show(parsed) == Args{word});
    }
  }
}

TEST_CASE("every option of torchrun is there with both spellings") {
  const Args torchrun{"nnodes",
                      "nproc-per-node",
                      "rdzv-backend",
                      "rdzv-endpoint",
                      "rdzv-id",
                      "rdzv-conf",
                      "standalone",
                      "max-restarts",
                      "monitor-interval",
                      "start-method",
                      "event-log-handler",
                      "role",
                      "module",
                      "no-python",
                      "run-path",
                      "log-dir",
                      "redirects",
                      "tee",
                      "log-line-prefix-template",
                      "local-ranks-filter",
                      "duplicate-stdout-filters",
                      "duplicate-stderr-filters",
                      "node-rank",
                      "master-addr",
                      "master-port",
                      "local-addr",
                      "logs-specs",
                      "numa-binding",
                      "signals-to-handle",
                      "shutdown-timeout",
                      "virtual-local-rank",
                      "print-completion"};
  const std::set<std::string> without_variable{"logs-specs", "numa-binding", "print-completion"};
  for (const std::string& name : torchrun) {
    CAPTURE(name);
    const Option* option = find_option(name);
    REQUIRE(option != nullptr);
    std::string other = name;
    std::replace(other.begin(), other.end(), '-', '_');
    CHECK(find_option(other) == option);
    CHECK(option->pet == (without_variable.count(name) == 0));
  }
  CHECK(find_option("redirects")->shorts == "r");
  CHECK(find_option("tee")->shorts == "t");
  CHECK(find_option("module")->shorts == "m");
}

TEST_CASE("the names of variables follow from the long names") {
  CHECK(variables_of(*find_option("log-dir")) == Args{"DDRUN_LOG_DIR", "PET_LOG_DIR"});
  CHECK(variables_of(*find_option("timeout")) == Args{"DDRUN_TIMEOUT"});
  CHECK(variables_of(*find_option("config")) == Args{"DDRUN_CONFIG"});
  CHECK(variables_of(*find_option("help")).empty());
  CHECK(variables_of(*find_option("shutdown-timeout")) ==
        Args{"DDRUN_SHUTDOWN_TIMEOUT", "PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"});
}
