#include "option_table.hpp"
#include "support.hpp"

using namespace ddrun;
using namespace ddrun::cli;
using namespace ddrun::cli::test;

namespace {

using Programs = std::vector<Args>;

/// The words of each program, its role before them if there are several.
Programs programs_of(const Launch& launch) {
  Programs all;
  for (const ProgramSpec& program : launch.spec.programs) {
    Args words{program.name};
    words.insert(words.end(), program.args.begin(), program.args.end());
    all.push_back(std::move(words));
  }
  return all;
}

struct SettingsFile {
  TemporaryDirectory folder;
  std::string path = folder.file("job.toml");
  explicit SettingsFile(const std::string& text) { std::ofstream(path) << text; }
};

}  // namespace

TEST_CASE("a lone colon begins a program only before -n with a number or a program's long option") {
  struct Row {
    Args line;
    Programs programs;
  };
  const std::vector<Row> rows = {
      // mpirun's lines, and ddrun's own.
      {{"-n", "2", "./a", ":", "-n", "3", "./b"}, {{"./a"}, {"./b"}}},
      {{"-np", "2", "./a", ":", "-np", "3", "./b"}, {{"./a"}, {"./b"}}},
      {{"-n2", "./a", ":", "-n3", "./b"}, {{"./a"}, {"./b"}}},
      {{"-np2", "./a", "x", ":", "-np3", "./b", "y", "z"}, {{"./a", "x"}, {"./b", "y", "z"}}},
      {{"./a", ":", "-n=3", "./b"}, {{"./a"}, {"./b"}}},
      {{"./a", ":", "-n", "gpu", "./b", ":", "-n", "auto", "./c"}, {{"./a"}, {"./b"}, {"./c"}}},
      {{"./a", ":", "--nproc-per-node=3", "./b"}, {{"./a"}, {"./b"}}},
      {{"./a", ":", "--nproc_per_node", "3", "./b"}, {{"./a"}, {"./b"}}},
      {{"./a", ":", "--role=b", "./b"}, {{"./a"}, {"./b"}}},
      {{"./a", ":", "--role", "b", "-n", "2", "./b"}, {{"./a"}, {"./b"}}},
      {{"./a", ":", "--env", "A=1", "-m", "-r", "3", "-t", "1", "pkg"}, {{"./a"}, {"pkg"}}},
      {{"./a", ":", "--module", "pkg"}, {{"./a"}, {"pkg"}}},
      {{"./a", ":", "--no-python", "b.py"}, {{"./a"}, {"b.py"}}},
      {{"./a", ":", "--world=w", "./b"}, {{"./a"}, {"./b"}}},
      {{"./a", ":", "--chdir=/", "./b"}, {{"./a"}, {"./b"}}},
      {{"./a", ":", "--mpi", "./b"}, {{"./a"}, {"./b"}}},
      {{"./a", ":", "--redirects=3", "./b"}, {{"./a"}, {"./b"}}},
      {{"-v", "--timeout=5", "./a", ":", "-n", "1", "./b"}, {{"./a"}, {"./b"}}},
      // A first part without a program.
      {{"--env", "A=1", ":", "-n", "2", "./a", ":", "-n", "3", "./b"}, {{"./a"}, {"./b"}}},
      {{"--world=w", ":", "-n", "2", "./a"}, {{"./a"}}},
      {{":", "-n", "2", "./a"}, {{"./a"}}},
      // Colons of a program.
      {{"./a", "::", ":", "-n", "1", "./b", ":::", "x:"}, {{"./a", ":"}, {"./b", "::", "x:"}}},
      {{"./a", "::"}, {{"./a", "::"}}},
      {{"--", "./a", ":", "-n", "3", "./b"}, {{"./a", ":", "-n", "3", "./b"}}},
      {{"./a", ":", "-n", "1", "--", "./b", ":", "-n", "2", "./c"}, {{"./a"}, {"./b", ":", "-n", "2", "./c"}}},
      {{"./a", ":", "-n", "1", "./b", "--", ":", "-n", "2", "./c"}, {{"./a"}, {"./b", "--"}, {"./c"}}},
      // Lines of torchrun and python -m, and others that have a colon as an argument.
      {{"--nproc-per-node=2", "t.py", ":", "-m", "x"}, {{"t.py", ":", "-m", "x"}}},
      {{"-m", "pkg.train", ":", "-r", "3"}, {{"pkg.train", ":", "-r", "3"}}},
      {{"t.py", ":", "-t", "3"}, {{"t.py", ":", "-t", "3"}}},
      {{"t.py", ":", "-x", "A=1"}, {{"t.py", ":", "-x", "A=1"}}},
      {{"t.py", ":", "-v", "./b"}, {{"t.py", ":", "-v", "./b"}}},
      {{"-m", "timeit", "-s", ":", "x"}, {{"timeit", "-s", ":", "x"}}},
      {{"t.py", ":", "--lr=1"}, {{"t.py", ":", "--lr=1"}}},
      {{"t.py", ":", "--"}, {{"t.py", ":", "--"}}},
      {{"sh", "-c", ":"}, {{"sh", "-c", ":"}}},
      {{"cut", "-d", ":", "-f", "1"}, {{"cut", "-d", ":", "-f", "1"}}},
      {{"sort", "-t", ":", "-n"}, {{"sort", "-t", ":", "-n"}}},
      {{"sort", "-t", ":", "-n", "-k2"}, {{"sort", "-t", ":", "-n", "-k2"}}},
      {{"sort", "-t", ":", "-n", "file"}, {{"sort", "-t", ":", "-n", "file"}}},
      {{"./a", ":", "./b"}, {{"./a", ":", "./b"}}},
      {{"./a", ":"}, {{"./a", ":"}}},
      {{"./a", ":", "-n0", "./b"}, {{"./a", ":", "-n0", "./b"}}},
  };
  for (const auto& [line, programs] : rows) {
    CAPTURE(line);
    const Launch launch = launched(line);
    CHECK(programs_of(launch) == programs);
    CHECK(launch.warnings.empty());
  }
  CHECK(rows.size() >= 40);
  // An option of the job does not begin a program.
  const Launch hinted = launched({"./a", ":", "--timeout=5", "./b"});
  CHECK(programs_of(hinted) == Programs{{"./a", ":", "--timeout=5", "./b"}});
  CHECK(hinted.warnings == Args{"':' stayed an argument of ./a; a next program begins with -n N or a long option of a "
                                "program: ': -n 1 ./b'"});
}

