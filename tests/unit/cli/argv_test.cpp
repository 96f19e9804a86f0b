#include "support.hpp"

using namespace ddrun;
using namespace ddrun::cli::test;

TEST_CASE("options end at the program and its arguments are unchanged") {
  const Args args{"-n", "2", "./w", "-n", "5", "--help", "--", "-v", "", "a b", "$$", "--nproc=1"};
  const auto launch = launched(args);
  CHECK(launch.spec.first().nproc.count == 2);
  CHECK(launch.spec.first().name == "./w");
  CHECK(launch.spec.first().args == Args(args.begin() + 3, args.end()));
}

TEST_CASE("one leading double dash is dropped and a second one is the program") {
  CHECK(launched({"--", "store", "x"}).spec.first().name == "store");
  CHECK(launched({"-v", "--", "--strange"}).spec.first().name == "--strange");
  const auto launch = launched({"--", "--", "x"});
  CHECK(launch.spec.first().name == "--");
  CHECK(launch.spec.first().args == Args{"x"});
  CHECK(launched({"--", "prog", "--"}).spec.first().args == Args{"--"});
}

TEST_CASE("a double dash directly behind a program of torchrun is dropped if none stood before it") {
  for (const Args& before : {Args{"s.py"}, Args{"-m", "mod"}, Args{"--no-python", "echo"}, Args{"--run-path", "s"},
                             Args{"-n", "2", "--no-python", "s.py"}}) {
    CAPTURE(before);
    const auto args = [&](const Args& behind) {
      Args args = before;
      args.insert(args.end(), behind.begin(), behind.end());
      return launched(args).spec.first().args;
    };
    CHECK(args({"--", "--lr", "0.1"}) == Args{"--lr", "0.1"});
    CHECK(args({"--"}).empty());
    CHECK(args({"--", "--", "a"}) == Args{"--", "a"});
    CHECK(args({"a", "--", "b"}) == Args{"a", "--", "b"});
    Args separated = before;
    separated.insert(separated.end() - 1, "--");
    separated.insert(separated.end(), {"--", "a"});
    CHECK(launched(separated).spec.first().args == Args{"--", "a"});
  }
  CHECK(launched({"echo", "--", "a"}, {"PET_NO_PYTHON=1"}).spec.first().args == Args{"a"});
  // For executables "--" is an argument, as with env, nohup and mpirun.
  CHECK(launched({"grep", "--", "-x", "file"}).spec.first().args == Args{"--", "-x", "file"});
}

TEST_CASE("a single dash is a program and not an option") {
  CHECK(launched({"-n", "2", "-", "x"}).spec.first().name == "-");
}

TEST_CASE("every way to spell a number of workers gives the same") {
  const std::vector<Args> ways{{"-n", "3"},
                               {"-n3"},
                               {"-n=3"},
                               {"-np", "3"},
                               {"-np=3"},
                               {"-vn3"},
                               {"-vn", "3"},
                               {"--nproc-per-node", "3"},
                               {"--nproc-per-node=3"},
                               {"--nproc_per_node", "3"},
                               {"--nproc_per_node=3"},
                               {"--nproc-per_node=3"},
                               {"-n", "9", "--nproc_per_node=8", "--nproc-per-node=3"}};
  for (Args way : ways) {
    CAPTURE(way);
    way.insert(way.end(), {"./w", "-n", "7"});
    const auto launch = launched(way);
    CHECK(launch.spec.first().nproc.count == 3);
    CHECK(launch.spec.first().name == "./w");
    CHECK(launch.spec.first().args == Args{"-n", "7"});
  }
}

TEST_CASE("short letters of torchrun work alone joined and with an equals sign") {
  for (const Args& way : {Args{"-r3", "-t", "1"}, Args{"-r=3", "-t=1"}, Args{"-r", "3", "-t1"}}) {
    CAPTURE(way);
    Args args = way;
    args.emplace_back("w");
    const auto launch = launched(args);
    CHECK(launch.spec.first().streams.redirects.all_ranks == Streams::both);
    CHECK(launch.spec.first().streams.tee.all_ranks == Streams::out);
  }
  CHECK(launched({"-mr3", "pkg.mod"}).spec.first().kind == ProgramKind::python_module);
}

