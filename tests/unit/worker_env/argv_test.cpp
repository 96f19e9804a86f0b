#include "ddrun/test/catch.hpp"
#include "ddrun/worker_env/worker_environment.hpp"

using namespace ddrun;
using worker_env::argv_depends_on_rank;
using worker_env::worker_argv;
using Words = std::vector<std::string>;

TEST_CASE("an executable is called as the user named it") {
  CHECK(worker_argv({ProgramKind::executable, "./train", {"--lr", "0.1"}}, 3, 1, "/usr/bin/python3") ==
        Words{"./train", "--lr", "0.1"});
}

TEST_CASE("Python scripts and modules run unbuffered") {
  CHECK(worker_argv({ProgramKind::python_script, "train.py", {"-x"}}, 0, 0, "/venv/bin/python") ==
        Words{"/venv/bin/python", "-u", "train.py", "-x"});
  CHECK(worker_argv({ProgramKind::python_module, "pkg.train", {"-x"}}, 0, 0, "/venv/bin/python") ==
        Words{"/venv/bin/python", "-u", "-m", "pkg.train", "-x"});
}

TEST_CASE("a script of --run-path is named behind the code that runs it") {
  const Words argv = worker_argv({ProgramKind::python_function, "dir/train", {"-x", "${rank}"}}, 3, 1, "/bin/python");
  REQUIRE(argv.size() == 7);
  CHECK(Words(argv.begin(), argv.begin() + 3) == Words{"/bin/python", "-u", "-c"});
  CHECK(argv[3].find("runpy.run_path(") != std::string::npos);
  CHECK(Words(argv.begin() + 4, argv.end()) == Words{"dir/train", "-x", "3"});
}

TEST_CASE("rank and local rank are replaced in arguments and nothing else is touched") {
  const ProgramSpec program{ProgramKind::executable,
                            "dir-${rank}/x",
                            {"${rank}:${local_rank}", "out.${rank}${rank}", "$$ $rank ${RANK} ${x} ${", "$${rank}", "",
                             "${rank", "${ rank }", "${local_rank}.log"}};
  CHECK(worker_argv(program, 11, 3, "") == Words{"dir-${rank}/x", "11:3", "out.1111", "$$ $rank ${RANK} ${x} ${", "$11",
                                                 "", "${rank", "${ rank }", "3.log"});
  CHECK(argv_depends_on_rank(program));
  CHECK_FALSE(argv_depends_on_rank({ProgramKind::executable, "${rank}", {"$rank", "${RANK}", "$${x}"}}));
}

TEST_CASE("with a port it is replaced in arguments too") {
  ProgramSpec program{ProgramKind::executable,
                      "dir-${port}/x",
                      {"--port=${port}", "${port}${port}:${rank}", "$port ${PORT} ${ports} ${port", "$${port}"}};
  program.port = 8000;
  CHECK(worker_argv(program, 3, 1, "", 8001) ==
        Words{"dir-${port}/x", "--port=8001", "80018001:3", "$port ${PORT} ${ports} ${port", "$8001"});
  CHECK(worker_argv({ProgramKind::python_script, "a.py", {"${port}"}}, 3, 1, "/bin/python", 8001) ==
        Words{"/bin/python", "-u", "a.py", "8001"});
  CHECK(argv_depends_on_rank(program));
  program.args = {"${local_rank}"};
  CHECK(argv_depends_on_rank(program));
  program.args = {"$port", "${PORT}"};
  CHECK_FALSE(argv_depends_on_rank(program));

  program.args = {"--port=${port}"};
  program.port = 0;
  CHECK(worker_argv(program, 3, 1, "") == Words{"dir-${port}/x", "--port=${port}"});
  CHECK_FALSE(argv_depends_on_rank(program));
}
