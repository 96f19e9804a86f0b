// PMIx for the ranks of a machine: frames to the helper and from it, and how ends are judged.

#include "ddrun/pmi/pmix_server.hpp"

#include <algorithm>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "helper_frames.hpp"

using namespace ddrun;
using namespace ddrun::pmi;

namespace {

/// A START as the helper reads it, in one line.
std::string describe_start(const std::string& frame) {
  bytes::Reader reader(std::string_view(frame).substr(frame_head_bytes));
  std::string text;
  for (int i = 0; i < 5; ++i) text += concat(reader.text(), " ");
  for (int i = 0; i < 4; ++i) text += concat(reader.number<std::int64_t>(), " ");
  for (const int numbers : {2, 3}) {
    text += "|";
    for (auto left = reader.number<std::int64_t>(); left > 0; --left) {
      for (int j = 0; j < numbers; ++j) text += concat(j == 0 ? " " : ",", reader.number<std::int64_t>());
    }
  }
  CHECK(reader.ok());
  CHECK(reader.left().empty());
  return text;
}

/// A PmixServer, and what it has done.
struct PmixNode {
  explicit PmixNode(const std::string& label) : server(label) {}
  void step(const PmixEvent& event) {
    for (const auto& action : server.step(event)) {
      if (const auto* tell = std::get_if<pmix_action::Tell>(&action)) told.push_back(tell->frame);
      if (const auto* sent = std::get_if<pmix_action::Contribute>(&action)) contributions.push_back(*sent);
      if (const auto* ready = std::get_if<pmix_action::Ready>(&action)) variables = ready->variables;
      if (const auto* fail = std::get_if<pmix_action::Fail>(&action))
        failure += concat(fail->slot, ": ", fail->why, " (", fail->code, ")");
      if (const auto* gave_up = std::get_if<pmix_action::GiveUp>(&action)) reasons.push_back(gave_up->why);
    }
  }
  /// A frame of the helper with these fields.
  template <class... Fields>
  void says(helper_frame_type type, const Fields&... fields) {
    step(pmix_event::Frame{type, make_frame(type, fields...).substr(frame_head_bytes)});
  }
  void opened(const std::string& version = "OpenPMIx 5.0.11") { says(helper_frame_opened, version); }
  void ready(const std::string& nspace, int slots) {
    std::string list;
    for (int slot = 0; slot < slots; ++slot) {
      put_field(list, 1);
      put_field(list, concat("PMIX_RANK=", slot));
    }
    says(helper_frame_ready, nspace, slots, Raw{list});
  }
  void fence(int request, const std::string& blob) { says(helper_frame_fence, request, blob); }
  void aborts(int slot, int status) { says(helper_frame_aborted, slot, status, 7); }
  void ends(int slot, bool success = true) { step(pmix_event::Ended{slot, success}); }
  /// "answer 5 status 0: ab" of the last frame told.
  [[nodiscard]] std::string last_answer() const {
    bytes::Reader reader(std::string_view(told.back()).substr(frame_head_bytes));
    if (told.back()[sizeof(std::uint32_t)] != helper_frame_answer) return "";
    const auto request = reader.number<std::int64_t>();
    const auto status = reader.number<std::int64_t>();
    return concat("answer ", request, " status ", status, ": ", reader.text());
  }

  PmixServer server;
  std::vector<std::string> told;
  std::vector<pmix_action::Contribute> contributions;
  std::vector<std::vector<std::string>> variables;
  std::string failure;
  std::vector<std::string> reasons;
};

const std::string pmix_nspace = "ddrun-" + std::string(32, '1');

World pmix_world(std::vector<int> ranks, int size, int nodes, bool first = true) {
  return {.size = size, .ranks = std::move(ranks), .nodes = nodes, .random = first ? std::string(16, '\x11') : ""};
}

/// One machine whose three ranks run.
PmixNode running_node() {
  PmixNode machine("a");
  machine.step(pmix_event::Begin{pmix_world({0, 1, 2}, 3, 1), 0, "/dev/shm/x", false});
  machine.opened();
  machine.ready(pmix_nspace, 3);
  return machine;
}

/// Machines of which each has every n-th rank, and the coordinator between them.
struct PmixJob {
  explicit PmixJob(int count) {
    for (int i = 0; i < count; ++i) {
      PmixNode& machine = machines.emplace_back(std::string(1, static_cast<char>('a' + i)));
      machine.opened();
      machine.step(pmix_event::Begin{pmix_world({i, i + count}, 2 * count, count, i == 0), i, "/d", true});
    }
  }
  /// Passes on the blobs of the next tag, one in each part.
  void exchange() {
    for (std::size_t first = 0; first < machines.size(); ++first) {
      REQUIRE(machines[first].contributions.size() == tag + 1);
      const auto sent = machines[first].contributions[tag];
      CHECK(sent.tag == (0x80000000U | tag));
      for (PmixNode& machine : machines) {
        machine.step(
            pmix_event::Exchanged{sent.tag, static_cast<int>(first), {sent.blob}, first + 1 == machines.size()});
      }
    }
    ++tag;
  }
  std::vector<PmixNode> machines;
  std::uint32_t tag = 0;
};

}  // namespace

