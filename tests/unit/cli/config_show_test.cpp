#include "support.hpp"

using namespace ddrun;
using namespace ddrun::cli::test;

namespace {

/// The line of `config show` about one setting, blanks folded.
std::string line_of(const std::string& text, const std::string& start) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.substr(0, start.size()) != start) continue;
    std::string folded;
    for (const char c : line) {
      if (c != ' ' || folded.empty() || folded.back() != ' ') folded += c;
    }
    return folded;
  }
  return "no line for " + start;
}

}  // namespace

TEST_CASE("config show names the origin of each value") {
  const TemporaryDirectory dir;
  const std::string file = dir.file("c.toml", "role = \"a \\\"b\\\"\"\nmax-restarts = 2\n");
  const std::string text = answered({"config", "show", "--config", file, "-n", "4", "./w", "x y"},
                                    {"PET_TEE=0:3", "DDRUN_TIMEOUT=90", "PET_MAX_RESTARTS=5"});
  CHECK(line_of(text, "nproc-per-node") == "nproc-per-node = 4 # command line");
  CHECK(line_of(text, "role") == "role = \"a \\\"b\\\"\" # file " + file + ":1:1");
  CHECK(line_of(text, "max-restarts") == "max-restarts = 5 # variable PET_MAX_RESTARTS");
  CHECK(line_of(text, "tee") == "tee = \"0:3\" # variable PET_TEE");
  CHECK(line_of(text, "timeout") == "timeout = 90 # variable DDRUN_TIMEOUT");
  CHECK(line_of(text, "shutdown-timeout") == "shutdown-timeout = 30 # default");
  CHECK(line_of(text, "# log-dir") == "# log-dir is not set # default");
  CHECK(line_of(text, "program") == "program = [\"./w\", \"x y\"] # command line");
}

TEST_CASE("config show has the same as JSON and no empty lines as text") {
  CHECK_FALSE(contains(answered({"config", "show"}), "\n\n"));
  const std::string json = answered({"config", "show", "--json", "-n", "4", "--env=A=1", "w", "x"});
  for (const std::string part :
       {"\"nproc-per-node\": {\n    \"value\": \"4\",\n    \"from\": \"command line\"",
        "\"timestamps\": {\n    \"value\": false,", "\"timeout\": {\n    \"value\": null,\n    \"from\": \"default\"",
        "\"A=1\"\n    ],", "\"w\",\n      \"x\""}) {
    CAPTURE(part);
    CHECK(contains(json, part));
  }
  CHECK(contains(answered({"config", "show", "--json"}), "\"program\": {\n    \"value\": null,"));
  CHECK(contains(answered({"config", "show", "--", "w", "--json"}), "[\"w\", \"--json\"]"));
}

TEST_CASE("config show needs no program") {
  CHECK(line_of(answered({"config", "show"}), "# program") == "# program is not set # default");
}

TEST_CASE("what config show prints is a settings file with the same meaning") {
  const std::vector<Args> lines{
      {"w"},
      {"-n", "gpu", "--stdin=all", "--seed=18446744073709551615", "--env=A=x\ty\"\\", "--env=B=", "--chdir=/a b", "w"},
      {"-m", "--numa-binding=node", "--redirects=0:3,12:1", "-t3", "--log-dir=x", "--log-rotate=10M", "-vv", "w"},
      {"--label=host", "--max-restarts=3", "--restart-backoff=0.25", "--restart-window=1h", "--timeout=5ms", "w"},
      {"--success-on=0,3-9", "--no-restart-on=10", "--signals-to-handle=TERM,USR1", "--report=r", "-q", "w", "", "é"},
      {"--log-line-prefix-template=${rank}|", "--local-ranks-filter=0", "--duplicate-stdout-filters=a,,b,c", "-t3",
       "w"},
      {"--rdzv-conf=timeout=3,is_host=1", "--rdzv-endpoint=[::1]:3", "--master-port=1", "--run-path", "w"},
      {"--color=always", "--event-log-handler=console", "--bind=cores", "--report-bindings", "--dry-run", "w"},
  };
  for (Args args : lines) {
    CAPTURE(args);
    args.insert(args.begin(), {"config", "show"});
    const std::string first = answered(args);
    const TemporaryDirectory dir;
    const std::string file = dir.file("c.toml", first);
    const std::string second = answered({"config", "show", "--config", file});
    const auto without_origin = [](const std::string& text) {
      std::istringstream in(text);
      std::string out;
      for (std::string line; std::getline(in, line);) out += line.substr(0, line.rfind("  # ")) + "\n";
      return out;
    };
    CHECK(without_origin(first) == without_origin(second));
    CHECK(launched({"--config", file}).spec.first().name == "w");
  }
}
