// Several machines: the name of the key space and the puts of a barrier travel in blobs.

#include <algorithm>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "node.hpp"
#include "process_mapping.hpp"

using namespace ddrun;
using namespace ddrun::pmi;
using namespace ddrun::test;

namespace {

/// Machines with two ranks each, by turns, and the coordinator between them.
class Job {
 public:
  explicit Job(int machines) : machines_(machines) {
    World world{.size = 2 * machines, .ranks = {}, .nodes = machines, .random = {}};
    for (int i = 0; i < machines; ++i) {
      world.ranks = {i, i + machines};
      world.random = i == 0 ? std::string(16, '\2') : "";
      nodes.emplace_back(world);
    }
  }
  [[nodiscard]] Node& node_of(int rank) { return nodes[static_cast<std::size_t>(rank % machines_)]; }
  std::string ask(int rank, const std::string& line) { return node_of(rank).ask(rank / machines_, line); }
  [[nodiscard]] std::string answer_to(int rank) { return node_of(rank).answer_to(rank / machines_); }
  [[nodiscard]] int size() const { return 2 * machines_; }

  /// If all have contributed to the next tag, passes the blobs on, one in each part.
  bool exchange() {
    if (std::any_of(nodes.begin(), nodes.end(), [&](const Node& node) { return node.contributions.size() <= tag_; })) {
      return false;
    }
    for (int first = 0; first < machines_; ++first) {
      const auto& sent = nodes[static_cast<std::size_t>(first)].contributions[tag_];
      CHECK(sent.tag == tag_);
      for (Node& node : nodes) {
        node.answers.clear();
        node.step(pmi_event::Exchanged{sent.tag, first, {sent.blob}, first + 1 == machines_});
      }
    }
    ++tag_;
    return true;
  }

  std::vector<Node> nodes;

 private:
  int machines_;
  std::size_t tag_ = 0;
};

}  // namespace

TEST_CASE("ranks of several machines have one key space, name and mapping") {
  const int machines = GENERATE(2, 3);
  Job job(machines);
  REQUIRE(job.exchange());
  const std::string name = "cmd=my_kvsname kvsname=ddrun-02020202020202020202020202020202";
  for (int rank = 0; rank < job.size(); ++rank) {
    job.ask(rank, "cmd=init pmi_version=1 pmi_subversion=1");
    CHECK(job.ask(rank, "cmd=get_my_kvsname") == name);
    CHECK(job.ask(rank, "cmd=get kvsname=x key=PMI_process_mapping") ==
          concat("cmd=get_result rc=0 msg=success value=(vector,(0,", machines, ",1))"));
    CHECK(job.ask(rank, "cmd=get_universe_size") == concat("cmd=universe_size size=", job.size()));
  }
  for (int fence = 1; fence <= 3; ++fence) {
    for (int rank = 0; rank < job.size(); ++rank) {
      job.ask(rank, concat("cmd=put kvsname=x key=r", rank, "-", fence, " value=", rank * fence));
    }
    for (int rank = 0; rank < job.size(); ++rank) {
      CHECK_FALSE(job.exchange());
      CHECK(job.ask(rank, "cmd=barrier_in").empty());
    }
    REQUIRE(job.exchange());
    for (int rank = 0; rank < job.size(); ++rank) CHECK(job.answer_to(rank) == "cmd=barrier_out");
    for (int rank = 0; rank < job.size(); ++rank) {
      for (int other = 0; other < job.size(); ++other) {
        CHECK(job.ask(rank, concat("cmd=get kvsname=x key=r", other, "-", fence)) ==
              concat("cmd=get_result rc=0 msg=success value=", other * fence));
      }
    }
  }
  for (Node& node : job.nodes) {
    CHECK(node.failure().empty());
    CHECK(node.cut_off.empty());
    // Each batch has what is new.
    REQUIRE(node.contributions.size() == 4);
    CHECK(node.contributions[3].blob.size() < 2 * (4 + 4 + 8 + 8));
  }
}

