#include "../job.hpp"

using namespace ddrun::test;

// What people type who know other launchers.

TEST_CASE("ddrun env with words of env(1) runs the program with them") {
  RunOptions options;
  options.env = {{"LEFT", "1"}};
  const auto outcome = finish(command({"env", "-u", "LEFT", "FOO=7", "sh", "-c", "echo ${LEFT:-$FOO}"}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(outcome.out == "7\n");
  const auto failed = finish(command({"env", "FOO=7", "sh", "-c", "exit 5"}));
  DDRUN_SHOW(failed);
  CHECK(failed.code() == 5);
}

TEST_CASE("A program called agent or relay is not taken for what serves other machines") {
  const std::string word = GENERATE("agent", "relay");
  RunOptions options;
  options.input = "hello\n";
  const auto outcome = finish(command({word, "--lr", "1"}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 2);
  CHECK(outcome.out.empty());
  CHECK(has(outcome.err, "ddrun -- " + word));
}

TEST_CASE("A PATH for the workers is the one in which the program is looked for") {
  const TemporaryDirectory dir;
  dir.file("only-here", "#!/bin/sh\necho found\n", 0755);
  struct Case {
    std::string variable;
    Words program;
    int code;
    std::string out, err;
  };
  for (const auto& [variable, program, code, out, err] :
       {Case{"PATH=" + dir.path() + ":/bin", {"only-here"}, 0, "found\n", ""},
        {"PYTHON_EXEC=" + dir.file("only-here"), {"-m", "anything"}, 0, "found\n", ""},
        {"VIRTUAL_ENV=/no/such/place", {"-m", "anything"}, 127, "", "/no/such/place/bin/python"}}) {
    Words words{"--env", variable};
    words.insert(words.end(), program.begin(), program.end());
    const auto outcome = finish(command(words));
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == code);
    CHECK(outcome.out == out);
    CHECK(has(outcome.err, err));
  }
}

TEST_CASE("Without etcdctl a job with etcd is refused and its members may be in etcdctl's variable") {
  const TemporaryDirectory empty;
  RunOptions options;
  options.env = {{"PATH", empty.path()}, {"ETCDCTL_ENDPOINTS", "a:1,b:1"}, {"DDRUN_SECRET", "a secret of the test"}};
  const Words job{"--nnodes=1:2", "--rdzv-backend=etcd", "--rdzv-id=job", "/bin/echo", "started"};
  const auto refused = finish(command(job), options);
  DDRUN_SHOW(refused);
  CHECK(refused.code() == 127);
  CHECK(refused.out.empty());
  CHECK(refused.err ==
        "ddrun: error: --rdzv-backend=etcd needs etcdctl, which is not in PATH; install it (Debian and Ubuntu: "
        "etcd-client)\n");
  Words shown{"--dry-run"};
  shown.insert(shown.end(), job.begin(), job.end());
  const auto plan = finish(command(shown), options);
  DDRUN_SHOW(plan);
  CHECK(plan.code() == 0);
  CHECK(has(plan.out, "where etcd at a:1,b:1 says"));
}

TEST_CASE("What would be started is shown before the program is there") {
  const auto [words, out, err] = GENERATE(table<Words, const char*, const char*>({
      {{"-n", "2", "./not-there-yet", "--lr", "1"},
       "./not-there-yet --lr 1",
       "ddrun: warning: ./not-there-yet: no such file"},
      {{"not-there-yet.py"}, "not-there-yet.py", ""},
  }));
  Words all{"--dry-run"};
  all.insert(all.end(), words.begin(), words.end());
  const auto outcome = finish(command(all));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.out, out));
  CHECK(has(outcome.err, err));
}

TEST_CASE("What is known only at the start is said to be, and not shown as a value") {
  const auto plan = finish(command({"-n", "2", "--dry-run", "true"}));
  DDRUN_SHOW(plan);
  for (const char* name : {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "DDRUN_JOB_TAG", "TORCHELASTIC_ERROR_FILE"}) {
    CHECK(has(plan.out, std::string("  ") + name + "=(set at the start)\n"));
  }
  const auto known =
      finish(command({"-n", "2", "--dry-run", "--master-port=29501", "--rdzv-id=a b", "--log-dir=/dev/null", "true"}));
  DDRUN_SHOW(known);
  CHECK(has(known.out, "  MASTER_PORT=29501\n"));
  CHECK(has(known.out, "  TORCHELASTIC_RUN_ID='a b'\n"));
  CHECK(has(known.out, "  TORCHELASTIC_ERROR_FILE=\n"));
}

TEST_CASE("An MPI program is warned about once as long as ddrun cannot serve it") {
  const auto [words, with_pmi, warnings] = GENERATE(table<Words, bool, std::size_t>({
      {{"-n", "3"}, false, 1U},
      {{"-n", "1"}, false, 0U},
      {{"-n", "3", "--env-detect=none"}, true, 1U},  // ddrun takes the variables away
      {{"-n", "3", "--env-detect=none", "--keep-scheduler-env"}, true, 0U},
  }));
  RunOptions options;
  if (with_pmi) options.env = {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}};
  Words all = words;
  all.emplace_back(DDRUN_TEST_MPI_PROGRAM);
  const auto outcome = finish(command(all), options);
  CAPTURE(words);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(count(outcome.err, "is an MPI program (it needs libmpi.so.40)") == warnings);
  CHECK(count(outcome.err, "start it with mpirun or srun") == warnings);
}