TEST_CASE("each option is of the job or of a program, wherever it stands") {
  for (const Option* option : all_options()) {
    if (!option->is_setting()) continue;
    const std::string name(option->name);
    CAPTURE(name);
    // A value that the option takes.
    Args given{"--" + name};
    if (option->takes_value()) {
      const auto values = option->show(ParsedOptions{});
      given[0] += "=" + (values.empty() ? "1" : values.front());
      if (name == "env" || name == "export") given[0] += "=1";
      if (name == "env-file") given[0] = "--env-file=/dev/null";
      if (name == "numa-binding") given[0] = "--numa-binding=node";
    }
    Args later{"./a", ":", "-n", "1"};
    later.insert(later.end(), given.begin(), given.end());
    later.emplace_back("./b");
    if (is_of_program(*option)) CHECK(launched(later).spec.programs.size() == 2);
    else CHECK(refused(later) == "--" + name + " is of the whole job: write it before the first program");
    const bool is_key = name != "env" && name != "env-file" && name != "export";
    if (!is_key || option->kind == Kind::numbers) continue;
    const std::string value = option->takes_value() ? "\"" + given[0].substr(given[0].find('=') + 1) + "\"" : "true";
    const bool number = option->kind == Kind::integer || option->kind == Kind::number;
    const SettingsFile file("[[program]]\n" + name + " = " + (number ? value.substr(1, value.size() - 2) : value) +
                            "\ncommand = [\"./a\"]\n[[program]]\ncommand = [\"./b\"]\n");
    if (is_of_program(*option)) CHECK(launched({"--config=" + file.path}).spec.programs.size() == 2);
    else
      CHECK(refused({"--config=" + file.path}) ==
            file.path + ":2:1: '" + name + "' is of the whole job: write it above the first [[program]]");
  }
}

