#include <fstream>
#include <regex>

#include "support.hpp"

using namespace ddrun;
using namespace ddrun::cli;
using namespace ddrun::cli::test;

namespace {

Args warnings(const Args& args, const Args& variables = {}) { return launched(args, variables).warnings; }

ProgramSpec python(const Args& args) { return {ProgramKind::python_script, "t.py", args}; }

}  // namespace

TEST_CASE("an unknown variable with our prefix is warned about") {
  CHECK(warnings({"w"}, {"DDRUN_TIMEOT=3"}) == Args{"DDRUN_TIMEOT is not known to ddrun; did you mean DDRUN_TIMEOUT?"});
  CHECK(warnings({"w"}, {"DDRUN_NPROC=2"}) ==
        Args{"DDRUN_NPROC is not known to ddrun; did you mean DDRUN_NPROC_PER_NODE?"});
  CHECK(warnings({"w"}, {"DDRUN_SECRT=2"}) == Args{"DDRUN_SECRT is not known to ddrun; did you mean DDRUN_SECRET?"});
  CHECK(warnings({"w"}, {"DDRUN_RANK=3"}) ==
        Args{"DDRUN_RANK is not known to ddrun; its settings are in 'ddrun config show'"});
  CHECK(warnings({"w"}, {"DDRUN_", "DDRUN_=1", "PET_=1", "odd", "DDRUN_TIMEOT=", "DDRUN_CONFIG=", "DDRUN_TEST_X=1"})
            .empty());
  // The ddrun that started this one has warned.
  CHECK(warnings({"w"}, {"DDRUN_TIMEOT=3", "DDRUN_ROUND=1"}).empty());
  CHECK(warnings({"w"}, {"DDRUN_TIMEOT=3", "DDRUN_STARTED_BY_SRUN=/ddrun"}).empty());
}

TEST_CASE("every variable that the sources of ddrun read is known") {
  const std::regex read(
      R"re((?:getenv|variable|environ|environ\.get|environ\.pop|has|find|get)[(\[]"(DDRUN_[A-Z_]+)")re");
  const std::regex given(R"re(\{"(DDRUN_[A-Z_]+)", )re");
  int found = 0;
  for (const char* folder : {"lib", "apps", "python", "configs"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(std::string(DDRUN_SOURCE_DIR "/") + folder)) {
      const std::string ending = entry.path().extension().string();
      if (ending != ".cpp" && ending != ".hpp" && ending != ".py") continue;
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) {
        if (!contains(line, "\"DDRUN_")) continue;  // std::regex is slow
        for (const std::regex& pattern : {read, given}) {
          for (std::sregex_iterator at(line.begin(), line.end(), pattern), end; at != end; ++at) {
            const std::string name = (*at)[1];
            CAPTURE(name, entry.path().string());
            ++found;
            // A value that no option refuses.
            const auto parsed = run({"w"}, {name + "=1"});
            const auto* launch = std::get_if<Launch>(&parsed);
            if (launch == nullptr) continue;
            for (const std::string& warning : launch->warnings) CHECK_FALSE(contains(warning, "is not known to ddrun"));
          }
        }
      }
    }
  }
  CHECK(found > 15);
}

TEST_CASE("a launcher as the program of several workers is warned about") {
  struct Case {
    Args args;
    std::string name, instead;
  };
  for (const auto& [args, name, instead] :
       {Case{{"-n2", "--", "/bin/torchrun", "--nnodes=1", "a b.py", "x.py"}, "torchrun", "ddrun -n 2 'a b.py'"},
        {{"-ngpu", "accelerate", "launch", "acc.py"}, "accelerate launch", "ddrun -n gpu acc.py"},
        {{"-n2", "accelerate", "launch", "--machine-rank=0", "acc.py"}, "accelerate launch", "ddrun -n 2 acc.py"},
        {{"-n2", "accelerate", "launch", "--num_machines", "2", "acc.py"}, "accelerate launch", "ddrun -n 2 acc.py"},
        {{"-n2", "accelerate", "launch", "--num_processes=1", "acc.py"}, "accelerate launch", "ddrun -n 2 acc.py"},
        {{"-n2", "torchrun", "--standalone", "t.py"}, "torchrun", "ddrun -n 2 t.py"},
        {{"-n2", "torchrun", "--nnodes=2", "t.py"}, "torchrun", "ddrun -n 2 t.py"},
        {{"-n2", "mpirun", "./a"}, "mpirun", "ddrun -n 2 PROGRAM"},
        {{"--nnodes=2", "srun", "./a"}, "srun", "ddrun PROGRAM"},
        {{"--nnodes=2", "torchrun", "t.py"}, "torchrun", "ddrun t.py"},
        {{"-n2", "python3", "-m", "ddrun", "./a"}, "python -m ddrun", "ddrun -n 2 PROGRAM"},
        {{"-n2", "ddrun", "./a"}, "ddrun", "ddrun -n 2 PROGRAM"}}) {
    CHECK(warnings(args) ==
          Args{name + " is a launcher too, and each worker starts a job of its own; write: " + instead});
  }
  // One worker is a wrapper.
  for (const Args& args : {Args{"torchrun", "t.py"},
                           {"-n1", "ddrun", "-n2", "./a"},
                           {"-n2", "accelerate", "config"},
                           {"-n2", "./torchrun.py"},
                           {"-n2", "python3", "-m", "torch"},
                           {"-n2", "./a", "torchrun"}}) {
    CAPTURE(args);
    CHECK(warnings(args).empty());
  }
}

