// The script for a host's /bin/sh: it starts an installed ddrun or receives a copy. The ddruns are shell scripts.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "ddrun/base/unique_fd.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/test/processes.hpp"
#include "remote_command.hpp"

using namespace ddrun;
using namespace ddrun::remote;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

/// Accepts --check, and prints that it ran.
constexpr const char* program = "#!/bin/sh\ncase $2 in --check=*) exit 0;; esac\necho \"$0 ran\"\n";
/// The copy sent by the head.
constexpr const char* copy = "#!/bin/sh\ncase $2 in --check=*) exit 0;; esac\necho the copy ran; rm -r \"${0%/*}\"\n";

/// Installed shells that may be /bin/sh.
std::vector<std::vector<std::string>> shells() {
  std::vector<std::vector<std::string>> found;
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"/bin/sh"}, {"/bin/bash", "--posix"}, {"/bin/busybox", "sh"}, {"/bin/mksh"}, {"/bin/ksh93"}}) {
    if (::access(words[0].c_str(), X_OK) == 0) found.push_back(words);
  }
  return found;
}

/// The script without the command that starts /bin/sh.
std::vector<std::string> with_shell(std::vector<std::string> shell, const std::string& command) {
  const std::size_t begin = command.find('\'') + 1;
  shell.emplace_back("-c");
  shell.push_back(command.substr(begin, command.size() - begin - 1));
  return shell;
}

/// A host with an installed ddrun, below two directories of this test.
class HostWithProgram {
 public:
  HostWithProgram() {
    std::filesystem::create_directories(above());
    ::chmod(directory_.path().c_str(), 0755);
    directory_.file("above/bin/ddrun", program, 0755);
    for (const std::string& path : {above(), bin()}) ::chmod(path.c_str(), 0755);
    std::filesystem::create_directory(scratch());
  }
  [[nodiscard]] std::string above() const { return directory_.file("above"); }
  [[nodiscard]] std::string bin() const { return directory_.file("above/bin"); }
  [[nodiscard]] std::string ddrun() const { return directory_.file("above/bin/ddrun"); }
  [[nodiscard]] std::string scratch() const { return directory_.file("scratch"); }

  /// True if `path` is run; false if a copy is requested and run.
  [[nodiscard]] bool runs(const std::vector<std::string>& shell, const std::string& path) const {
    RunOptions options;
    options.env = {{"TMPDIR", scratch()}};
    return runs(shell, path, std::move(options));
  }
  /// The same, found by PATH only.
  [[nodiscard]] bool runs_from_path(const std::vector<std::string>& shell) const {
    RunOptions options;
    options.env = {{"TMPDIR", scratch()}, {"PATH", bin() + ":/usr/bin:/bin"}};
    return runs(shell, "/nonexistent/ddrun", std::move(options));
  }

 private:
  [[nodiscard]] bool runs(const std::vector<std::string>& shell, const std::string& path, RunOptions options) const {
    options.input = copy;
    const auto words = with_shell(shell, remote_command("id", path, options.input.size(), 20s));
    Run run(words, std::move(options));
    const auto outcome = run.wait();
    INFO("code " << outcome.code() << "\n" << outcome.out << outcome.err);
    CHECK(outcome.code() == 0);
    CHECK(outcome.err.empty());
    CHECK(std::filesystem::is_empty(scratch()));
    const bool own = outcome.out == ddrun() + " ran\n";
    CHECK((own || outcome.out == "ddrun-agent-id-missing\nthe copy ran\n"));
    return own;
  }

  TemporaryDirectory directory_;
};

}  // namespace

TEST_CASE("A ddrun on a host is run if only root and the user could have put it there") {
  for (const auto& shell : shells()) {
    CAPTURE(shell);
    const HostWithProgram host;
    CHECK(host.runs(shell, host.ddrun()));
    CHECK(host.runs_from_path(shell));
    CHECK_FALSE(host.runs(shell, host.bin() + "/other"));
    // In a sticky directory others cannot replace the file.
    REQUIRE(::chmod(host.bin().c_str(), 01777) == 0);
    CHECK(host.runs(shell, host.ddrun()));
  }
}

TEST_CASE("A ddrun on a host that others may write to is not run") {
  for (const auto& shell : shells()) {
    CAPTURE(shell);
    const HostWithProgram host;
    for (const std::string& path : {host.ddrun(), host.bin(), host.above()}) {
      CAPTURE(path);
      REQUIRE(::chmod(path.c_str(), 0777) == 0);
      CHECK_FALSE(host.runs(shell, host.ddrun()));
      CHECK_FALSE(host.runs_from_path(shell));
      REQUIRE(::chmod(path.c_str(), 0755) == 0);
    }
    CHECK(host.runs(shell, host.ddrun()));
    // A link in a safe directory to a file in an unsafe one.
    const TemporaryDirectory elsewhere;
    const std::string link = elsewhere.file("ddrun");
    REQUIRE(::symlink(host.ddrun().c_str(), link.c_str()) == 0);
    CHECK(host.runs(shell, link));
    REQUIRE(::chmod(host.bin().c_str(), 0777) == 0);
    CHECK_FALSE(host.runs(shell, link));
  }
}

TEST_CASE("A ddrun on a host that is another user's is not run") {
  if (::geteuid() != 0) skip("only root can give a file to another user");
  constexpr uid_t nobody = 65534;
  for (const auto& shell : shells()) {
    CAPTURE(shell);
    const HostWithProgram host;
    for (const std::string& path : {host.ddrun(), host.bin(), host.above()}) {
      CAPTURE(path);
      REQUIRE(::chown(path.c_str(), nobody, 0) == 0);
      CHECK_FALSE(host.runs(shell, host.ddrun()));
      REQUIRE(::chown(path.c_str(), 0, 0) == 0);
    }
    // The sticky bit does not protect against the owner of the file.
    REQUIRE(::chmod(host.bin().c_str(), 01777) == 0);
    REQUIRE(::chown(host.ddrun().c_str(), nobody, 0) == 0);
    CHECK_FALSE(host.runs(shell, host.ddrun()));
    REQUIRE(::chmod(host.bin().c_str(), 0755) == 0);
    REQUIRE(::chown(host.ddrun().c_str(), 0, nobody) == 0);
    CHECK(host.runs(shell, host.ddrun()));
    REQUIRE(::chmod(host.ddrun().c_str(), 0775) == 0);
    CHECK_FALSE(host.runs(shell, host.ddrun()));
    // The group with the user's number is private.
    REQUIRE(::chown(host.ddrun().c_str(), 0, 0) == 0);
    CHECK(host.runs(shell, host.ddrun()));
  }
}

TEST_CASE("A host gives up on an incomplete copy after the limit") {
  for (const auto& shell : shells()) {
    CAPTURE(shell);
    const TemporaryDirectory scratch;
    auto wire = make_pipe();
    REQUIRE(wire);
    RunOptions options;
    options.env = {{"TMPDIR", scratch.path()}, {"PATH", "/usr/bin:/bin"}};
    options.inherit_input = true;
    options.in_child = [in = wire->read.get()] { ::dup2(in, STDIN_FILENO); };
    Run run(with_shell(shell, remote_command("id", "/nonexistent/ddrun", 1000, 1s)), options);
    REQUIRE(run.wait_for_out("ddrun-agent-id-missing\n"));
    CHECK_FALSE(std::filesystem::is_empty(scratch.path()));
    REQUIRE(write_all(wire->write.get(), "a part", 6));  // no more data and no end-of-file
    CHECK(run.wait().code() == 1);
    CHECK(run.all_gone());
    CHECK(std::filesystem::is_empty(scratch.path()));
  }
}
