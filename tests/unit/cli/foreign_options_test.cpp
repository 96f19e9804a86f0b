
#include <cctype>
#include <regex>
#include <set>

#include "ddrun/base/text.hpp"
#include "option_table.hpp"
#include "support.hpp"

using namespace ddrun;
using namespace ddrun::cli;
using namespace ddrun::cli::test;

namespace {

bool is_short(char letter) {
  const auto options = all_options();
  return std::any_of(options.begin(), options.end(),
                     [&](const Option* option) { return option->shorts.find(letter) != std::string_view::npos; });
}

/// The options named by a hint, except those after a program.
void check_options_in(const std::string& hint) {
  static const std::regex option(R"((?:^|[ '])(--?)([a-z][a-z-]*))");
  for (auto it = std::sregex_iterator(hint.begin(), hint.end(), option); it != std::sregex_iterator(); ++it) {
    const std::string name = (*it)[2].str();
    if (name == "local-rank" || contains(it->prefix().str(), "ssh -p")) continue;
    CAPTURE(name);
    CHECK(((*it)[1] == "--" ? find_option(name) != nullptr : is_short(name[0])));
  }
}

}  // namespace

TEST_CASE("-e with NAME=VALUE is docker's") {
  CHECK(refused({"-e", "FOO=a b", "w"}) == "unknown option '-e' (of docker); in ddrun: --env 'FOO=a b'");
  CHECK(contains(refused({"-e", "err.log", "w"}), "(of mpirun and srun); in ddrun: --log-dir=DIR"));
}

TEST_CASE("each option of other launchers gets a hint: its replacement or that it is not needed") {
  std::set<std::string> names;
  for (const ForeignOption& option : foreign_options()) {
    const std::string hint(option.hint);
    CAPTURE(hint);
    CHECK((hint.starts_with("in ddrun: ") || hint.starts_with("not needed: ")));
    CHECK_FALSE(option.launchers.empty());
    if (!contains(hint, "ssh -p")) check_options_in(hint);
    for (const std::string& name : split(option.names, ' ')) {
      CAPTURE(name);
      CHECK(names.insert(name).second);
      CHECK(name == with_dashes(name));
      std::string shown = hint;
      if (hint.starts_with("in ddrun: --env ACCELERATE_") && !contains(hint, "=true")) {
        shown = hint.substr(0, hint.find('=') + 1) + "4";
      }
      const std::string answer = concat("' (of ", option.launchers, "); ", shown);
      if (name.size() == 1) {
        CHECK_FALSE(is_short(name[0]));
        CHECK(refused({"-" + name, "4", "w"}) == "unknown option '-" + name + answer);
        continue;
      }
      CHECK(find_option(name) == nullptr);
      if (name != "np") CHECK(refused({"-" + name, "4", "w"}) == "unknown option '-" + name + answer);
      std::string underscored = name;
      for (char& c : underscored) c = c == '-' ? '_' : c;
      for (const std::string& typed : {"--" + name, "--" + underscored}) {
        CHECK(refused({typed, "4", "w"}) == "unknown option '" + typed + answer);
        CHECK(refused({"-v", typed + "=4", "w"}) == "unknown option '" + typed + answer);
      }
    }
  }
  CHECK(names.size() > 60);
}

TEST_CASE("the commonest options of other launchers are known") {
  CHECK(refused({"--num_processes=2", "w"}) ==
        "unknown option '--num_processes' (of accelerate launch); in ddrun: -n N, workers on each machine");
  for (const std::string word :
       {"--num-machines", "--ntasks", "-N", "--num_gpus", "--tag-output", "--oversubscribe", "--allow-run-as-root",
        "--map-by", "--bind-to", "--mca", "-mca", "-genv", "-H", "-host", "--merge-stderr-to-stdout",
        "--cpus-per-task=4", "-ppn", "--gres=gpu:4", "-N4"}) {
    CAPTURE(word);
    const std::string line = refused({word, "2", "w"});
    CHECK((contains(line, "; in ddrun: ") || contains(line, "; not needed: ")));
  }
  CHECK(contains(refused({"-H", "h:2", "w"}), "in ddrun: --hosts="));
  // Without these variables accelerate's settings are lost.
  for (const std::string name : {"use_fsdp", "use_deepspeed", "use_megatron_lm"}) {
    std::string variable = "ACCELERATE_" + name;
    for (char& c : variable) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    CHECK(contains(refused({"--" + name, "w"}), "in ddrun: --env " + variable + "=true"));
  }
  CHECK(contains(refused({"--mixed_precision=bf16", "w"}), "in ddrun: --env ACCELERATE_MIXED_PRECISION="));
  CHECK(contains(refused({"--config_file=f", "w"}), "docs/coming-from-others.md"));
}