TEST_CASE("launchers whose jobs would meet at one port are refused as the program of several workers") {
  struct Case {
    Args args;
    std::string name, instead;
  };
  for (const auto& [args, name, instead] :
       {Case{{"-n2", "/bin/torchrun", "--nnodes=1", "t.py"}, "torchrun", "t.py"},
        {{"-n2", "accelerate", "launch", "acc.py"}, "accelerate launch", "acc.py"},
        {{"-n2", "accelerate", "launch", "--num_machines", "1", "--num_processes=8", "acc.py"},
         "accelerate launch",
         "acc.py"},
        {{"-n2", "deepspeed", "t.py"}, "deepspeed", "t.py"},
        {{"-n2", "--hosts=a,b", "deepspeed", "t.py"}, "deepspeed", "t.py"},
        {{"-n2", "-m", "torch.distributed.run", "t.py"}, "torch.distributed.run", "t.py"},
        {{"-n2", "python3", "-m", "torch.distributed.launch", "t.py"}, "python -m torch.distributed.launch", "t.py"}}) {
    CAPTURE(args);
    CHECK(refused(args) == name + " is a launcher too, and each worker starts a job of its own; " +
                               "write: ddrun -n 2 " + instead + ", or a -- before it if that is meant");
  }
}

TEST_CASE("a count behind the program is named on a terminal if it was not given before it") {
  for (const Args& args :
       {Args{"./prog", "-n", "4"}, {"t.py", "-n", "4"}, {"-m", "mod", "-n", "4"}, {"python", "t.py", "-n", "4"}}) {
    CAPTURE(args);
    const Args warnings = launched(args, {}, true).warnings;
    REQUIRE(warnings.size() == 1);
    CHECK(contains(warnings[0], "-n 4 went to "));
  }
  CHECK(launched({"prog", "--nproc_per_node=4"}, {}, true).warnings ==
        Args{"--nproc_per_node=4 went to prog; ddrun's options come before it"});
  for (const Args& args : {Args{"-n1", "./prog", "-n", "4"},
                           {"--", "./prog", "-n", "4"},
                           {"./prog", "-n", "x"},
                           {"nice", "-n", "10", "./prog"},
                           {"./prog", "--", "-n", "4"},
                           {"torchrun", "-n", "4"}}) {
    CAPTURE(args);
    CHECK(launched(args, {}, true).warnings.empty());
  }
  CHECK(warnings({"./prog", "-n", "4"}).empty());
}

TEST_CASE("a second host behind a blank is named on a terminal") {
  CHECK(launched({"--hosts", "h1", "h2", "-n", "2", "x"}, {}, true).warnings ==
        Args{"h2 is taken for the program; hosts are separated by commas: --hosts=h1,h2"});
  CHECK(warnings({"--hosts", "h1", "h2", "-n", "2", "x"}).empty());
  for (const Args& args : {Args{"--hosts=h1,h2", "x", "-n", "2"},
                           {"--hosts=h1", "./x", "-n", "2"},
                           {"--hosts=h1", "x", "--lr", "2"},
                           {"--hosts=h1", "x"},
                           {"--hosts=h1", "--", "x", "-n", "2"}}) {
    CAPTURE(args);
    CHECK(launched(args, {}, true).warnings.empty());
  }
}

TEST_CASE("an option behind the program is named if the program rejects it") {
  struct Case {
    Args args;
    std::string message, option;
  };
  for (const auto& [args, message, option] :
       {Case{{"-n", "2"}, "t.py: error: unrecognized arguments: -n 2", "-n 2"},
        {{"--x", "1", "--nproc_per_node=2"}, "Error: No such option: --nproc_per_node", "--nproc_per_node=2"},
        {{"--seed", "1", "-n2"}, "ValueError: Some specified arguments are not used: ['-n2']", "-n2"},
        {{"--seed", "1", "--max-restarts", "3"}, "unrecognized arguments: --max-restarts 3", "--max-restarts 3"},
        {{"-v"}, "grep: unknown option '-v'", "-v"},
        // of the program
        {{"-n", "2", "--nope"}, "error: unrecognized arguments: --nope", ""},
        {{"-n", "foo"}, "error: unrecognized arguments: -n foo", ""},
        {{"--log-dir=/x"}, "error: argument --log-dir: no such directory", ""},
        {{"--", "-n", "2"}, "error: unrecognized arguments: -n 2", ""},
        {{"--env-file=/dev/zero"}, "error: unrecognized arguments: --env-file=/dev/zero", ""},
        {{"-n"}, "error: unrecognized arguments: -n", ""},
        {{}, "error: unrecognized arguments: -n", ""}}) {
    CAPTURE(args, message);
    const std::string warning = misplaced_option(python(args), Args{"usage: t.py", message});
    CHECK(warning == (option.empty() ? "" : option + " went to t.py; ddrun's options come before it"));
  }
}

TEST_CASE("where a program's messages are not seen, torchrun's options count") {
  CHECK(misplaced_option(python({"--seed", "1", "-n", "2"}), {}).starts_with("-n 2 went to"));
  CHECK(misplaced_option(python({"--seed", "1", "x"}), {}).empty());
  CHECK(misplaced_option({ProgramKind::executable, "torchrun", {"-n", "2"}}, {}).empty());
}