TEST_CASE("what depends on the name waits for node rank 0's bytes") {
  Job job(2);
  Node& second = job.nodes[1];
  second.init(0);
  second.init(1);
  CHECK(second.server.segments().empty());
  CHECK(second.ask(0, "cmd=get_my_kvsname").empty());
  CHECK(second.ask(1, "cmd=get kvsname=x key=PMI_process_mapping").empty());
  CHECK(second.ask(1, "cmd=get_appnum").empty());
  CHECK(second.cut_off == std::vector{1});
  SECTION("and is answered with them") {
    REQUIRE(job.exchange());
    second.ask(0, "cmd=put kvsname=x key=a value=b");
    CHECK(second.answer_to(0) == "cmd=put_result rc=0 msg=success");
    CHECK(second.server.segments().size() == 2);
    CHECK(second.server.segments()[0].ends_with("_1"));
  }
  SECTION("an abort does not wait") {
    second.ask(0, "cmd=abort exitcode=4");
    CHECK(second.failure() == "0: called MPI_Abort(4) (4)");
  }
  SECTION("an end does not, either") {
    second.end(0);
    CHECK(second.failure() == "0: ended without MPI_Finalize (1)");
  }
  SECTION("entries that do not fit are no world") {
    const std::string name(16, 'n');
    const std::string first = encode_node({0, 2}, name), other = encode_node({1, 3}, "");
    const std::vector<std::vector<std::string>> wrong = {
        {encode_node({0, 2}, "short"), other},  // no name
        {other, first},                         // node rank 0 has none
        {first, first},                         // two nodes have a rank
        {first, encode_node({1}, "")},          // none has rank 3
        {first, encode_node({1, 3, 4}, "")},    // nor is there a rank 4
        {first, encode_node({1, -2}, "")},
        {first, "x"},
        {first},
    };
    const auto& blobs = wrong[static_cast<std::size_t>(GENERATE(range(0, 8)))];
    second.step(pmi_event::Exchanged{0, 0, blobs, true});
    second.step(pmi_event::Exchanged{0, 0, {first, other}, true});
    CHECK(second.failure() == "0: has no key space: the machines do not agree on the ranks of the world (1)");
  }
}

TEST_CASE("a barrier's keys are bounded for one exchange") {
  Job job(2);
  REQUIRE(job.exchange());
  Node& node = job.nodes[0];
  node.init(0);
  node.init(1);
  const std::string value(1024, 'v');
  int puts = 0;
  // Each takes 8 bytes for two lengths, and 9 for the key.
  for (; (puts + 1) * (8 + 9 + 1024) <= 3 * 1024 * 1024; ++puts) {
    node.ask(puts % 2, concat("cmd=put kvsname=x key=key", 100'000 + puts, " value=", value));
  }
  SECTION("as many as fit") {
    node.barrier(0);
    node.barrier(1);
    CHECK(node.failure().empty());
    REQUIRE(node.contributions.size() == 2);
    CHECK(node.contributions[1].blob.size() <= 3 * 1024 * 1024);
  }
  SECTION("one more") {
    node.ask(0, concat("cmd=put kvsname=x key=key", 100'000 + puts, " value=", value));
    node.barrier(1);
    node.barrier(0);
    CHECK(node.failure().find("0: put too many keys for one exchange") == 0);
    CHECK(node.contributions.size() == 1);
  }
}

TEST_CASE("a blob that no rank could have put ends the round, and one of another tag is ignored") {
  Job job(2);
  REQUIRE(job.exchange());
  Node& node = job.nodes[0];
  node.init(0);
  node.init(1);
  node.barrier(0);
  node.step(pmi_event::Exchanged{1, 0, {"", ""}, true});
  CHECK(node.answers.empty());
  node.barrier(1);
  node.step(pmi_event::Exchanged{0, 0, {encode_node({0, 2}, std::string(16, 'x')), encode_node({1, 3}, "")}, true});
  node.step(pmi_event::Exchanged{2, 0, {"", ""}, true});
  node.step(pmi_event::Exchanged{1, 0, {""}, false});
  CHECK(node.answers.empty());
  SECTION("malformed") {
    node.step(pmi_event::Exchanged{1, 1, {"x"}, true});
    CHECK(node.failure().find("0: cannot use the keys of node rank 1") == 0);
    CHECK(node.answers.empty());
  }
  SECTION("in order") {
    node.step(pmi_event::Exchanged{1, 1, {""}, true});
    CHECK(node.answer_to(0) == "cmd=barrier_out");
    node.answers.clear();
    node.step(pmi_event::Exchanged{1, 1, {""}, true});
    CHECK(node.answers.empty());
  }
}