TEST_CASE("flags may be repeated and counted") {
  CHECK(launched({"-v", "w"}).messages.shown == Level::info);
  CHECK(launched({"-vv", "w"}).messages.shown == Level::debug);
  CHECK(launched({"-v", "--verbose", "w"}).messages.shown == Level::debug);
  CHECK(launched({"--verbose=2", "w"}).messages.shown == Level::debug);
  CHECK(launched({"w"}).messages.shown == Level::notice);
  CHECK(launched({"-q", "w"}).messages.shown == Level::warning);
  CHECK(launched({"-qq", "w"}).messages.shown == Level::error);
  CHECK(launched({"-vvvvvvvvvvvvvvv", "w"}).messages.shown == Level::debug);
  CHECK(launched({"--standalone", "--standalone", "w"}).spec.rendezvous.standalone);
  CHECK_FALSE(launched({"--standalone", "--standalone=0", "w"}).spec.rendezvous.standalone);
}

TEST_CASE("values that look odd arrive as they were typed") {
  CHECK(launched({"--log-line-prefix-template=[a,b]", "w"}).spec.log.line_prefix_template == "[a,b]");
  CHECK(launched({"--log-line-prefix-template", "{}", "w"}).spec.log.line_prefix_template == "{}");
  CHECK(launched({"--log-line-prefix-template=--x", "w"}).spec.log.line_prefix_template == "--x");
  CHECK(launched({"--log-line-prefix-template=a=b ", "w"}).spec.log.line_prefix_template == "a=b ");
  CHECK(launched({"--log-line-prefix-template=\"q\"", "w"}).spec.log.line_prefix_template == "\"q\"");
  CHECK(launched({"--log-line-prefix-template=", "w"}).spec.log.line_prefix_template.empty());
  CHECK(launched({"--log-line-prefix-template", "", "w"}).spec.first().name == "w");
  CHECK(launched({"--chdir", "%PATH%", "w"}).spec.first().chdir == "%PATH%");
  const auto env = launched({"--env", "A=[x,y]", "--env=B=", "--env", "C=a=b,c", "w", "--env", "D=1"}).spec.first().env;
  const std::vector<std::pair<std::string, std::string>> expected{{"A", "[x,y]"}, {"B", ""}, {"C", "a=b,c"}};
  CHECK(env == expected);
}

TEST_CASE("a later assignment of the same variable replaces the earlier one") {
  const auto env = launched({"--env=A=1", "--env=B=2", "--env=A=3", "w"}).spec.first().env;
  const std::vector<std::pair<std::string, std::string>> expected{{"A", "3"}, {"B", "2"}};
  CHECK(env == expected);
}

TEST_CASE("thousands of arguments and very long ones pass") {
  Args args{"-n2", "w"};
  for (int i = 0; i < 5000; ++i) args.push_back("--flag" + std::to_string(i));
  args.push_back(std::string(200'000, 'x'));
  CHECK(launched(args).spec.first().args == Args(args.begin() + 2, args.end()));
}

TEST_CASE("the kind of program follows from its name and the flags") {
  CHECK(launched({"train.py"}).spec.first().kind == ProgramKind::python_script);
  CHECK(launched({"./train"}).spec.first().kind == ProgramKind::executable);
  CHECK(launched({"./train.pyc"}).spec.first().kind == ProgramKind::executable);
  CHECK(launched({"--no-python", "train.py"}).spec.first().kind == ProgramKind::executable);
  CHECK(launched({"-m", "pkg.train"}).spec.first().kind == ProgramKind::python_module);
  CHECK(launched({"-m", "pkg.py"}).spec.first().kind == ProgramKind::python_module);
  CHECK(launched({"app.pyz"}).spec.first().kind == ProgramKind::python_script);
  CHECK_FALSE(launched({"train"}).spec.first().no_python);
  CHECK(launched({"--no-python", "train"}).spec.first().no_python);
  CHECK(launched({"--run-path", "train"}).spec.first().kind == ProgramKind::python_function);
  CHECK(launched({"--module=0", "train"}).spec.first().kind == ProgramKind::executable);
}
