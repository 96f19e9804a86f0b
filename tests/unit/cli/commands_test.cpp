#include "option_table.hpp"
#include "support.hpp"

using namespace ddrun;
using namespace ddrun::cli;
using namespace ddrun::cli::test;

TEST_CASE("a program may have the name of a subcommand") {
  for (const std::string word :
       {"config", "completion", "env", "help", "rendezvous", "secret", "stacks", "store", "version"}) {
    CHECK(launched({"--", word}).spec.first().name == word);
    CHECK(launched({"./" + word}).spec.first().name == "./" + word);
    CHECK(launched({"-v", word}).spec.first().name == word);
  }
}

TEST_CASE("rendezvous has few options and no positionals") {
  const auto served = [](const Args& args, const Args& variables = {}) {
    Parsed parsed = run(args, variables);
    REQUIRE(std::holds_alternative<RendezvousServe>(parsed));
    return std::get<RendezvousServe>(std::move(parsed));
  };
  const auto plain = served({"rendezvous"});
  CHECK(plain.port == 29400);
  CHECK(plain.addresses.empty());
  CHECK_FALSE(plain.secret_file);
  CHECK_FALSE(plain.insecure);
  CHECK_FALSE(plain.stats);
  const auto full = served({"rendezvous", "--port=0", "--bind=127.0.0.1", "--bind", "::1", "--secret_file=a_b",
                            "--heartbeat_interval=250ms", "--heartbeat-misses=7", "--stats"},
                           {"DDRUN_SECRET_FILE=other"});
  CHECK(full.port == 0);
  CHECK(full.addresses == Args{"127.0.0.1", "::1"});
  CHECK(full.secret_file == "a_b");
  CHECK(full.heartbeat_interval == Milliseconds(250));
  CHECK(full.heartbeat_misses == 7);
  CHECK(full.stats);
  CHECK(served({"rendezvous"}, {"DDRUN_SECRET_FILE=other"}).secret_file == "other");
  CHECK_FALSE(served({"rendezvous", "--insecure"}, {"DDRUN_SECRET_FILE=other"}).secret_file);
  CHECK(contains(refused({"rendezvous", "x"}), "ddrun -- rendezvous"));
  CHECK(contains(refused({"rendezvous", "--port=70000"}), "--port: port"));
  CHECK(contains(refused({"rendezvous", "--heartbeat-interval=0"}), "--heartbeat-interval"));
  CHECK(contains(refused({"rendezvous", "--insecure", "--secret-file=f"}), "--insecure"));
  CHECK(contains(refused({"rendezvous", "--nonsense"}), "ddrun rendezvous"));
}

TEST_CASE("subcommands parse their options as a launch does") {
  const Parsed parsed = run({"store", "get", "--prefix=", "--server=h:1", "--", "--k_e_y"});
  REQUIRE(std::holds_alternative<StoreRequest>(parsed));
  const auto& ask = std::get<StoreRequest>(parsed);
  CHECK(ask.prefix.empty());
  CHECK(ask.host == "h");
  CHECK(ask.keys == Args{"--k_e_y"});
  CHECK(std::get<StoreRequest>(run({"store", "add", "n", "-5"})).delta == -5);
  CHECK(refused({"store", "--port"}) == "--port needs a value (N)");
  CHECK(refused({"store", "--prot=1"}) == "unknown option '--prot'; did you mean '--port'?");
  CHECK(refused({"store", "--stats=0"}) == "--stats takes no value");
  CHECK(refused({"rendezvous", "-port=1"}) == "unknown option '-port'; did you mean '--port'?");
}

