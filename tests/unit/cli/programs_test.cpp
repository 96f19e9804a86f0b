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
      {{"./a", ":", "--service", "./b"}, {{"./a"}, {"./b"}}},
      {{"./a", ":", "--gpus=2", "./b"}, {{"./a"}, {"./b"}}},
      {{"./a", ":", "--gpus", "0-3", "./b"}, {{"./a"}, {"./b"}}},
      {{"./a", ":", "--port=8000", "./b"}, {{"./a"}, {"./b"}}},
      {{"./a", ":", "--ready=tcp", "--service", "--port=1", "--ready-timeout=5", "./b"}, {{"./a"}, {"./b"}}},
      {{"--service", "./a", ":", "-n", "1", "./b"}, {{"./a"}, {"./b"}}},
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
      if (name == "ready") given = {"--ready=tcp", "--service", "--port=1"};
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
    const std::string beside = name == "ready" ? "\nservice = true\nport = 1" : "";
    const SettingsFile file("[[program]]\n" + name + " = " + (number ? value.substr(1, value.size() - 2) : value) +
                            beside + "\ncommand = [\"./a\"]\n[[program]]\ncommand = [\"./b\"]\n");
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
  CHECK(contains(wrong("command = [\"a\"]\n"), "command stands in a [[program]] table"));
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
  // They are the same in names of variables.
  CHECK(contains(refused({"--role=a-b", "./a", ":", "--role=A_b", "./b"}), "--role=A_b: two programs have this role"));
  CHECK(roles({"./a", ":", "--role=A_2", "./b", ":", "-n1", "./a"}) == Args{"a", "A_2", "a-3"});
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

