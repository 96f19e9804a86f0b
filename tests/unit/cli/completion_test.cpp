#include <stdio.h>
#include <sys/wait.h>

#include <algorithm>

#include "option_table.hpp"
#include "support.hpp"

using namespace ddrun;
using namespace ddrun::cli::test;

namespace {

struct Output {
  int status;
  std::string text;
};

/// Runs a script with `shell`; standard error is kept with the output.
Output run_script(const std::string& shell, const std::string& path) {
  FILE* pipe = ::popen((shell + " " + path + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  char buffer[4096];
  for (std::size_t got; (got = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, got);
  const int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128, text};
}

bool has(const std::string& shell) {
  return WEXITSTATUS(std::system(("command -v " + shell + " >/dev/null 2>&1").c_str())) == 0;
}

/// The completions of bash for a line with the cursor on its last word; words as split by bash.
Args bash_offers(const Args& args) {
  const TemporaryDirectory dir;
  dir.file("script", answered({"completion", "bash"}));
  dir.file("data.json", "");
  std::filesystem::create_directory(dir.path() + "/logs");
  std::string line;
  for (const std::string& word : args) line += " '" + word + "'";
  const std::string test = "cd " + dir.path() + " && . ./script && COMP_WORDS=(ddrun" + line +
                           ") COMP_CWORD=" + std::to_string(args.size()) +
                           " && _ddrun && printf '%s\\n' \"${COMPREPLY[@]}\"\n";
  const Output output = run_script("bash --norc --noprofile", dir.file("test.bash", test));
  INFO(output.text);
  REQUIRE(output.status == 0);
  Args offers;
  std::istringstream lines(output.text);
  for (std::string offer; std::getline(lines, offer);) offers.push_back(offer);
  return offers;
}

bool offers(const Args& all, const std::string& one) { return std::find(all.begin(), all.end(), one) != all.end(); }

}  // namespace

TEST_CASE("bash completes options and their values") {
  if (!has("bash")) ddrun::test::skip("bash is not installed");
  CHECK(bash_offers({"--nproc"}) == Args{"--nproc-per-node"});
  CHECK(bash_offers({"--nproc_p"}) == Args{"--nproc-per-node"});
  CHECK(bash_offers({"--color", "=", "al"}) == Args{"always"});
  CHECK(bash_offers({"--color", "al"}) == Args{"always"});
  CHECK(bash_offers({"--color=al"}) == Args{"--color=always"});
  CHECK(bash_offers({"--color", "="}) == Args{"auto", "always", "never"});
  CHECK(bash_offers({"-n", "2", "--label", "=", "h"}) == Args{"host"});
  CHECK(bash_offers({"-n", "g"}) == Args{"gpu"});
  CHECK(bash_offers({"-np", ""}) == Args{"auto", "cpu", "gpu"});
  CHECK(bash_offers({"--config", "da"}) == Args{"data.json"});
  CHECK(bash_offers({"--log-dir", ""}) == Args{"logs"});
  CHECK(bash_offers({"--log_dir", "=", "l"}) == Args{"logs"});
  const Args all = bash_offers({"--"});
  for (const ddrun::cli::Option* option : ddrun::cli::all_options()) {
    CHECK(offers(all, "--" + std::string(option->name)));
  }
}

TEST_CASE("bash completes the program and leaves its options alone") {
  if (!has("bash")) ddrun::test::skip("bash is not installed");
  CHECK(offers(bash_offers({"-n", "2", "ech"}), "echo"));
  CHECK(offers(bash_offers({"-v", "dat"}), "data.json"));
  CHECK(bash_offers({"-v", "--", "data.j"}) == Args{"data.json"});
  CHECK(bash_offers({"-n", "2", "./w", "--col"}) == Args{""});
  CHECK(bash_offers({"-n", "2", "./w", "dat"}) == Args{"data.json"});
  CHECK(bash_offers({"--color", "=", "always", "./w", "dat"}) == Args{"data.json"});
  CHECK(offers(bash_offers({"conf"}), "config"));
}

TEST_CASE("bash offers programs but no shell builtins") {
  if (!has("bash")) ddrun::test::skip("bash is not installed");
  for (const char* word : {"[[", "!", "cd", "trap", "while", "_ddrun", "_ddrun_program"}) {
    CAPTURE(word);
    CHECK_FALSE(offers(bash_offers({word}), word));
  }
  // A builtin and a program at once.
  CHECK(offers(bash_offers({"ech"}), "echo"));
}

TEST_CASE("bash offers our own words first, once, and without a letter no programs of PATH") {
  if (!has("bash")) ddrun::test::skip("bash is not installed");
  const Args first = bash_offers({""});
  REQUIRE(first.size() > 2);
  CHECK(first.size() < 20);
  CHECK(first[0] == "completion");
  CHECK(offers(first, "stacks"));
  CHECK(offers(first, "data.json"));
  CHECK_FALSE(offers(first, "echo"));
  CHECK(bash_offers({"-v", ""}) == Args{"data.json", "logs", "script", "test.bash"});
  const Args env = bash_offers({"env"});
  CHECK(env[0] == "env");
  CHECK(std::ranges::count(env, "env") == 1);
}

TEST_CASE("bash completes variables and signals") {
  if (!has("bash")) ddrun::test::skip("bash is not installed");
  CHECK(offers(bash_offers({"-x", "PAT"}), "PATH"));
  CHECK(offers(bash_offers({"--export", "=", "PAT"}), "PATH"));
  CHECK(bash_offers({"--signals-to-handle", "=", "SIGTERM,SIGUSR"}) == Args{"SIGTERM,SIGUSR1", "SIGTERM,SIGUSR2"});
  CHECK(bash_offers({"--signals_to_handle=SIGH"}) == Args{"--signals_to_handle=SIGHUP"});
}

TEST_CASE("bash completes subcommands") {
  if (!has("bash")) ddrun::test::skip("bash is not installed");
  CHECK(bash_offers({"config", ""}) == Args{"show", "schema"});
  CHECK(bash_offers({"config", "show", "--nproc"}) == Args{"--nproc-per-node"});
  CHECK(bash_offers({"config", "show", "--js"}) == Args{"--json"});
  CHECK(bash_offers({"config", "show", "--json", "--nproc"}) == Args{"--nproc-per-node"});
  CHECK(bash_offers({"help", "st"}) == Args{"stacks", "store"});
  CHECK(bash_offers({"completion", "z"}) == Args{"zsh"});
  CHECK(bash_offers({"version", "-"}) == Args{"--json"});
  CHECK(bash_offers({"store", "g"}) == Args{"get"});
  CHECK(bash_offers({"store", "get", "--s"}) == Args{"--server="});
}

TEST_CASE("bash and shellcheck accept the script") {
  if (!has("shellcheck")) ddrun::test::skip("shellcheck is not installed");
  const TemporaryDirectory dir;
  const Output output = run_script("shellcheck -s bash", dir.file("ddrun.bash", answered({"completion", "bash"})));
  INFO(output.text);
  CHECK(output.status == 0);
}

TEST_CASE("zsh accepts its script with every option") {
  const std::string script = answered({"completion", "zsh"});
  for (const ddrun::cli::Option* option : ddrun::cli::all_options()) {
    CHECK(contains(script, "--" + std::string(option->name)));
  }
  if (!has("zsh")) ddrun::test::skip("zsh is not installed");
  const TemporaryDirectory dir;
  const Output syntax = run_script("zsh -f -n", dir.file("_ddrun", script));
  INFO(syntax.text);
  CHECK(syntax.status == 0);
  // Each specification is valid for _arguments, which reports errors only when run.
  const std::string load = "fpath=(" + dir.path() + " $fpath); autoload -Uz compinit && compinit -u -d " + dir.path() +
                           "/dump && print -r -- $_comps[ddrun]\n";
  const Output loaded = run_script("zsh -f", dir.file("load.zsh", load));
  INFO(loaded.text);
  CHECK(loaded.text == "_ddrun\n");
}

TEST_CASE("fish completes options values and subcommands") {
  if (!has("fish")) ddrun::test::skip("fish is not installed");
  const TemporaryDirectory dir;
  dir.file("script", answered({"completion", "fish"}));
  const auto offered = [&](const std::string& line) {
    const std::string test = "cd " + dir.path() + "; source script; complete -C '" + line + "'\n";
    const Output output = run_script("env HOME=" + dir.path() + " fish --no-config", dir.file("test.fish", test));
    CHECK(output.status == 0);
    return output.text;
  };
  CHECK(contains(offered("ddrun "), "stacks"));
  CHECK_FALSE(contains(offered("ddrun "), "sha256sum"));
  CHECK(contains(offered("ddrun sha256"), "sha256sum"));
  CHECK(contains(offered("ddrun --nproc"), "--nproc-per-node"));
  CHECK(contains(offered("ddrun --color=a"), "--color=always"));
  CHECK(contains(offered("ddrun --color a"), "always"));
  CHECK(contains(offered("ddrun -n 2 --lab"), "--label"));
  CHECK_FALSE(contains(offered("ddrun -n 2 ./w --lab"), "--label"));
  CHECK_FALSE(contains(offered("ddrun -- --lab"), "--label"));
  CHECK(contains(offered("ddrun config sh"), "show"));
  CHECK(contains(offered("ddrun config show --nproc"), "--nproc-per-node"));
  CHECK(contains(offered("ddrun completion z"), "zsh"));
  CHECK(contains(offered("ddrun store g"), "get"));
  CHECK(contains(offered("ddrun secret n"), "new"));
  CHECK(contains(offered("ddrun stacks --ra"), "--rank="));
  CHECK(contains(offered("ddrun env --js"), "--json"));
  CHECK(contains(offered("ddrun config show --js"), "--json"));
  CHECK(contains(offered("ddrun help st"), "store"));
  CHECK(contains(offered("ddrun -x PAT"), "PATH"));
  CHECK(contains(offered("ddrun --signals-to-handle=SIGHUP,SIGUS"), "SIGHUP,SIGUSR1"));
  CHECK(contains(offered("ddrun env --nproc"), "--nproc-per-node"));
}

TEST_CASE("there is a script for three shells and torchrun's option prints the same") {
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    CHECK(answered({"--print-completion", shell}) == answered({"completion", shell}));
  }
  CHECK(refused({"completion", "tcsh"}) == "no completion for 'tcsh'; there is one for bash, zsh and fish");
  CHECK(refused({"--print-completion=tcsh"}) == "no completion for 'tcsh'; there is one for bash, zsh and fish");
  CHECK(contains(refused({"completion"}), "usage: ddrun completion bash|zsh|fish"));
}