TEST_CASE("A script that imports mpi4py is warned about unless MPI is chosen") {
  const TemporaryDirectory dir;
  const std::string import = "#!/usr/bin/env python3\nimport mpi4py\n";
  dir.file("train.py", import, 0644);
  dir.file("train", import, 0755);
  dir.file("part/one.py", import, 0644);
  dir.file("mpi4py.py", "", 0644);
  const auto [words, script] = GENERATE(table<Words, std::string>({
      {{"-n", "2", "train.py"}, "train.py"},
      {{"-n", "2", "--run-path", "train.py"}, "train.py"},
      {{"-n", "2", "./train"}, "./train"},
      {{"-n", "2", "python3", "-u", "train.py"}, "train.py"},
      {{"-n", "2", "-m", "part.one"}, "part/one.py"},
      {{"-n", "2", "-m", "mpi4py", "train.py"}, "train.py"},
      {{"-n", "1", "train.py"}, ""},
      {{"-n", "2", "--mpi=none", "train.py"}, ""},
      {{"-n", "2", "cat", "train.py"}, ""},
  }));
  RunOptions options;
  options.directory = dir.path();
  const auto outcome = finish(command(words), options);
  CAPTURE(words);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(outcome.err == (script.empty() ? ""
                                       : "ddrun: warning: " + script +
                                             " imports mpi4py, and MPI is off: each "
                                             "worker will be rank 0 of 1; give --mpi\n"));
}

TEST_CASE("Workers get the variables of a file") {
  const TemporaryDirectory dir;
  dir.file(".env", "# made on Windows\r\nexport A=1 # one\r\nB=\"x\\ty\"\r\nC='$A'\r\n");
  RunOptions options;
  options.directory = dir.path();
  options.env = {{"A", "0"}};
  const auto outcome =
      finish(command({"--env-file=.env", "--env", "D=4", "sh", "-c", "echo \"$A|$B|$C|$D\""}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.out == "1|x\ty|$A|4\n");
  const auto on_host = finish(command({"--hosts=localhost", "--env-file=.env", "sh", "-c", "echo $A"}), options);
  DDRUN_SHOW(on_host);
  CHECK(on_host.out == "1\n");
  dir.file(".env", "A=1\nB: 2\n");
  const auto wrong = finish(command({"--env-file=.env", "true"}), options);
  DDRUN_SHOW(wrong);
  CHECK(wrong.code() == 2);
  CHECK(has(wrong.err, ".env:2: there is no '='; write NAME=VALUE"));
}

TEST_CASE("A missing module names the Python that ran and what to try") {
  const TemporaryDirectory dir;
  dir.file("plain.py", "import no_such_module\n");
  dir.file("pep.py", "# /// script\n# dependencies = [\"x\"]\n# ///\nimport no_such_module\n");
  dir.file("uv.py", "#!/usr/bin/env -S uv run --script\nimport no_such_module\n", 0755);
  dir.file("fine.py", "import sys\nsys.exit(3)\n");
  RunOptions options;
  options.directory = dir.path();
  for (const auto& [script, hint] : {std::pair<std::string, std::string>{"plain.py", "(PYTHON_EXEC)\n"},
                                     {"pep.py", "(PYTHON_EXEC); try: ddrun -n 2 uv run pep.py\n"},
                                     {"uv.py", "(PYTHON_EXEC); try: ddrun -n 2 --no-python uv.py\n"}}) {
    const auto outcome = finish(command({"-n", "2", "--env=PYTHON_EXEC=python3", script}), options);
    DDRUN_SHOW(outcome);
    CHECK(has(outcome.err, "  python:  /"));
    CHECK(has(outcome.err, hint));
  }
  const auto other = finish(command({"-n", "2", "fine.py"}), options);
  DDRUN_SHOW(other);
  CHECK_FALSE(has(other.err, "python:"));
}

TEST_CASE("A variable that ddrun does not know is named once, also where ddrun starts ddrun") {
  RunOptions options;
  options.env = {{"DDRUN_TIMEOT", "3"}, {"DDRUN_SECRET", "0123456789abcdef0123456789abcdef"}};
  const auto outcome = finish(command({DDRUN_TEST_DDRUN, "-n", "2", "true"}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(outcome.err == "ddrun: warning: DDRUN_TIMEOT is not known to ddrun; did you mean DDRUN_TIMEOUT?\n");
}

TEST_CASE("Slips of the command line are named, and change nothing if they may be meant") {
  const TemporaryDirectory dir;
  dir.file("torchrun", "#!/bin/sh\necho \"$@\"\n", 0755);
  dir.file("t.py", "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_args()\n");
  RunOptions options;
  options.directory = dir.path();
  struct Case {
    Words words;
    int code;
    std::string err;
  };
  for (const auto& [words, code, err] :
       {Case{{"-n", "1", "echo", "a", ":", "--timeout=3", "b"}, 0, "a next program begins with -n N"},
        {{"-n", "2", "--", "./torchrun", "x.py"}, 0, "ddrun: warning: torchrun is a launcher too"},
        {{"-n", "2", "./torchrun", "x.py"}, 2, "ddrun: error: torchrun is a launcher too"},
        {{"t.py", "-n", "2"}, 2, "ddrun: warning: -n 2 went to t.py; ddrun's options come before it\n"},
        {{"-n", "2", "t.py", "--lr=1", "--max-restarts=2"}, 2, "--max-restarts=2 went to t.py"}}) {
    const auto outcome = finish(command(words), options);
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == code);
    CHECK(has(outcome.err, err));
  }
  for (const Words& words : {Words{"-n", "2", "grep", "-n", "lr", "t.py"},
                             {"-n", "2", "grep", "-n", "2", "none"},
                             {"-n", "2", "--", "t.py", "-n", "2"},
                             {"cut", "-d", ":", "-f1", "t.py"},
                             {"./torchrun", "-n", "2"},
                             {"t.py", "--lr=1"}}) {
    const auto outcome = finish(command(words), options);
    DDRUN_SHOW(outcome);
    CHECK_FALSE(has(outcome.err, "warning"));
  }
}
