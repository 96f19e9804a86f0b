#include <map>

#include "support.hpp"

using namespace ddrun;
using namespace ddrun::cli::test;

namespace {

using Set = std::vector<std::pair<std::string, std::string>>;

/// The variables that a file with `text` sets, the last of the file first.
Set set_by(const std::string& text) {
  const TemporaryDirectory dir;
  return launched({"--env-file=" + dir.file("a.env", text), "w"}).spec.first().env;
}

}  // namespace

TEST_CASE("values of an environment file are plain or in quotes") {
  struct Case {
    std::string line, value;
  };
  for (const auto& [line, value] : {
           Case{"A=1", "1"},
           {"A=", ""},
           {"  export\tA = two words  ", "two words"},
           {"A=a#b", "a#b"},
           {"A=#b", "#b"},
           {"A=a # b", "a"},
           {"A= # b", ""},
           {"A=a=b", "a=b"},
           {"A=it's", "it's"},
           {"A=$HOME ${X} `x`", "$HOME ${X} `x`"},
           {"A=\\n", "\\n"},
           {R"(A="a b # c" # d)", "a b # c"},
           {R"(A="\n\t\"\\\d$X")", "\n\t\"\\\\d$X"},
           {R"(A='a\n"b"'#c)", R"(a\n"b")"},
           {R"(A="it's")", "it's"},
           {"A=''", ""},
           {"A=\xc3\xa4", "\xc3\xa4"},
           {"\xef\xbb\xbf"
            "A=1\r",
            "1"},
       }) {
    CAPTURE(line);
    CHECK(set_by(line) == Set{{"A", value}});
    CHECK(set_by(line + "\n\n  # A=2\n#\n") == Set{{"A", value}});
  }
  CHECK(set_by("export=1") == Set{{"export", "1"}});
  CHECK(set_by("").empty());
}

TEST_CASE("a variable in an environment file that is not expanded causes a warning with its line") {
  const TemporaryDirectory dir;
  const auto warned = [&](const std::string& line) {
    const std::string file = dir.file("a.env", "# $A\nB=1\n" + line + "\n");
    const Args warnings = launched({"--env-file", file, "w"}).warnings;
    if (warnings.empty()) return false;
    CHECK(warnings == Args{file + ":3: a '$' is kept as it is, and no variable is expanded; write the value itself, or "
                                  "single quotes around it"});
    return true;
  };
  for (const std::string line :
       {"A=${HOME}/data", "PATH=$HOME/bin:$PATH", "A=\"a $b\"", "export A = $_", "A=$(pwd)", "A=5$ $x"}) {
    CAPTURE(line);
    CHECK(warned(line));
  }
  for (const std::string line : {"A='$HOME'", "A= '${HOME}'  # $B", "A=a$", "A=$5 $", "A=1 # $HOME", "A=", "A=$$"}) {
    CAPTURE(line);
    CHECK_FALSE(warned(line));
  }
}

TEST_CASE("a wrong line of an environment file is named and not shown") {
  const TemporaryDirectory dir;
  for (const std::string line : {"secret", "=secret", "my secret=1", "export secret", "A=\"secret", "A='secret",
                                 R"(A="secret\")", R"(A="secret" b)", "secret: a=1", "\"secret\"=1", "$secret=1"}) {
    CAPTURE(line);
    const std::string file = dir.file("bad.env", "A=1\r\n\r\n" + line + "\r\nB=2\n");
    const std::string error = refused({"--env-file", file, "w"});
    CHECK(contains(error, "bad.env:3: "));
    CHECK_FALSE(contains(error, "secret"));
  }
  for (const std::string name : {"RANK", "MASTER_PORT", "DDRUN_SECRET"}) {
    const std::string error = refused({"--env-file", dir.file("own.env", "A=1\nexport " + name + "=7\n"), "w"});
    CAPTURE(error);
    CHECK(contains(error, "own.env:2: "));
    CHECK(contains(error, name == "DDRUN_SECRET" ? "workers do not get it; use --secret-file" : "ddrun sets " + name));
  }
  CHECK(contains(refused({"--env-file", dir.file("nul", std::string("A=\0", 3)), "w"}), "nul:1: it is not text"));
  CHECK(contains(refused({"--env-file", dir.path(), "w"}), "Is a directory"));
  CHECK(contains(refused({"--env-file", dir.file("none"), "w"}), "No such file or directory"));
  CHECK(contains(refused({"--env-file", dir.file("big", std::string((1 << 20) + 1, '#')), "w"}), "larger than 1 MiB"));
  CHECK(contains(refused({"w"}, {"DDRUN_ENV_FILE=" + dir.file("none")}), "DDRUN_ENV_FILE="));
}

TEST_CASE("of environment files the last counts, and --env and -x win over them") {
  const TemporaryDirectory dir;
  const std::string one = dir.file("one", "A=1\nB=1\nC=1\nD=1\nA=2\n");
  const std::string two = dir.file("two", "C=2\n");
  const auto values = [](const Args& args, const Args& variables = {}) {
    const Set all = launched(args, variables).spec.first().env;
    return std::map<std::string, std::string>(all.begin(), all.end());
  };
  using Values = std::map<std::string, std::string>;
  CHECK(values({"--env=B=3", "--env-file=" + one, "--env-file=" + two, "-x", "D=4", "w"}) ==
        Values{{"A", "2"}, {"B", "3"}, {"C", "2"}, {"D", "4"}});
  CHECK(values({"--env-file=" + two, "w"}, {"DDRUN_ENV_FILE=" + one, "DDRUN_ENV=A=5"})["C"] == "2");
  CHECK(values({"w"}, {"DDRUN_ENV_FILE=" + one + "\n" + two})["C"] == "2");
  const std::string config = dir.file("c.toml", "env-file = [\"" + two + "\", \"" + one + "\"]\n");
  CHECK(values({"--config", config, "w"})["C"] == "1");
  CHECK(values({"-x", "C", "--env-file=" + two, "w"}, {"C=here"}).empty());
  CHECK(values({"-x", "C", "--env-file=" + two, "w"}) == Values{{"C", "2"}});
  CHECK(values({"--env-file=", "w"}).empty());
  // A settings file with the same meaning has the file, not its variables.
  CHECK(contains(answered({"config", "show", "--env-file", two, "w"}), "env-file = [\"" + two + "\"]"));
  CHECK(contains(answered({"config", "show", "--env-file", two, "w"}), "# env is not set"));
}

TEST_CASE("hosts get the variables of an environment file and not the file") {
  const TemporaryDirectory dir;
  const auto launch = launched({"--hosts=a,b", "--env-file=" + dir.file("a.env", "A='x y'\n"), "w"});
  CHECK(launch.forwarded_args == Args{"--env=A=x y", "--", "w"});
}