TEST_CASE("an option of a program comes from its part, the part for all and the file, and from no variable") {
  const SettingsFile file("chdir = \"/file\"\nredirects = 1\ntimeout = 7\n");
  const Args variables{"DDRUN_NPROC_PER_NODE=8", "PET_NPROC_PER_NODE=9",  "DDRUN_TEE=3",        "PET_ROLE=x",
                       "DDRUN_ENV=V=1",          "DDRUN_CHDIR=/variable", "PET_MAX_RESTARTS=4", "DDRUN_WORLD=w"};
  const Launch own =
      launched({"--config=" + file.path, "-n", "2", "--env", "A=1", "./a", ":", "--chdir=/part", "./b"}, variables);
  REQUIRE(own.spec.programs.size() == 2);
  const auto& [a, b] = std::tie(own.spec.programs[0], own.spec.programs[1]);
  CHECK(a.nproc.count == 2);
  CHECK(b.nproc.count == 1);
  CHECK(a.chdir == "/file");
  CHECK(b.chdir == "/part");
  CHECK(a.env == Variables{{"A", "1"}});
  CHECK(b.env.empty());
  CHECK(b.streams.redirects.all_ranks == Streams::out);
  CHECK_FALSE(b.streams.tee.any());
  CHECK(own.spec.restart.max_restarts == 4);
  CHECK(own.spec.timeout == Milliseconds(7000));
  REQUIRE(own.warnings.size() == 1);
  CHECK(contains(own.warnings[0], "DDRUN_WORLD is not known to ddrun"));

  const Launch all = launched({"--env", "A=1", "--env=B=1", "--no-python", "-n3", ":", "--env=B=2", "a.py", ":", "-n1",
                               "--module", "b", ":", "-n1", "c.py"});
  REQUIRE(all.spec.programs.size() == 3);
  CHECK(all.spec.programs[0].nproc.count == 3);
  CHECK(all.spec.programs[0].env == Variables{{"A", "1"}, {"B", "2"}});
  CHECK(all.spec.programs[1].kind == ProgramKind::python_module);
  CHECK(all.spec.programs[2].env == Variables{{"A", "1"}, {"B", "1"}});
  CHECK(all.spec.programs[2].no_python);
  // A single program keeps its variables.
  CHECK(launched({":", "--role=r", "./a"}, {"DDRUN_NPROC_PER_NODE=8"}).spec.first().nproc.count == 8);
}