TEST_CASE("wrong arguments of the store give one line with a hint") {
  for (const auto& [args, message] :
       std::vector<std::pair<Args, std::string>>{{{"frob"}, "knows get, set, add, wait, list and del"},
                                                 {{"get"}, "usage: ddrun store get KEY"},
                                                 {{"set", "k"}, "usage: ddrun store set KEY VALUE"},
                                                 {{"add", "k", "x"}, "the number to add"},
                                                 {{"list", "x"}, "usage: ddrun store list"},
                                                 {{"get", "k", "--port=1"}, "give --server=HOST:PORT"},
                                                 {{"get", "k", "--server=here"}, "has no port"},
                                                 {{"get", "k", "--server=here:0"}, "port"},
                                                 {{"get", "k", "--timeout=soon"}, "--timeout: "},
                                                 {{"--port=70000"}, "--port: port '70000'"},
                                                 {{"--max-memory=much"}, "--max-memory: "},
                                                 {{"--server=here:1"}, "belong to a question"}}) {
    Args line{"store"};
    line.insert(line.end(), args.begin(), args.end());
    CAPTURE(line);
    CHECK(contains(refused(line), message));
  }
}

TEST_CASE("stacks takes a job and ranks and neither is needed") {
  const auto asked = [](const Args& args) {
    Parsed parsed = run(args);
    REQUIRE(std::holds_alternative<StacksRequest>(parsed));
    return std::get<StacksRequest>(std::move(parsed));
  };
  const auto plain = asked({"stacks"});
  CHECK(plain.job.empty());
  CHECK(plain.ranks.empty());
  CHECK_FALSE(plain.json);
  CHECK_FALSE(plain.all_threads);
  CHECK(asked({"stacks", "--all-threads"}).all_threads);
  const auto full = asked({"stacks", "--rank=7,0-3,2", "4711", "--json"});
  CHECK(full.job == "4711");
  CHECK(full.ranks == "0-3,7");
  CHECK(full.json);
  CHECK(contains(refused({"stacks", "--rank=a:x"}), "--rank: 'x' is not a rank"));
  CHECK(contains(refused({"stacks", "--rank="}), "--rank: "));
  CHECK(contains(refused({"stacks", "--ranks=0"}), "did you mean '--rank'?"));
}

TEST_CASE("env takes the options of a launch and needs no program") {
  const auto shown = [](const Args& args, const Args& variables = {}) {
    Parsed parsed = run(args, variables);
    REQUIRE(std::holds_alternative<ShowEnv>(parsed));
    return std::get<ShowEnv>(std::move(parsed));
  };
  CHECK_FALSE(shown({"env"}).launch.json);
  CHECK(shown({"env", "--json"}).launch.json);
  CHECK(shown({"env", "-n", "3", "--json"}).launch.json);
  CHECK(shown({"env", "-n", "3", "--json", "./train"}).launch.spec.first().nproc.count == 3);
  CHECK_FALSE(shown({"env", "--", "./train", "--json"}).launch.json);
  CHECK(shown({"env", "--env-detect=slurm"}).launch.env_detect == "slurm");
  CHECK(contains(refused({"env", "--nonsense"}), "unknown option"));
  CHECK(contains(refused({"env", "--env-detect=slum"}), "did you mean 'slurm'?"));
}

TEST_CASE("arguments of env(1) after env make it the program") {
  for (const Args& args : {Args{"FOO=1", "./p"},
                           {"./p"},
                           {"train", "--lr", "1"},
                           {"-u", "X", "./p"},
                           {"-uX", "./p"},
                           {"-i", "./p"},
                           {"-", "./p"},
                           {"-S", "a b"},
                           {"--unset=X", "./p"},
                           {"--unset", "X", "./p"},
                           {"--ignore-environment", "A=1", "./p"},
                           {"FOO=1", "--json"}}) {
    CAPTURE(args);
    CHECK(starts_env_program(args.front()));
    Args line{"env"};
    line.insert(line.end(), args.begin(), args.end());
    const auto launch = launched(line);
    CHECK(launch.spec.first().name == "env");
    CHECK(launch.spec.first().args == args);
  }
  for (const std::string word : {"", "--json", "-n", "-v", "--env-detect=slurm", "--", "--chdir=/", "-h", "--help"}) {
    CHECK_FALSE(starts_env_program(word));
  }
  CHECK(contains(refused({"env", "-n", "2", "FOO=1", "./p"}), "ddrun [options] -- env FOO=1"));
  CHECK(contains(refused({"env", "-n", "2", "-u", "X", "./p"}), "unknown option '-u'"));
}

