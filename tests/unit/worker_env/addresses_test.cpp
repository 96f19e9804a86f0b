#include "ddrun/worker_env/addresses.hpp"

#include "ddrun/base/messages.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::worker_env;
using Words = std::vector<std::string>;

namespace {

/// One without a port, one with three workers, one with one.
const std::vector<ProgramAddresses> three_programs{
    {"trainer", {"10.0.0.9", "10.0.0.10"}, {}},
    {"vllm", {"10.0.0.1", "10.0.0.2", "10.0.0.3"}, {"10.0.0.1:8000", "10.0.0.2:8001", "10.0.0.3:8002"}},
    {"a-b_2", {"127.0.0.1"}, {"127.0.0.1:9000"}}};

Words expanded(const Words& args) {
  ProgramSpec program{ProgramKind::executable, "./a", args};
  const auto done = expand_addresses(program, three_programs);
  if (!done) return {"error: " + done.error().message};
  return program.args;
}

/// As the value of --env X.
std::string expanded_value(const std::string& value) {
  ProgramSpec program{ProgramKind::executable, "./a"};
  program.env = {{"A", "1"}, {"X", value}};
  const auto done = expand_addresses(program, three_programs);
  if (!done) return "error: " + done.error().message;
  CHECK(program.env.front() == std::pair<std::string, std::string>("A", "1"));
  return program.env.back().second;
}

std::string refused_word(const std::string& word) {
  ProgramSpec program{ProgramKind::executable, "./a", {word}};
  const auto done = expand_addresses(program, three_programs);
  REQUIRE_FALSE(done);
  CHECK(done.error().code == Errc::invalid_argument);
  return done.error().message;
}

}  // namespace

TEST_CASE("addresses of other programs are replaced in arguments") {
  struct Row {
    Words args, expected;
  };
  const std::vector<Row> rows = {
      {{"${host:vllm}"}, {"10.0.0.1"}},
      {{"${host:trainer}"}, {"10.0.0.9"}},
      {{"${endpoint:vllm}"}, {"10.0.0.1:8000"}},
      {{"${endpoints:vllm}"}, {"10.0.0.1:8000,10.0.0.2:8001,10.0.0.3:8002"}},
      {{"${host:a-b_2}", "${endpoint:a-b_2}", "${endpoints:a-b_2}"}, {"127.0.0.1", "127.0.0.1:9000", "127.0.0.1:9000"}},
      {{"--url=http://${endpoint:vllm}/v1"}, {"--url=http://10.0.0.1:8000/v1"}},
      {{"[${endpoints:a-b_2}]"}, {"[127.0.0.1:9000]"}},
      {{"${host:vllm}-${host:trainer}"}, {"10.0.0.1-10.0.0.9"}},
      {{"${host:vllm}${host:vllm}"}, {"10.0.0.110.0.0.1"}},
      {{"-a", "${host:vllm}", "", "b c"}, {"-a", "10.0.0.1", "", "b c"}},
      // A word for each worker.
      {{"${each:vllm}"}, {"10.0.0.1:8000", "10.0.0.2:8001", "10.0.0.3:8002"}},
      {{"${each:a-b_2}"}, {"127.0.0.1:9000"}},
      {{"a", "--worker=http://${each:vllm}/v1", "b"},
       {"a", "--worker=http://10.0.0.1:8000/v1", "--worker=http://10.0.0.2:8001/v1", "--worker=http://10.0.0.3:8002/v1",
        "b"}},
      {{"${each:vllm}=${each:vllm}"},
       {"10.0.0.1:8000=10.0.0.1:8000", "10.0.0.2:8001=10.0.0.2:8001", "10.0.0.3:8002=10.0.0.3:8002"}},
      {{"${host:trainer}>${each:vllm}<${endpoints:a-b_2}"},
       {"10.0.0.9>10.0.0.1:8000<127.0.0.1:9000", "10.0.0.9>10.0.0.2:8001<127.0.0.1:9000",
        "10.0.0.9>10.0.0.3:8002<127.0.0.1:9000"}},
      {{"${each:vllm}", "${each:a-b_2}"}, {"10.0.0.1:8000", "10.0.0.2:8001", "10.0.0.3:8002", "127.0.0.1:9000"}},
  };
  for (const auto& [args, expected] : rows) {
    CAPTURE(args);
    CHECK(expanded(args) == expected);
  }
}

TEST_CASE("addresses of other programs are replaced in variables") {
  CHECK(expanded_value("${host:vllm}") == "10.0.0.1");
  CHECK(expanded_value("${endpoint:vllm}") == "10.0.0.1:8000");
  CHECK(expanded_value("${endpoints:vllm}") == "10.0.0.1:8000,10.0.0.2:8001,10.0.0.3:8002");
  CHECK(expanded_value("http://${endpoint:vllm}/v1 ${host:trainer}") == "http://10.0.0.1:8000/v1 10.0.0.9");
  CHECK(expanded_value("").empty());
  CHECK(expanded_value("${host:-x}") == "${host:-x}");
  constexpr const char* each =
      "error: --env X: ${each:vllm} repeats its word of a command, for one program; give ${endpoints:vllm} here";
  CHECK(expanded_value("${each:vllm}") == each);
  CHECK(expanded_value("x${host:vllm},${each:vllm}") == each);
  CHECK(expanded_value("${host:x}") ==
        "error: --env X: ${host:x}: no program has this role; give one of trainer, vllm, a-b_2");
}