TEST_CASE("the helper gets the world of one machine, when it has opened its library") {
  PmixNode machine("a");
  World world = pmix_world({0, 1, 2}, 3, 1);
  world.appnums = {0, 1};
  machine.step(pmix_event::Begin{world, 0, "/dev/shm/x", false});
  CHECK(machine.told.empty());
  machine.opened();
  CHECK(machine.server.version() == "OpenPMIx 5.0.11");
  REQUIRE(machine.told.size() == 1);
  CHECK(describe_start(machine.told[0]) == pmix_nspace + " /dev/shm/x a 0,1,2 0,1,2 3 1 0 0 | 0,0 1,1 2,0| 0,3,0");
  CHECK(machine.variables.empty());
  machine.ready("ddrun-of-the-round-before", 3);
  CHECK(machine.variables.empty());
  machine.ready(pmix_nspace, 3);
  REQUIRE(machine.variables.size() == 3);
  CHECK(machine.variables[2] == std::vector<std::string>{"PMIX_RANK=2"});
  machine.fence(5, "ab");
  CHECK(machine.last_answer() == "answer 5 status 0: ab");
  CHECK(machine.contributions.empty());
}

TEST_CASE("machines tell each other their ranks and the blobs of each fence") {
  const int count = GENERATE(2, 3);
  PmixJob job(count);
  for (const PmixNode& machine : job.machines) CHECK(machine.told.empty());
  job.exchange();
  const std::string all = count == 2 ? " a,b 0,2;1,3" : " a,b,c 0,3;1,4;2,5";
  for (int i = 0; i < count; ++i) {
    PmixNode& machine = job.machines[static_cast<std::size_t>(i)];
    REQUIRE(machine.told.size() == 1);
    const std::string start = describe_start(machine.told[0]);
    CHECK(start.starts_with(
        concat(pmix_nspace, " /d", all, " ", i, ",", i + count, " ", 2 * count, " ", count, " ", i, " 1 |")));
    CAPTURE(start);
    CHECK(start.ends_with(concat(" ", 2 * count - 2, ",1,", count - 2, " ", 2 * count - 1, ",1,", count - 1)));
    machine.ready(pmix_nspace, 2);
    CHECK(machine.variables.size() == 2);
  }
  // A fence that is begun before the last one is done waits for it.
  for (PmixNode& machine : job.machines) {
    machine.fence(1, "x");
    machine.fence(2, "y");
    CHECK(machine.contributions.size() == 2);
  }
  job.exchange();
  for (const PmixNode& machine : job.machines)
    CHECK(machine.last_answer() == concat("answer 1 status 0: ", std::string(static_cast<std::size_t>(count), 'x')));
  job.exchange();
  for (const PmixNode& machine : job.machines)
    CHECK(machine.last_answer() == concat("answer 2 status 0: ", std::string(static_cast<std::size_t>(count), 'y')));
}

TEST_CASE("no rank starts on machines with different versions, or that do not agree on the ranks") {
  PmixNode a("a"), b("b");
  a.opened();
  b.opened("OpenPMIx 4.2.2");
  a.step(pmix_event::Begin{pmix_world({0}, 2, 2), 0, "/d", false});
  b.step(pmix_event::Begin{pmix_world({1}, 2, 2, false), 1, "/d", false});
  const std::string ours = a.contributions.at(0).blob, theirs = b.contributions.at(0).blob;
  SECTION("versions") {
    for (PmixNode* machine : {&a, &b}) {
      machine->step(pmix_event::Exchanged{pmix_tag, 0, {ours, theirs}, true});
      CHECK(machine->reasons ==
            std::vector<std::string>{"cannot serve PMIx: OpenPMIx 5.0.11 on a, but OpenPMIx 4.2.2 on b; all machines "
                                     "need the same libpmix, see --mpi-lib"});
    }
  }
  SECTION("ranks") {
    const auto blobs = GENERATE_COPY(std::vector{ours, ours}, std::vector{ours},
                                     std::vector{ours, theirs + "x", theirs}, std::vector{ours, std::string("\1")});
    a.step(pmix_event::Exchanged{pmix_tag, 0, blobs, true});
    CHECK(a.reasons == std::vector<std::string>{"cannot serve PMIx: the machines do not agree on their ranks"});
  }
  CHECK(a.told.empty());
}