TEST_CASE("each subcommand rejects unknown arguments") {
  for (const Args& args : {Args{"store", "./p"},
                           {"store", "FOO=1", "./p"},
                           {"version", "FOO=1"},
                           {"config", "FOO=1", "./p"},
                           {"secret", "FOO=1"},
                           {"secret", "new", "./p"},
                           {"stacks", "4711", "./p"},
                           {"completion", "FOO=1", "./p"},
                           {"rendezvous", "FOO=1", "./p"},
                           {"help", "FOO=1"},
                           {"help", "store", "get"}}) {
    CAPTURE(args);
    CHECK(contains(refused(args), "ddrun -- " + args.front()));
  }
}

TEST_CASE("help is a subcommand and an option of each subcommand") {
  CHECK(answered({"help"}) == answered({"--help"}));
  for (const std::string word : {"config", "completion", "env", "rendezvous", "secret", "stacks", "store", "version"}) {
    CAPTURE(word);
    const std::string help = answered({"help", word});
    CHECK(contains(help, "ddrun " + word));
    CHECK(help == answered({word, "--help"}));
    CHECK(help == answered({word, "-h"}));
    CHECK(help.size() < answered({"--help"}).size() / 2);
    if (help.starts_with("usage: ")) continue;  // one line, which is the message about wrong usage too
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 80);
  }
  CHECK(answered({"config", "show", "--help"}) == answered({"config", "--help"}));
}

TEST_CASE("variables of -x are set for the workers with and without hosts") {
  const auto launch = launched({"-x", "A=1", "-x", "B=2", "-x", "B=3", "--env=A=0", "-xC", "w"}, {"C="});
  CHECK(launch.spec.first().env == std::vector<std::pair<std::string, std::string>>{{"A", "0"}, {"B", "3"}});
  CHECK(launch.warnings.empty());
  CHECK(launched({"-x", "C", "w"}).warnings == Args{"-x C: there is no such variable here"});
  CHECK(launched({"w"}, {"DDRUN_EXPORT=A=1"}).spec.first().env.size() == 1);
  CHECK(launched({"-x", "A=1", "--hosts=h", "w"}).spec.first().env.empty());
}

TEST_CASE("a launch records the given options and their sources") {
  const cli::Launch launch =
      launched({"--rdzv-id=x", "-n2", "w"}, {"PET_NODE_RANK=0", "DDRUN_RDZV_ID=y", "PET_NNODES="});
  CHECK(launch.given == cluster::GivenOptions{{"rdzv-id", "--rdzv-id"},
                                              {"nproc-per-node", "--nproc-per-node"},
                                              {"node-rank", "PET_NODE_RANK"}});
}

TEST_CASE("version is shown in three ways") {
  const std::string text = "ddrun 1.2.3 (commit abc1234)\n  Boost  1.81\n";
  CHECK(answered({"--version"}) == text);
  CHECK(answered({"-V"}) == text);
  CHECK(answered({"version"}) == text);
  CHECK(answered({"version", "--verbose"}) == text);
  CHECK(contains(answered({"version", "--json"}), "\"version\": \"1.2.3\""));
  CHECK(contains(answered({"version", "--json"}), "\"Boost\": \"1.81\""));
  CHECK(contains(refused({"version", "x"}), "usage: ddrun version [--json]"));
}

TEST_CASE("help and version win over what follows them") {
  CHECK(contains(answered({"--help"}), "Usage: ddrun"));
  CHECK(contains(answered({"-n", "0", "-h", "./w", "--nonsense"}), "Usage: ddrun"));
  CHECK(contains(answered({"-vh"}), "Usage: ddrun"));
  CHECK(contains(answered({"config", "show", "--help"}), "Usage: ddrun"));
  CHECK(contains(refused({"--nonsense", "--help"}), "unknown option"));
}

TEST_CASE("help fits 80 columns is grouped and ends with four examples") {
  const std::string help = answered({"--help"});
  std::istringstream lines(help);
  std::string line;
  int examples = 0;
  bool in_examples = false;
  while (std::getline(lines, line)) {
    CAPTURE(line);
    CHECK(line.size() <= 80);
    CHECK((line.empty() || line.back() != ' '));
    if (line == "Examples:") in_examples = true;
    else if (in_examples && line.substr(0, 8) == "  ddrun ") ++examples;
  }
  CHECK(examples == 4);
  for (const std::string group :
       {"Workers:", "Program:", "Failure, restart and the end:", "Output:", "ddrun itself:"}) {
    CHECK(contains(help, "\n" + group + "\n"));
  }
}