TEST_CASE("only arguments and variables are expanded") {
  ProgramSpec program{ProgramKind::executable, "${host:vllm}"};
  program.role = program.world = program.chdir.emplace("${host:vllm}");
  program.env = {{"${host:vllm}", ""}};
  const ProgramSpec before = program;
  REQUIRE(expand_addresses(program, three_programs));
  CHECK(program.name == before.name);
  CHECK(program.role == before.role);
  CHECK(program.chdir == before.chdir);
  CHECK(program.env == before.env);
}

TEST_CASE("text that only resembles an address stays") {
  for (const char* text : {"${host:-x}",
                           "${host:-vllm}",
                           "${host:0:3}",
                           "${host:+vllm}",
                           "${host:=vllm}",
                           "${host:?vllm}",
                           "${HOST:vllm}",
                           "${Host:vllm}",
                           "${x:a}",
                           "${hosts:vllm}",
                           "${each}",
                           "${host}",
                           "${host:}",
                           "${host: vllm}",
                           "${host:vllm ",
                           "${host:vllm",
                           "${host:a.b}",
                           "${:vllm}",
                           "${}",
                           "${",
                           "$",
                           "",
                           "$host:vllm",
                           "{host:vllm}",
                           "$ {host:vllm}",
                           "${ host:vllm}",
                           "${rank}",
                           "${local_rank}",
                           "${port}",
                           "}${",
                           "${host:vllm:1}",
                           "${${host:vllm:}",
                           "${host::vllm}"}) {
    CAPTURE(text);
    CHECK(expanded({text}) == Words{text});
    CHECK(expanded_value(text) == text);
  }
  // One that stands behind it or in it is found all the same.
  CHECK(expanded({"${host:-x}${host:vllm}"}) == Words{"${host:-x}10.0.0.1"});
  CHECK(expanded({"${x:-${host:vllm}}"}) == Words{"${x:-10.0.0.1}"});
  CHECK(expanded({"${host:v${host:vllm}"}) == Words{"${host:v10.0.0.1"});
  CHECK(expanded({"${host:vllm}${host:vllm"}) == Words{"10.0.0.1${host:vllm"});
  CHECK(expanded({"$${host:vllm}}"}) == Words{"$10.0.0.1}"});
}

TEST_CASE("an address that no program has is refused") {
  for (const std::string kind : {"host", "endpoint", "endpoints", "each"}) {
    CHECK(refused_word("x${" + kind + ":vlm}") ==
          "${" + kind + ":vlm}: no program has this role; give one of trainer, vllm, a-b_2");
    if (kind == "host") continue;
    CHECK(refused_word("x${" + kind + ":trainer}") == "${" + kind + ":trainer}: trainer has no --port; give it one");
  }
  CHECK(refused_word("${host:VLLM}") == "${host:VLLM}: no program has this role; give one of trainer, vllm, a-b_2");
  CHECK(refused_word("${each:vllm},${each:a-b_2}") ==
        "${each:a-b_2} repeats its word of a command, for one program; give ${endpoints:a-b_2} here");
}

TEST_CASE("variables name the addresses of all programs") {
  using Variables = std::vector<std::pair<std::string, std::string>>;
  CHECK(address_variables({}).empty());
  CHECK(address_variables(three_programs) ==
        Variables{{"DDRUN_HOSTS_TRAINER", "10.0.0.9,10.0.0.10"},
                  {"DDRUN_HOSTS_VLLM", "10.0.0.1,10.0.0.2,10.0.0.3"},
                  {"DDRUN_ENDPOINTS_VLLM", "10.0.0.1:8000,10.0.0.2:8001,10.0.0.3:8002"},
                  {"DDRUN_HOSTS_A_B_2", "127.0.0.1"},
                  {"DDRUN_ENDPOINTS_A_B_2", "127.0.0.1:9000"}});
}

TEST_CASE("a list of addresses that would be too long for a variable is left out") {
  std::string said;
  set_message_sink([&](std::string_view text) { said += text; });
  // With the comma 64 KiB, and a byte more.
  const std::string half(32 * 1024 - 1, 'x');
  const auto fitting = address_variables({{"a", {half, half + "x"}, {}}});
  CHECK(said.empty());
  const auto left = address_variables({{"a", {half, half + "xx"}, {"h:1"}}, {"b", {"h"}, {half, half + "xx"}}});
  set_message_sink({});
  REQUIRE(fitting.size() == 1);
  CHECK(fitting[0].second.size() == 64 * 1024);
  CHECK(left == std::vector<std::pair<std::string, std::string>>{{"DDRUN_ENDPOINTS_A", "h:1"}, {"DDRUN_HOSTS_B", "h"}});
  CHECK(said ==
        "ddrun: warning: DDRUN_HOSTS_A is not set: it would be too long\n"
        "ddrun: warning: DDRUN_ENDPOINTS_B is not set: it would be too long\n");
}