TEST_CASE("all foreign options of a line are answered at once, up to the program") {
  const auto answer = [](const Args& args) {
    auto parsed = run(args);
    const std::string text = std::get<PrintAndExit>(parsed).text;
    Args hints;
    for (const std::string& line : split(text, '\n')) {
      CHECK((line.empty() || line.starts_with("ddrun: error: unknown option '")));
      if (!line.empty()) hints.push_back(line.substr(30));
    }
    return hints;
  };
  CHECK(answer({"--allow-run-as-root",
                "-np",
                "8",
                "-H",
                "a:4,b:4",
                "-bind-to",
                "none",
                "-map-by",
                "slot",
                "-mca",
                "pml",
                "ob1",
                "-mca",
                "btl",
                "^openib",
                "-x",
                "PATH",
                "-K",
                "./train",
                "--mca",
                "-H"}) ==
        Args{"--allow-run-as-root' (of mpirun); not needed: root may run it",
             "-H' (of mpirun); in ddrun: --hosts=HOST:WORKERS,...",
             "-bind-to' (of mpirun); not needed: workers are bound only by --bind",
             "-map-by' (of mpirun); not needed: ranks follow each other on each machine",
             "-mca' (of mpirun); not needed: a setting of Open MPI's own parts, none of which is used here",
             "-mca' (of mpirun); not needed: a setting of Open MPI's own parts, none of which is used here",
             "-K' (of srun); not needed: the first failure ends the job"});
  CHECK(answer({"--num_machine=2", "-N4", "--nodes", "2", "-standalone", "--max", "w", "--ntasks=3"}) ==
        Args{"--num_machine' (see 'ddrun --help')",
             "-N' (of mpirun and srun); in ddrun: -n N for workers on each machine, --nnodes=N for machines",
             "--nodes' (of srun); in ddrun: --nnodes=N", "-standalone'; did you mean '--standalone'?",
             "--max'; did you mean '--max-restarts'?"});
  // A value that looks like an option is none, and a line end in an option begins no message.
  CHECK(answer({"--bind-to", "--exclusive", "w"}).size() == 2);
  CHECK(answer({"--a\nddrun: b", "-y"}) == Args{"--a?ddrun: b' (see 'ddrun --help')", "-y' (see 'ddrun --help')"});
}

TEST_CASE("the hint for a foreign option depends on its value") {
  const std::vector<std::pair<Args, std::string>> rows{
      {{"-bind-to", "none"}, "not needed: workers are bound only by --bind"},
      {{"--bind-to=none"}, "not needed: workers are bound only by --bind"},
      {{"--bind-to", "core"}, "in ddrun: --bind=cores"},
      {{"--cpu-bind=none"}, "not needed: workers are bound only by --bind"},
      {{"--cpu_bind=no"}, "not needed: workers are bound only by --bind"},
      {{"--cpu-bind=cores"}, "in ddrun: --bind=cores"},
      {{"--map-by", "slot"}, "not needed: ranks follow each other"},
      {{"--map-by", "slot:PE=4"}, "in ddrun: --bind=cores"},
      {{"--map-by", "ppr:4:node"}, "in ddrun: -n 4"},
      {{"--map-by=ppr:8:node:PE=4"}, "in ddrun: -n 8"},
      {{"--map-by=ppr:2:socket"}, "in ddrun: --bind=cores"},
      {{"--distribution=block"}, "not needed: ranks follow each other"},
      {{"--mixed_precision=no"}, "in ddrun: --env ACCELERATE_MIXED_PRECISION=no"},
      {{"--mixed_precision", "fp16"}, "in ddrun: --env ACCELERATE_MIXED_PRECISION=fp16"},
      {{"--zero_stage=3"}, "in ddrun: --env ACCELERATE_DEEPSPEED_ZERO_STAGE=3"},
      {{"--deepspeed_config_file=my file"}, "in ddrun: --env ACCELERATE_DEEPSPEED_CONFIG_FILE='my file'"},
      {{"--use_cpu"}, "in ddrun: --env ACCELERATE_USE_CPU=true"},
      {{"--container-image=a.sqsh"}, "not needed: stay with srun"},
      {{"--num-proc", "4"}, "in ddrun: -n N"},
      {{"--gpu-bind=single:1"}, "in ddrun: --virtual-local-rank"},
  };
  for (auto [args, hint] : rows) {
    CAPTURE(args);
    args.emplace_back("w");
    const std::string line = refused(args);
    CAPTURE(line);
    CHECK(contains(line, "); " + hint));
  }
}

TEST_CASE("options with the same meaning are accepted in other launchers' spelling") {
  for (const Args& args : {Args{"-np4", "w"}, {"-np", "4", "w"}, {"-np=4", "w"}, {"-n4", "w"}}) {
    CHECK(launched(args).spec.first().nproc.count == 4);
  }
  for (const std::string word : {"--use-env", "--use_env", "--logs-specs=default", "--logs_specs=default"}) {
    const auto launch = launched({word, "w"});
    CHECK(launch.spec.first().name == "w");
    CHECK(launch.warnings.empty());
  }
}
