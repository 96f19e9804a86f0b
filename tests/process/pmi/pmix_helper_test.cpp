// ddrun-pmix with a library that acts as OpenPMIx's server does, against the decider as they are joined in the agent.

#include "ddrun/pmi/pmix_helper.hpp"

#include <signal.h>
#include <sys/wait.h>

#include <boost/asio/io_context.hpp>
#include <string>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/helper/run.hpp"
#include "ddrun/process/launcher.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/test/processes.hpp"
#include "ddrun/test/soon.hpp"

using namespace ddrun;
using namespace ddrun::pmi;
using namespace ddrun::test;
using namespace std::chrono_literals;
using namespace std::string_literals;

namespace {

/// A helper whose library acts by `script` once the ranks are prepared.
struct PmixMachine {
  explicit PmixMachine(const std::string& script, const std::string& library = DDRUN_FAKE_PMIX, int ranks = 2) {
    const auto started =
        helper.start(library, directory.path(), "a-1", {"FAKE_PMIX=" + script, "TEST_TAG=" + directory.path()});
    REQUIRE(started);
    World world{.size = ranks, .ranks = {}, .random = std::string(16, '\1')};
    for (int rank = 0; rank < ranks; ++rank) world.ranks.push_back(rank);
    step(pmix_event::Begin{world, 0, directory.path(), true});
  }
  ~PmixMachine() {
    helper.close();
    for (const pid_t pid : helper::registered_children()) {
      ::waitpid(pid, nullptr, 0);
      helper::unregister_child(pid);
    }
  }
  void step(const PmixEvent& event) {
    for (const auto& action : server.step(event)) {
      if (const auto* tell = std::get_if<pmix_action::Tell>(&action)) helper.send(tell->frame);
      if (const auto* ready = std::get_if<pmix_action::Ready>(&action)) variables = ready->variables;
      if (const auto* fail = std::get_if<pmix_action::Fail>(&action)) failure = concat(fail->slot, " ", fail->why);
      if (const auto* gave_up = std::get_if<pmix_action::GiveUp>(&action)) reason = gave_up->why;
    }
  }
  bool run_until(const std::function<bool()>& condition) {
    for (const Deadline end = soon(); Clock::now() < end;) {
      io.restart();
      io.run_one_for(10ms);
      if (condition()) return true;
    }
    UNSCOPED_INFO(said << reason);
    for (const pid_t pid : helper::registered_children()) {
      for (const char* const name : {"status", "wchan", "syscall"}) {
        UNSCOPED_INFO(name << ": " << read_file(concat("/proc/", pid, "/", name)));
      }
    }
    return false;
  }
  bool says(const std::string& text) {
    return run_until([&] { return said.find(text) != std::string::npos; });
  }

  boost::asio::io_context io;
  TemporaryDirectory directory;
  process::Launcher launcher = process::Launcher::create().value();
  PmixServer server{"a-1"};
  std::vector<std::vector<std::string>> variables;
  std::string failure, reason, said;
  PmixHelper helper{io.get_executor(),
                    launcher,
                    {[this](pmix_event::Frame frame) { step(frame); },
                     [this](std::string why) { step(pmix_event::Lost{std::move(why)}); },
                     [this](std::string_view line) { said.append(line).append("\n"); }}};
};

}  // namespace

TEST_CASE("ddrun-pmix gives its library the world, and each rank its variables") {
  PmixMachine machine("");
  REQUIRE(machine.run_until([&] { return !machine.variables.empty(); }));
  CHECK(machine.server.version() == "fake 1.0");
  CHECK(machine.variables ==
        std::vector<std::vector<std::string>>{{"PMIX_RANK=0", "PMIX_FAKE=1"}, {"PMIX_RANK=1", "PMIX_FAKE=1"}});
  CHECK(machine.says("client 1"));
  for (const std::string& line :
       {"pmix.hname 3 a-1"s, "pmix.srvr.tmpdir 3 " + machine.directory.path(), "pmix.job.size 2 "s,
        "pmix.univ.size 2 "s, "pmix.max.size 2 "s, "pmix.local.size 2 "s, "pmix.lpeers 0 0,1"s, "pmix.nmap 0 a-1"s,
        "pmix.pmap 0 0,1"s, "pmix.ndosub 1 "s, "pmix.nsdir 0 " + machine.directory.path(),
        "pmix.rank 1 \npmix.lrank 1 \npmix.nrank 1 \npmix.nodeid 0 \npmix.appnum 0 "s}) {
    CAPTURE(line);
    CHECK(machine.said.find(line + "\n") != std::string::npos);
  }
}

TEST_CASE("what ranks do by PMIx reaches the agent, and its answers them") {
  PmixMachine machine("c0 c1 b5 b300000 f0 a1");
  CHECK(machine.says("fenced 0 xxxxx\n"));
  CHECK(machine.says("fenced 0 " + std::string(1024, 'x')));
  CHECK(machine.says("done 0 abort\n"));
  CHECK(machine.failure == "1 called MPI_Abort(37)");
  machine.step(pmix_event::Ended{0, true});
  CHECK(machine.says("gone 0"));
  machine.step(pmix_event::End{});
  CHECK(machine.says("gone 1"));
  CHECK(machine.says("end 0 ddrun-"));
  CHECK(machine.reason.empty());
}

TEST_CASE("what ends ddrun-pmix is said") {
  SECTION("a library that is missing") {
    PmixMachine machine("", "/nowhere/libpmix.so.2");
    CHECK(machine.run_until([&] { return !machine.reason.empty(); }));
    CHECK(machine.reason.starts_with("cannot serve PMIx: /nowhere/libpmix.so.2: "));
  }
  SECTION("a library that is another") {
    PmixMachine machine("", "libc.so.6");
    CHECK(machine.run_until([&] { return !machine.reason.empty(); }));
    CHECK(machine.reason.find("PMIx_Get_version") != std::string::npos);
  }
  SECTION("a library that refuses") {
    PmixMachine machine("no init");
    CHECK(machine.run_until([&] { return !machine.reason.empty(); }));
    CHECK(machine.reason == "cannot serve PMIx: server_init: ERROR");
  }
  SECTION("its own end") {
    PmixMachine machine("c0 k");
    CHECK(machine.run_until([&] { return !machine.reason.empty(); }));
    CHECK(machine.reason.starts_with("the PMIx server (ddrun-pmix) has ended: "));
  }
}

TEST_CASE("ddrun-pmix ends with its socket, and is named") {
  std::string tag;
  {
    PmixMachine machine("");
    REQUIRE(machine.run_until([&] { return !machine.variables.empty(); }));
    tag = "TEST_TAG=" + machine.directory.path();
    const auto pids = processes_with(tag);
    REQUIRE(pids.size() == 1);
    CHECK(read_file(concat("/proc/", pids[0], "/comm")) == "ddrun-pmix\n");
  }
  CHECK(processes_with(tag).empty());
}