TEST_CASE("a service is one of several programs, and what it is found by belongs to it") {
  const Launch launch =
      launched({"--service", "--port=8000", "--ready=http:/health?a=1", "--ready-timeout=90s", "-n2", "--gpus=2",
                "./serve", ":", "--gpus=0-3,6", "-n", "gpu", "./train", ":", "--service", "--world=w", "./c"});
  CHECK(launch.warnings.empty());
  REQUIRE(launch.spec.programs.size() == 3);
  const ProgramSpec& serve = launch.spec.programs[0];
  CHECK(serve.is_service);
  CHECK_FALSE(serve.has_world());
  CHECK(serve.port == 8000);
  CHECK(serve.ready == "http:/health?a=1");
  CHECK(serve.ready_timeout == Milliseconds(90'000));
  CHECK(serve.gpus == "2");
  const ProgramSpec& train = launch.spec.programs[1];
  CHECK(&launch.spec.first() == &train);
  CHECK_FALSE(train.is_service);
  CHECK(train.has_world());
  CHECK(train.gpus == "0-3,6");
  CHECK(train.port == 0);
  CHECK(train.ready.empty());
  CHECK(train.ready_timeout == std::chrono::minutes(30));
  CHECK(launch.spec.programs[2].has_world());
  CHECK_FALSE(launched({"./a", ":", "--world=none", "./b"}).spec.programs[1].has_world());

  // In front of a first ':' it is for all.
  const Launch all = launched({"--service", "--gpus=1", ":", "-n1", "./a", ":", "-n1", "--service=0", "./b"});
  CHECK(all.spec.programs[0].is_service);
  CHECK_FALSE(all.spec.programs[1].is_service);
  CHECK(all.spec.programs[1].gpus == "1");
  // A program alone has GPUs and a port too.
  const Launch only = launched({"--gpus=0", "--port=65535", "./a"});
  CHECK(only.spec.first().gpus == "0");
  CHECK(only.spec.first().port == 65535);
  // Standard input is of a main program.
  CHECK(launched({"--stdin=2", "--service", "./a", ":", "-n3", "./b"}).spec.stdin_.rank == 2);
}

TEST_CASE("a service that cannot be is refused in words") {
  const std::string every = "every program is a --service: nothing would end the job; leave --service out for one";
  CHECK(refused({"--service", "./a"}).starts_with(every));
  CHECK(refused({":", "--service", "./a"}).starts_with(every));
  CHECK(refused({"--service", "./a", ":", "--service", "./b"}).starts_with(every));
  CHECK(refused({"--service", ":", "-n1", "./a", ":", "-n1", "./b"}).starts_with(every));

  const auto of_service = [](const Args& options) {
    Args line{"./a", ":"};
    line.insert(line.end(), options.begin(), options.end());
    line.emplace_back("./b");
    return refused(line);
  };
  CHECK(of_service({"--ready=tcp"}) == "--ready=tcp is of a --service with a --port; add both");
  CHECK(of_service({"--ready=tcp", "--port=1"}) == "--ready=tcp is of a --service with a --port; add both");
  CHECK(of_service({"--ready=http:/", "--service"}) == "--ready=http:/ is of a --service with a --port; add both");
  CHECK(refused({"--ready=tcp", "./a"}) == "--ready=tcp is of a --service with a --port; add both");
  for (const std::string ready : {"http://x/", "http://", "http:", "http:health", "exec", "TCP", "tcp:", "https:/x",
                                  "/x", "http:/a b", "http:/a\r\nX: y", "http:/\xc3\xa4"}) {
    CAPTURE(ready);
    CHECK(contains(of_service({"--service", "--port=1", "--ready=" + ready}),
                   "is neither tcp nor http:/PATH, such as http:/health"));
  }
  CHECK(of_service({"--service", "--port=1", "--ready=tcp", "--world=w"}) ==
        "--ready and --world=w: the service would wait for its world, whose other programs wait for it; leave one of "
        "them out");
  CHECK(launched({"./a", ":", "--service", "--port=1", "--ready=tcp", "--world=none", "./b"}).warnings.empty());
  for (const std::string port : {"0", "70000", "65536", "-1", "x", ""}) {
    CAPTURE(port);
    CHECK(of_service({"--port=" + port}).starts_with("--port=" + port + ": "));
  }
  for (const std::string time : {"0", "-1", "x"}) {
    CHECK(of_service({"--service", "--ready-timeout=" + time}).starts_with("--ready-timeout=" + time + ": "));
  }
  CHECK(launched({"./a", ":", "--service", "--ready-timeout=5", "./b"}).warnings ==
        Args{"--ready-timeout has no effect without --ready"});
}

TEST_CASE("no variable makes a service, or has GPUs or a port of programs") {
  const Args names{"SERVICE", "GPUS", "PORT", "READY", "READY_TIMEOUT", "WORLD"};
  Args variables;
  for (const std::string& name : names) {
    const std::string value = name == "READY" ? "=tcp" : "=1";
    variables.push_back("DDRUN_" + name + value);
    variables.push_back("PET_" + name + value);
  }
  for (const Args& line : {Args{"./a"}, {"./a", ":", "--service", "--port=2", "./b"}}) {
    const Launch launch = launched(line, variables);
    const ProgramSpec& first = launch.spec.first();
    CHECK_FALSE(first.is_service);
    CHECK(first.gpus.empty());
    CHECK(first.port == 0);
    CHECK(first.ready.empty());
    CHECK(first.ready_timeout == std::chrono::minutes(30));
    CHECK(first.world.empty());
    CHECK(launch.spec.programs.back().port == (line.size() == 1 ? 0 : 2));
    CHECK(launch.spec.programs.back().ready.empty());
    REQUIRE(launch.warnings.size() == names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      CHECK(launch.warnings[i].starts_with("DDRUN_" + names[i] + " is not known to ddrun"));
    }
  }
  // What workers get is not taken for a slip.
  CHECK(launched({"./a"}, {"DDRUN_LISTEN_PORT=1", "DDRUN_HOSTS_A=h", "DDRUN_ENDPOINTS_A_B=h:1"}).warnings.empty());
}

TEST_CASE("tables of a file can be services") {
  const SettingsFile file(
      "[[program]]\nservice = true\ngpus = 8\nport = 8000\nready = \"http:/health\"\nready-timeout = \"10m\"\n"
      "command = [\"./vllm\"]\n"
      "[[program]]\nservice = true\ngpus = \"0-3\"\nport = 9000\nready = \"tcp\"\nready_timeout = 90\n"
      "command = [\"./judge\"]\n"
      "[[program]]\nservice = false\ngpus = \"0,1\"\nworld = \"none\"\ncommand = [\"./train\"]\n");
  const Launch launch = launched({"--config=" + file.path});
  REQUIRE(launch.spec.programs.size() == 3);
  const auto& [vllm, judge, train] =
      std::tie(launch.spec.programs[0], launch.spec.programs[1], launch.spec.programs[2]);
  CHECK(vllm.is_service);
  CHECK(vllm.gpus == "8");
  CHECK(vllm.port == 8000);
  CHECK(vllm.ready == "http:/health");
  CHECK(vllm.ready_timeout == std::chrono::minutes(10));
  CHECK(judge.is_service);
  CHECK(judge.gpus == "0-3");
  CHECK(judge.ready == "tcp");
  CHECK(judge.ready_timeout == std::chrono::seconds(90));
  CHECK_FALSE(train.is_service);
  CHECK(train.gpus == "0,1");
  CHECK(train.port == 0);
  CHECK_FALSE(train.has_world());

  const auto wrong = [](const std::string& line) {
    const SettingsFile bad("[[program]]\n" + line + "\ncommand = [\"./a\"]\n[[program]]\ncommand = [\"./b\"]\n");
    return refused({"--config=" + bad.path}).substr(bad.path.size());
  };
  CHECK(wrong("service = \"yes\"") == ":2:1: service must be true or false, not a text");
  CHECK(wrong("port = \"8000\"") == ":2:1: port must be a whole number, not a text");
  CHECK(wrong("gpus = true") == ":2:1: gpus must be a whole number or a text, not true or false");
  // A list of one would be a count.
  CHECK(wrong("gpus = [3]") == ":2:1: gpus must be a whole number or a text, not this list");
  CHECK(wrong("ready = true") == ":2:1: ready must be a text, not true or false");
  CHECK(wrong("port = 0").starts_with(":2:1: port = 0: "));
  CHECK(wrong("ready = \"exec\"").starts_with(":2:1: ready = exec: 'exec' is neither tcp nor http:/PATH"));
  CHECK(contains(refused({"--config=" + file.path, "--port=1"}), "--port is of one program"));
}

TEST_CASE("config show prints services as tables that mean the same") {
  const Args line{"--service", "--gpus=2", "--port=8000", "--ready=http:/health", "--ready-timeout=90s",
                  "./a",       ":",        "--gpus=0-3",  "--port=9000",          "./b",
                  ":",         "-n1",      "./c"};
  Args show{"config", "show"};
  show.insert(show.end(), line.begin(), line.end());
  const SettingsFile file(answered(show));
  const Launch one = launched(line), again = launched({"--config=" + file.path});
  CHECK(programs_of(again) == programs_of(one));
  for (std::size_t i = 0; i < 3; ++i) {
    const ProgramSpec &before = one.spec.programs.at(i), &after = again.spec.programs.at(i);
    CHECK(after.is_service == before.is_service);
    CHECK(after.gpus == before.gpus);
    CHECK(after.port == before.port);
    CHECK(after.ready == before.ready);
    CHECK(after.ready_timeout == before.ready_timeout);
  }
}