TEST_CASE("how ranks of PMIx end is judged by what they have said") {
  PmixNode machine = running_node();
  const auto connects = [&](int slot) { machine.says(helper_frame_connected, slot); };
  SECTION("after MPI_Finalize") {
    for (const int slot : {0, 1, 2}) connects(slot);
    for (const int slot : {0, 1, 2}) machine.says(helper_frame_finalized, slot);
    for (const int slot : {0, 1, 2}) machine.ends(slot);
    CHECK(machine.failure.empty());
  }
  SECTION("without MPI_Finalize") {
    connects(1);
    machine.ends(1);
    machine.ends(0);
    CHECK(machine.failure == "1: ended without MPI_Finalize (1)");
  }
  SECTION("with an error, which counts by itself") {
    connects(1);
    machine.ends(1, false);
    CHECK(machine.failure.empty());
  }
  SECTION("by a rank that is not here") {
    machine.aborts(GENERATE(-1, 3), 37);
    CHECK(machine.failure.empty());
  }
  SECTION("by MPI_Abort") {
    const auto [number, code] = GENERATE(table<int, int>({{37, 37}, {0, 1}, {256, 1}, {-1, 255}}));
    connects(2);
    machine.aborts(2, number);
    CHECK(machine.failure == concat("2: called MPI_Abort(", number, ") (", code, ")"));
    CHECK(machine.last_answer() == "answer 7 status 0: ");
  }
  SECTION("without MPI_Init, while another rank is in it or comes to it") {
    if (GENERATE(true, false)) connects(0);
    machine.ends(1);
    connects(0);
    CHECK(machine.failure == "1: ended without MPI_Init, for which other ranks wait (1)");
  }
  SECTION("without MPI_Init, as all do") {
    for (const int slot : {0, 1, 2}) machine.ends(slot);
    CHECK(machine.failure.empty());
    CHECK_FALSE(machine.server.was_used());
  }
}

TEST_CASE("without its helper a round cannot go on, and no other begins") {
  PmixNode machine = running_node();
  const std::string why = "the PMIx server (ddrun-pmix) has ended: killed";
  SECTION("in a round") {
    machine.step(pmix_event::Lost{"killed"});
    CHECK(machine.reasons == std::vector{why});
    machine.step(pmix_event::Lost{"again"});
  }
  SECTION("when all ranks have ended, or between rounds") {
    if (GENERATE(true, false)) machine.step(pmix_event::End{});
    for (const int slot : {0, 1, 2}) machine.ends(slot);
    machine.step(pmix_event::Lost{"killed"});
    CHECK(machine.reasons.empty());
    machine.step(pmix_event::Begin{pmix_world({0, 1, 2}, 3, 1), 0, "/d", false});
    CHECK(machine.reasons == std::vector{why});
  }
  SECTION("that sends what is no frame") {
    machine.step(pmix_event::Frame{GENERATE(0, 1, 63, 200), {}});
    CHECK(machine.reasons == std::vector<std::string>{"the PMIx server (ddrun-pmix) sent a frame of an unknown type"});
  }
  SECTION("that sends a frame that is cut off") {
    machine.says(helper_frame_aborted, 0);
    CHECK(machine.reasons == std::vector<std::string>{"the PMIx server (ddrun-pmix) sent a malformed frame"});
  }
  CHECK(machine.reasons.size() == 1);
}

TEST_CASE("any bytes of the helper are read safely") {
  std::mt19937 random(68);
  for (int i = 0; i < 2000; ++i) {
    PmixNode machine("a");
    machine.step(pmix_event::Begin{pmix_world({0, 1}, 2, 1), 0, "/d", false});
    machine.opened();
    machine.ready(pmix_nspace, 2);
    std::string payload = make_frame(helper_frame_ready, pmix_nspace, 1, 1, "A=b").substr(frame_head_bytes);
    for (int change = 0; change < 3; ++change) payload[random() % payload.size()] = static_cast<char>(random() % 3);
    machine.step(pmix_event::Frame{static_cast<int>(helper_frame_opened + random() % 8), payload});
    machine.ends(0);
    CHECK(machine.reasons.size() <= 1);
  }
}

TEST_CASE("a restart is a new name space") {
  PmixNode machine = running_node();
  machine.says(helper_frame_connected, 0);
  machine.ends(0, false);
  machine.step(pmix_event::End{});
  CHECK(machine.told.back()[sizeof(std::uint32_t)] == helper_frame_end);
  World world = pmix_world({0, 1, 2}, 3, 1);
  world.random.assign(16, '\x22');
  machine.step(pmix_event::Begin{world, 0, "/e", false});
  CHECK(describe_start(machine.told.back()).starts_with("ddrun-" + std::string(32, '2') + " /e a "));
  machine.says(helper_frame_finalized, 0);  // of the round before
  machine.ready(pmix_nspace, 3);
  machine.variables.clear();
  machine.ready("ddrun-" + std::string(32, '2'), 3);
  CHECK(machine.variables.size() == 3);
  machine.ends(0);
  CHECK(machine.failure.empty());
}