TEST_CASE("-h is one screen of the options that people need") {
  const std::string screen = answered({"-h"});
  std::istringstream lines(screen);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) CHECK(line.size() <= 80);
  CHECK(count <= 40);
  for (const std::string option : {"-n, --nproc-per-node=N ", "--timeout=TIME ", "--hosts=LIST ", "ddrun --help "}) {
    CHECK(contains(screen, "  " + option));
  }
  CHECK(answered({"-h", "./prog"}) == screen);
  CHECK(answered({"-vh"}) == screen);
}

TEST_CASE("help of one option has its row, its variables, its key and its page") {
  const std::string all = answered({"--help"});
  const std::string tee = answered({"--help", "tee"});
  CHECK(contains(tee, "  Variable  DDRUN_TEE, else PET_TEE\n  Key       tee (a whole number, a text or a table)\n"));
  CHECK(contains(tee, "  Scope     each program\n  Page      docs/output.md\n"));
  for (const Args& same : {Args{"--tee"}, {"-t"}, {"--tee=3"}, {"te"}, {"--te", "train.py"}, {"tee", ":", "-n", "2"}}) {
    Args args{"-n", "2", "--help"};
    args.insert(args.end(), same.begin(), same.end());
    CAPTURE(same);
    CHECK(answered(args) == tee);
  }
  CHECK(answered({"-h", "log_dir"}) == answered({"--help", "--log-dir"}));
  CHECK(answered({"--help", "-np"}) == answered({"--help", "nproc-per-node"}));
  // A word that names no option, or the start of several, is what the line was about.
  for (const std::string word : {"./prog", "train.py", "log", "t", "--", "-", ":", ""})
    CHECK(answered({"--help", word}) == all);
  CHECK(refused({"--help", "--lgo-dir"}) == "unknown option '--lgo-dir'; did you mean '--log-dir'?");
  CHECK(contains(refused({"--help", "--map-by"}), "in ddrun: --bind=cores"));
  CHECK(refused({"--help", "--log"}) ==
        "unknown option '--log'; did you mean '--log-dir', '--log-line-prefix-template', '--logs-specs'?");
  for (const cli::Option* option : cli::all_options()) {
    const std::string name(option->name);
    CAPTURE(name);
    const std::string help = answered({"--help", name});
    CHECK(contains(all, help.substr(0, help.find("\n\n") + 1)));
    for (const std::string& variable : cli::variables_of(*option)) CHECK(contains(help, variable));
    const std::size_t at = help.find("  Page      ");
    REQUIRE(at != std::string::npos);
    const std::string page = help.substr(at + 12, help.size() - at - 13);
    CHECK(contains(read_file(DDRUN_SOURCE_DIR "/" + page), "--" + name));
  }
}

TEST_CASE("the examples in help are good command lines") {
  std::istringstream lines(answered({"--help"}));
  std::string line;
  const TemporaryDirectory dir;
  const std::string config = dir.file("launch.toml", "program = \"x\"\n");
  while (std::getline(lines, line)) {
    if (line.substr(0, 8) != "  ddrun " || contains(line, "[")) continue;
    Args args;
    std::istringstream parts(line.substr(8));
    for (std::string word; parts >> word;) args.push_back(word == "--config=launch.toml" ? "--config=" + config : word);
    CAPTURE(args);
    CHECK_FALSE(launched(args).spec.first().name.empty());
  }
}

TEST_CASE("config without arguments shows its usage") {
  CHECK(contains(refused({"config"}), "usage: ddrun config show"));
  CHECK(contains(refused({"config", "list"}), "usage: ddrun config show"));
  CHECK(contains(refused({"config", "schema", "x"}), "ddrun config schema"));
  CHECK(contains(refused({"config", "show", "-n0"}), "--nproc-per-node=0: "));
}