TEST_CASE("programs of a file are tables with a command each") {
  const SettingsFile file(
      "timeout = \"1m\"\nenv = [\"A=1\", \"B=1\"]\ntee = 3\n"
      "[[program]]\nrole = \"ocean\"\nnproc-per-node = 2\nenv = {B = 2}\ncommand = [\"./ocean\", \"in put\", \":\"]\n"
      "[[program]]\nworld = \"w\"\ntee = 0\ncommand = \"atm.exe\"\n");
  const Launch launch = launched({"--config=" + file.path, "--env", "C=3", "--env=B=4"}, {"DDRUN_TEE=1"});
  CHECK(programs_of(launch) == Programs{{"./ocean", "in put", ":"}, {"atm.exe"}});
  REQUIRE(launch.spec.programs.size() == 2);
  const auto& [ocean, atm] = std::tie(launch.spec.programs[0], launch.spec.programs[1]);
  CHECK(ocean.role == "ocean");
  CHECK(atm.role == "atm");
  CHECK(atm.world == "w");
  CHECK(ocean.nproc.count == 2);
  CHECK(ocean.env == Variables{{"A", "1"}, {"B", "4"}, {"C", "3"}});
  CHECK(ocean.streams.tee.all_ranks == Streams::both);
  CHECK_FALSE(atm.streams.tee.any());
  CHECK(launch.spec.timeout == Milliseconds(60'000));

  const std::string config = "--config=" + file.path;
  CHECK(contains(refused({config, "./c"}), "both the command line (./c) and [[program]] in " + file.path + ":4:1"));
  CHECK(contains(refused({config, "--env=A=1", ":", "-n", "2", "./c"}), "both the command line (:) and"));
  CHECK(contains(refused({config, "-n", "3"}), "--nproc-per-node is of one program: write it in a [[program]] table"));
  CHECK(contains(refused({config, "--role=x"}), "--role is of one program"));
}

TEST_CASE("tables that are no programs are refused with their place") {
  const auto wrong = [](const std::string& toml) {
    const SettingsFile file(toml);
    return refused({"--config=" + file.path}).substr(file.path.size());
  };
  CHECK(wrong("[[program]]\nrole = \"a\"\n") == ":1:1: no command; add command = [\"./a\"]");
  CHECK(wrong("[[program]]\ncommand = \"vllm serve  M\"\n") ==
        ":2:1: command is one word with blanks; write each word for itself: command = [\"vllm\", \"serve\", \"M\"]");
  CHECK(wrong("[[program]]\ncommand = []\n") == ":2:1: command must not be empty");
  CHECK(wrong("[[program]]\ncommand = [1.5]\n") == ":2:1: command must be a list of texts, not this list");
  CHECK(contains(wrong("[[program]]\ncomand = [\"a\"]\n"), "unknown key 'comand'; did you mean 'command'?"));
  CHECK(contains(wrong("[[program]]\nprogram = \"a\"\n"), "unknown key 'program'"));
  CHECK(contains(wrong("command = [\"a\"]\n"), "unknown key 'command'"));
  constexpr const char* both =
      "programs stand in [[program]] tables, each with its command, or one in program and args";
  CHECK(contains(wrong("program = \"x\"\n[[program]]\ncommand = [\"a\"]\n"), both));
  CHECK(contains(wrong("args = [\"x\"]\n[[program]]\ncommand = [\"a\"]\n"), both));
}

TEST_CASE("several programs have roles of their own") {
  const auto roles = [](const Args& args) {
    Args all;
    for (const ProgramSpec& program : launched(args).spec.programs) all.push_back(program.role);
    return all;
  };
  CHECK(roles({"./a"}) == Args{"default"});
  CHECK(roles({"bin/train.py", ":", "-n1", "/x/vllm", ":", "-n1", "train.sh", ":", "-n1", "--module", "p.rl.train"}) ==
        Args{"train", "vllm", "train-2", "train-3"});
  CHECK(roles({"python3", "-u", "a/eval.py", "x.py", ":", "-n1", "sh", "-c", "t.py"}) == Args{"eval", "sh"});
  CHECK(roles({"./a", ":", "--role=A", "./b"}) == Args{"a-2", "A"});
  CHECK(roles({"./.hidden", ":", "-n1", "./w w"}) == Args{"-hidden", "w-w"});
  CHECK(contains(refused({"--role=x", "./a", ":", "--role=X", "./b"}), "--role=X: two programs have this role"));
  CHECK(contains(refused({"--role=x", ":", "-n1", "./a", ":", "-n1", "./b"}), "two programs have this role"));
  CHECK(contains(refused({"./a", ":", "--role=b/c", "./b"}), "a role is of letters, digits, - and _, 32 at most"));
  CHECK(contains(refused({"./a", ":", "--role=" + std::string(33, 'x'), "./b"}), "32 at most"));
}

TEST_CASE("what several programs cannot have is refused in words") {
  for (const Args& options : {Args{"--hosts=a"},
                              {"--hosts=a,b"},
                              {"--hostfile=h"},
                              {"--nnodes=2"},
                              {"--nnodes=1:3"},
                              {"--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "--nnodes=4"}}) {
    Args line = options;
    line.insert(line.end(), {"./a", ":", "-n1", "./b"});
    CAPTURE(line);
    CHECK(contains(refused(line), "a job of several programs runs on one machine"));
  }
  CHECK(launched({"--standalone", "--nnodes=1", "./a", ":", "-n1", "./b"}).spec.programs.size() == 2);
  constexpr const char* preload = "--preload is for one program of a job";
  CHECK(contains(refused({"--preload=torch", "a.py", ":", "--preload=numpy", "b.py"}), preload));
  CHECK(contains(refused({"--preload=torch", ":", "-n1", "a.py", ":", "-n1", "b.py"}), preload));
  CHECK(launched({"a.py", ":", "--preload=numpy", "b.py"}).spec.programs[1].preload == Args{"numpy"});
  CHECK(contains(refused({"./a", ":", "-n", "2"}), "no program stands behind the options that follow ':'"));
  CHECK(contains(refused({"-n2", ":", "-n", "2"}), "no program stands behind"));
  CHECK(contains(refused({"./a", ":", "-n", "2", "-n", "x", "./b"}), "--nproc-per-node=x: 'x' is"));
  CHECK(contains(refused({"./a", ":", "-n", "2", "--rolf=x", "./b"}), "unknown option '--rolf'"));
}

TEST_CASE("config show prints each program as a table that means the same") {
  const Args line{"-n", "2", "--timeout=5", "--env", "A=1", "./a", "x y", ":", "-n", "3", "--world=w", "./b"};
  Args show{"config", "show"};
  show.insert(show.end(), line.begin(), line.end());
  const SettingsFile file(answered(show));
  const Launch again = launched({"--config=" + file.path});
  CHECK(programs_of(again) == programs_of(launched(line)));
  CHECK(again.spec.programs[0].env == Variables{{"A", "1"}});
  CHECK(again.spec.programs[1].world == "w");
  CHECK(again.spec.programs[1].nproc.count == 3);
  CHECK(again.spec.timeout == Milliseconds(5000));
  show.insert(show.begin() + 2, "--json");
  const std::string json = answered(show);
  CHECK(contains(json, "\"programs\": ["));
  CHECK_FALSE(contains(json, "\"program\":"));
}
