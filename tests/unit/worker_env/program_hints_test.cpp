#include <algorithm>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/worker_env/program_path.hpp"

using namespace ddrun;
using test::TemporaryDirectory;

namespace {

const std::string shell_script = "#!/bin/sh\n";

/// The message, after the name, for a missing program in a directory and a PATH with these programs.
class Place {
 public:
  Place() {
    for (const char* name : {"rm", "ls", "hd", "tail", "[", "delp", "grep", "trainer"}) {
      dir_.file(std::string("bin/") + name, shell_script, 0755);
    }
  }
  std::string said_of(const std::string& name) const {
    const auto found = worker_env::find_program(name, dir_.path() + "/bin", dir_.path());
    if (found) return "found " + *found;
    const std::string& message = found.error().message;
    REQUIRE(message.starts_with(name + ": "));
    return message.substr(name.size() + 2);
  }
  void file(const std::string& name, mode_t mode) const { dir_.file(name, shell_script, mode); }

 private:
  TemporaryDirectory dir_;
};

}  // namespace

TEST_CASE("no short name and no other first letter is suggested from PATH") {
  const Place place;
  for (const char* name : {"-m", ".", "cd", "rn", "train", "help", "gr"}) {
    CAPTURE(name);
    CHECK(place.said_of(name).find("did you mean") == std::string::npos);
  }
  CHECK(place.said_of("gerp") == "not found in PATH (did you mean grep?)");
  CHECK(place.said_of("trainr") == "not found in PATH (did you mean trainer?)");
}

TEST_CASE("a word of ddrun's own that is searched as a program is said to stand first") {
  const Place place;
  const std::string stacks = "not found in PATH (did you mean 'ddrun stacks'? ddrun's own words come first)";
  CHECK(place.said_of("stacks") == stacks);
  CHECK(place.said_of("stack") == stacks);
  place.file("stack", 0755);
  CHECK(place.said_of("stack") == "not found in PATH (did you mean ./stack?)");
}

TEST_CASE("files of the working directory are suggested first") {
  const Place place;
  place.file("rm2", 0755);
  CHECK(place.said_of("rm2") == "not found in PATH (did you mean ./rm2?)");
  place.file("train.py", 0644);
  CHECK(place.said_of("train") == "not found in PATH (did you mean train.py?)");
  CHECK(place.said_of("./train") == "no such file (did you mean ./train.py?)");
  place.file("go.sh", 0755);
  CHECK(place.said_of("go") == "not found in PATH (did you mean ./go.sh?)");
  place.file("plain", 0644);
  CHECK(place.said_of("plain") == "not found in PATH; ./plain is not executable; try: chmod +x ./plain");
}

TEST_CASE("only executable programs are suggested") {
  const Place place;
  place.file("nb.ipynb", 0644);
  place.file("train.PY", 0644);
  const std::string notebook = "a notebook is no program; make a script of it: jupyter nbconvert --to script ";
  CHECK(place.said_of("nb.ipynb") == "not found in PATH; " + notebook + "nb.ipynb");
  CHECK(place.said_of("./nb.ipynb") == notebook + "./nb.ipynb");
  CHECK(place.said_of("train.PY") == "not found in PATH; as it does not end in .py, write: --run-path train.PY");
  const TemporaryDirectory dir;
  dir.file("train.ipynb", "{}");
  CHECK(worker_env::find_script("train.py", dir.path()).error().message == "train.py: no such file");
  dir.file("trains.py", "");
  CHECK(worker_env::find_script("train.py", dir.path()).error().message ==
        "train.py: no such file (did you mean trains.py?)");
}

TEST_CASE("shell keywords get a hint for bash -c") {
  const Place place;
  CHECK(place.said_of("FOO=1") ==
        "not found in PATH; to set a variable for the workers write --env FOO=1 before the program");
  CHECK(place.said_of("FOO=/a/b") ==
        "no such file; to set a variable for the workers write --env FOO=/a/b before the program");
  CHECK(place.said_of("echo hello") ==
        "not found in PATH; it is one word with blanks in it: leave out the quotes, or write: bash -c 'echo hello'");
  place.file("run.sh", 0755);
  CHECK(place.said_of("./run.sh --lr 1") ==
        "no such file; it is one word with blanks in it: leave out the quotes, or write: bash -c './run.sh --lr 1'");
  for (const std::string name : {"cd", "source", ".", "export", "ulimit"}) {
    CHECK(place.said_of(name) ==
          "not found in PATH; it is a word of the shell, not a program; write: bash -c '" + name + " ...'");
  }
  CHECK(place.said_of("-m") == "not found in PATH; behind -- stands the program, and options of ddrun before it");
}

TEST_CASE("subcommands of other launchers get a hint") {
  const Place place;
  for (const std::string name : {"run", "launch", "status", "stop"}) {
    CHECK(place.said_of(name) == "not found in PATH; ddrun has no word " + name +
                                     ": its options and the program follow at once, see 'ddrun --help'");
  }
  place.file("bin/ps", 0755);
  CHECK(place.said_of("ps").starts_with("found "));
}
