// Answers to the ranks of one machine, and how their ends are judged.

#include "ddrun/test/catch.hpp"
#include "node.hpp"
#include "process_mapping.hpp"

using namespace ddrun;
using namespace ddrun::pmi;
using namespace ddrun::test;
using namespace std::chrono_literals;

TEST_CASE("a rank is given its world") {
  Node node({.size = 3, .ranks = {2, 0}, .appnums = {1}, .nodes = 2, .random = "0123456789abcdef"});
  node.step(pmi_event::Exchanged{0, 0, {node.contributions.at(0).blob, encode_node({1}, "")}, true});
  CHECK_FALSE(node.server.was_used());
  CHECK(node.ask(0, "cmd=init pmi_version=1 pmi_subversion=2") ==
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0");
  CHECK(node.server.was_used());
  CHECK(node.ask(0, "cmd=get_maxes") == "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024");
  CHECK(node.ask(0, "cmd=get_appnum") == "cmd=appnum appnum=1");
  CHECK(node.ask(0, "cmd=get_my_kvsname") == "cmd=my_kvsname kvsname=ddrun-30313233343536373839616263646566");
  CHECK(node.ask(0, "cmd=get_universe_size") == "cmd=universe_size size=3");
  CHECK(node.ask(0, "cmd=get kvsname=k key=PMI_process_mapping") ==
        "cmd=get_result rc=0 msg=success value=(vector,(0,2,1))");
  node.init(1);
  CHECK(node.ask(1, "cmd=get_appnum") == "cmd=appnum appnum=0");
  CHECK(node.cut_off.empty());
}

TEST_CASE("keys are stored, and what is not stored is not found") {
  Node node = Node::with(1);
  node.init(0);
  const std::string name(64, 'k'), value(674, '\\');
  CHECK(node.ask(0, "cmd=put kvsname=k key=" + name + " value=" + value) == "cmd=put_result rc=0 msg=success");
  const std::string answer = node.ask(0, "cmd=get kvsname=k key=" + name);
  CHECK(answer == "cmd=get_result rc=0 msg=success value=" + value);
  CHECK(answer.size() + 1 < 1024);
  CHECK(node.ask(0, "cmd=get key=PMI_hwloc_xmlfile") ==
        "cmd=get_result rc=-1 msg=key_PMI_hwloc_xmlfile_not_found value=unknown");
  CHECK(node.ask(0, "cmd=get").size() < 1024);
  CHECK(node.ask(0, "cmd=get key=" + std::string(60'000, 'k')).size() < 1024);
  CHECK(node.ask(0, "cmd=put key=PMI_x value=1").starts_with("cmd=put_result rc=-1"));
  CHECK(node.ask(0, "cmd=put value=1").starts_with("cmd=put_result rc=-1"));
  CHECK(node.ask(0, "cmd=put key=" + name + "x value=1").starts_with("cmd=put_result rc=-1"));
  CHECK(node.ask(0, "cmd=put key=a value=" + std::string(1025, 'v')).starts_with("cmd=put_result rc=-1"));
  CHECK(node.ask(0, "cmd=put key=a value=" + std::string(1024, 'v')).starts_with("cmd=put_result rc=0"));
  CHECK(node.ask(0, "cmd=get key=PMI_x").starts_with("cmd=get_result rc=-1"));
}

TEST_CASE("a barrier ends when all ranks are in it, and none of it has a tag") {
  Node node = Node::with(3);
  for (int slot = 0; slot < 3; ++slot) node.init(slot);
  for (int round = 0; round < 2; ++round) {
    CHECK(node.ask(0, "cmd=barrier_in").empty());
    CHECK(node.ask(2, "cmd=barrier_in group=WORLD:7").empty());
    node.barrier(1);
    for (int slot = 0; slot < 3; ++slot) CHECK(node.answer_to(slot) == "cmd=barrier_out");
  }
}

TEST_CASE("what is not offered fails by the library's own error") {
  Node node = Node::with(1);
  node.init(0);
  CHECK(node.ask(0, "cmd=publish_name service=x port=y").find(" rc=1 ") != std::string::npos);
  CHECK(node.ask(0, "cmd=unpublish_name service=x").starts_with("cmd=unpublish_result rc=1 "));
  CHECK(node.ask(0, "cmd=lookup_name service=x").starts_with("cmd=lookup_result rc=1 "));
  for (const std::string block : {"1", "2"}) {
    for (const std::string line : {"mcmd=spawn", "nprocs=1", "execname=./x", "totspawns=2", "arg1=cmd=abort exitcode=3",
                                   "argcnt=1", "preput_num=0", "info_num=0"}) {
      CHECK(node.ask(0, line).empty());
    }
    node.ask(0, "spawnssofar=" + block);
    CHECK(node.ask(0, "endcmd") == (block == "2" ? "cmd=spawn_result rc=-1" : ""));
  }
  CHECK(node.ask(0, "cmd=finalize") == "cmd=finalize_ack");
  // A session that begins after the last one has ended.
  CHECK(node.ask(0, "cmd=init pmi_version=1 pmi_subversion=1").ends_with("rc=0"));
  CHECK(node.ask(0, "cmd=finalize") == "cmd=finalize_ack");
  node.end(0);
  CHECK(node.failure().empty());
  CHECK(node.cut_off.empty());
}

TEST_CASE("PMI 2 is refused") {
  Node node = Node::with(1);
  CHECK(node.ask(0, "cmd=init pmi_version=2 pmi_subversion=0").ends_with("rc=-1"));
  CHECK_FALSE(node.server.was_used());
  node.end(0);
  CHECK(node.failure().empty());
}

TEST_CASE("garbage and commands out of order cut off that rank alone") {
  const auto cut_off = [](const std::vector<std::string>& lines) {
    Node node = Node::with(2);
    node.init(1);
    for (const auto& line : lines) node.ask(0, line);
    CHECK(node.failure().empty());
    CHECK(node.ask(1, "cmd=get_appnum") == "cmd=appnum appnum=0");
    if (node.cut_off.empty()) return std::string();
    CHECK(node.cut_off == std::vector{0});
    CHECK(node.ask(0, "cmd=get_appnum").empty());
    node.end(0);
    CHECK(node.failure().empty());
    REQUIRE(node.notices.size() == 1);
    return node.notices[0];
  };
  const std::string init = "cmd=init pmi_version=1 pmi_subversion=1";
  CHECK(cut_off({"GET / HTTP/1.1"}) == "closed the PMI connection of rank 0: it sent 'GET / HTTP/1.1'");
  CHECK(cut_off({init, "\x1b[31m\xff"}).find('\x1b') == std::string::npos);
  CHECK_FALSE(cut_off({init, "cmd=create_kvs"}).empty());
  CHECK_FALSE(cut_off({"cmd=get_maxes"}).empty());
  CHECK_FALSE(cut_off({"mcmd=spawn"}).empty());
  CHECK_FALSE(cut_off({init, init}).empty());
  CHECK_FALSE(cut_off({init, "cmd=barrier_in", "cmd=put key=a value=b"}).empty());
  CHECK_FALSE(cut_off({init, "cmd=finalize", "cmd=get key=a"}).empty());
  CHECK(cut_off({init, "cmd=finalize"}).empty());

  Node node = Node::with(2);
  node.step(pmi_event::Garbage{1, "a line of more than 64 KiB"});
  node.step(pmi_event::Garbage{1, "a line of more than 64 KiB"});
  CHECK(node.cut_off == std::vector{1});
  CHECK(node.notices ==
        std::vector<std::string>{"closed the PMI connection of rank 1: it sent a line of more than 64 KiB"});
}

// ---- ends

TEST_CASE("MPI_Abort is a failure at once, in each state of a rank") {
  const auto failure = [](const std::string& line, const std::vector<std::string>& before = {}) {
    Node node = Node::with(2);
    for (const auto& one : before) node.ask(1, one);
    CHECK(node.ask(1, line).empty());
    CHECK(node.cut_off.empty());
    // Its own end says nothing more, and its commands after it have no answer.
    CHECK(node.ask(1, "cmd=finalize").empty());
    const std::string text = node.failure();
    node.end(1);
    CHECK(node.failure() == text);
    return text;
  };
  const std::string init = "cmd=init pmi_version=1 pmi_subversion=1";
  CHECK(failure("cmd=abort exitcode=37", {init}) == "1: called MPI_Abort(37) (37)");
  CHECK(failure("cmd=abort exitcode=37 message=application called MPI_Abort(w, 37) - process 1", {init}) ==
        "1: called MPI_Abort(37) (37)");
  CHECK(failure("cmd=abort exitcode=0 message=abort", {init, "cmd=barrier_in"}) == "1: called MPI_Abort(0) (1)");
  CHECK(failure("cmd=abort exitcode=256", {init, "cmd=finalize"}) == "1: called MPI_Abort(256) (1)");
  CHECK(failure("cmd=abort exitcode=-1") == "1: called MPI_Abort(-1) (255)");
  CHECK(failure("cmd=abort exitcode=99999999999", {init}) == "1: called MPI_Abort() (1)");
  CHECK(failure("cmd=abort") == "1: called MPI_Abort() (1)");
}

TEST_CASE("of two aborts the first is the cause") {
  Node node = Node::with(2);
  node.ask(1, "cmd=abort exitcode=2");
  node.ask(0, "cmd=abort exitcode=3");
  CHECK(node.failure() == "1: called MPI_Abort(2) (2)");
}

TEST_CASE("an end without MPI_Init is a failure only if others wait in it") {
  Node node = Node::with(4);
  SECTION("none waits") {
    node.end(3);
    CHECK(node.failure().empty());
    SECTION("one comes to wait") {
      node.init(1);
      CHECK(node.failure() == "3: ended without MPI_Init, for which rank 1 waits (1)");
    }
    SECTION("all others end so, too") {
      for (int slot = 0; slot < 3; ++slot) node.end(slot);
      CHECK(node.failure().empty());
      CHECK_FALSE(node.server.next_deadline());
    }
  }
  SECTION("two wait, as MPICH 5 without a command, and earlier ones in a barrier") {
    node.init(0);
    node.init(2);
    node.barrier(2);
    node.end(3);
    CHECK(node.failure() == "3: ended without MPI_Init, for which ranks 0,2 wait (1)");
  }
  SECTION("those that have finalized do not wait") {
    node.init(0);
    node.ask(0, "cmd=finalize");
    node.end(3);
    CHECK(node.failure().empty());
  }
  SECTION("with another status it is the agent's") {
    node.init(0);
    node.end(3, false);
    node.init(1);
    node.barrier(1);
    CHECK(node.failure().empty());
  }
}

TEST_CASE("an end after MPI_Init without MPI_Finalize is a failure unless the last command was a barrier") {
  Node node = Node::with(2);
  node.init(0);
  node.init(1);
  SECTION("after a get") {
    node.ask(1, "cmd=get key=a");
    node.end(1);
    CHECK(node.failure() == "1: ended without MPI_Finalize (1)");
  }
  SECTION("within MPI_Comm_spawn") {
    node.ask(1, "mcmd=spawn");
    node.end(1);
    CHECK(node.failure() == "1: ended without MPI_Finalize (1)");
  }
  SECTION("by a status of its own") {
    node.end(1, false);
    CHECK(node.failure().empty());
    CHECK_FALSE(node.server.next_deadline());
  }
  SECTION("after a session that was finalized") {
    node.ask(1, "cmd=finalize");
    node.init(1);
    node.end(1);
    CHECK(node.failure() == "1: ended without MPI_Finalize (1)");
  }
  SECTION("after a barrier") {
    node.barrier(0);
    node.barrier(1);
    node.now += 1s;
    node.end(1);
    CHECK(node.failure().empty());
    CHECK(node.server.next_deadline() == node.now + 10s);
    SECTION("by no clock") {
      node.now += 9s;
      node.step(pmi_event::TimeIsUp{});
      CHECK(node.notices.empty());
      node.now += 1s;
      node.step(pmi_event::TimeIsUp{});
      CHECK(node.notices ==
            std::vector<std::string>{"rank 1 ended without MPI_Finalize after a barrier, and rank 0 still runs; "
                                     "--exit-skew limits how long"});
      CHECK_FALSE(node.server.next_deadline());
      node.now += 24h;
      node.step(pmi_event::TimeIsUp{});
      node.end(0);
      CHECK(node.notices.size() == 1);
      CHECK(node.failure().empty());
    }
    SECTION("all others end so, too") {
      node.end(0);
      CHECK_FALSE(node.server.next_deadline());
      CHECK(node.failure().empty());
    }
    SECTION("another rank enters a barrier") {
      node.barrier(0);
      CHECK(node.failure() == "1: ended without MPI_Finalize, but rank 0 waits for it in a barrier (1)");
      CHECK_FALSE(node.server.next_deadline());
    }
  }
  SECTION("in a barrier that another rank has left and entered again") {
    node.barrier(0);
    node.barrier(1);
    node.barrier(0);
    node.end(1);
    CHECK(node.failure() == "1: ended without MPI_Finalize, but rank 0 waits for it in a barrier (1)");
  }
}

TEST_CASE("an end after MPI_Finalize is a failure only if others wait in a barrier") {
  Node node = Node::with(2);
  node.init(0);
  node.init(1);
  node.ask(1, "cmd=finalize");
  node.end(1);
  CHECK(node.failure().empty());
  node.barrier(0);
  CHECK(node.failure() == "1: ended, but rank 0 waits for it in a barrier (1)");
}

TEST_CASE("the names of MPICH 5's segments follow from the name of the key space") {
  Node node({.size = 2, .ranks = {1}, .nodes = 2, .random = {}});
  node.step(pmi_event::Exchanged{0, 0, {encode_node({0}, std::string(16, '\0')), node.contributions.at(0).blob}, true});
  // FNV-1a of "ddrun-" and 32 zeros; this machine is the second one of the mapping.
  CHECK(node.server.segments() == std::vector<std::string>{"mpich_shm_e1854dd5_1", "mpich_vci_e1854dd5_1"});
}
