#include <unistd.h>

#include "../job.hpp"

using namespace ddrun::test;

// What people type who know other launchers.

namespace {

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    lines.push_back(text.substr(at, end - at));
  }
  return lines;
}

}  // namespace

TEST_CASE("ddrun env with words of env(1) runs the program with them") {
  RunOptions options;
  options.env = {{"LEFT", "1"}};
  for (const Words& words : {Words{"env", "FOO=7", "printenv", "FOO"},
                             {"env", "-u", "LEFT", "FOO=7", "sh", "-c", "echo ${LEFT:-7}"},
                             {"env", "-i", "FOO=7", "/bin/sh", "-c", "echo $FOO"},
                             {"env", "echo", "7"}}) {
    CAPTURE(words);
    const auto outcome = finish(command(words), options);
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 0);
    CHECK(outcome.out == "7\n");
  }
  const auto failed = finish(command({"env", "FOO=7", "sh", "-c", "exit 5"}));
  DDRUN_SHOW(failed);
  CHECK(failed.code() == 5);
}

TEST_CASE("ddrun env with options of ddrun starts nothing and says so") {
  const TemporaryDirectory dir;
  const auto outcome = finish(command({"env", "-n", "2", "touch", dir.file("started")}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.out, "touch, not started"));
  CHECK(::access(dir.file("started").c_str(), F_OK) != 0);
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

TEST_CASE("What -x gives a value is set for the workers of this machine") {
  const auto outcome = finish(command({"-x", "FOO=1", "-n", "2", "printenv", "FOO"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.out, "[0] 1\n"));
  CHECK(has(outcome.out, "[1] 1\n"));
  CHECK(outcome.err.empty());
}

TEST_CASE("Option -v shows rank and pid of each worker when it starts") {
  const auto outcome = finish(command({"-v", "-n", "2", "sh", "-c", "echo \"rank $RANK pid $$\""}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  for (const std::string& line : split_lines(outcome.out)) CHECK(has(outcome.err, line.substr(line.find("rank"))));
  const auto more = finish(command({"-v", "-v", "-n", "2", "true"}));
  DDRUN_SHOW(more);
  CHECK(has(more.err, "debug: each runs /"));
  CHECK_FALSE(has(outcome.err, "debug: "));
}

TEST_CASE("A report to - is written to standard output") {
  const TemporaryDirectory dir;
  RunOptions options;
  options.directory = dir.path();
  const auto outcome = finish(command({"--report=-", "--label=none", "echo", "hello"}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(outcome.out.starts_with("hello\n{\n  \"schema_version\": 1"));
  CHECK(::access(dir.file("-").c_str(), F_OK) != 0);
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
