#pragma once

#include <vector>

#include "ddrun/rendezvous/messages.hpp"

namespace ddrun::test {

/// Each message of the control protocol, with non-default fields.
inline std::vector<rendezvous::FromAgent> messages_of_agent() {
  using namespace rendezvous;
  return {
      Join{"0.1.0",
           "job",
           "a1b2",
           "node7",
           3,
           true,
           8,
           "trainer",
           "10.0.0.7",
           {{"k", "v"}, {"max_nodes", "4"}},
           {"10.0.0.7", "fd00::7"},
           {17, 5, 2, 4, "{}", true, true},
           "boot 1"},
      Opened{1, 29500},
      Failed{2, 9, 1, 4711, true, 9, true, false, "out of memory", "", true, true},
      Succeeded{std::uint64_t{1} << 40},
      Stopped{
          3, {R"({"rank":9})", "{}", true, true, true, -5, "boom"}, R"([{"rank":8},{"rank":9}])", {"{}", "node8", -1}},
      Leave{LeaveKind::skewed, 124, "rank 3 still runs"},
      Pong{4'000'000'000, 33'000, 1'000'000'000'000},
      Resume{"17.a1b2", 12},
      PassSignal{5, 10},
      Exchange{5, 3, "keys"},
      Ask{1, 1, "all", true},
      Stacks{2, false, "part"},
  };
}

inline std::vector<rendezvous::FromCoordinator> messages_of_coordinator() {
  using namespace rendezvous;
  Start start;
  start.round = 5;
  start.ranks = {.run_id = "",
                 .restart_count = 1,
                 .max_restarts = 3,
                 .node_rank = 2,
                 .node_count = 4,
                 .base_rank = 16,
                 .local_world_size = 8,
                 .world_size = 32,
                 .role_base_rank = 6,
                 .role_world_size = 24,
                 .master_addr = "fd00::7",
                 .master_port = 65535,
                 .host = "node7",
                 .hosts = "node5, node6"};
  start.term = 17;
  start.job_state = R"({"restarts":1})";
  return {
      Welcome{"node0", 500, 4, "17.a1b2", 18},
      Refused{RefusalKind::not_needed, "all have finished"},
      Waiting{1, 2, 4, true, "a place"},
      Open{5, "10.0.0.1", {"10.0.0.1", "", "fd00::7"}},
      start,
      Stop{5, true, "node7 joins", 10, 3, true},
      VerdictMessage{VerdictKind::node_lost, 125, 9, "node7", 2, 16, "node7 is silent", "{}", {"[]", "node8", 3}, 3},
      Log{LogKind::report, "[]", 5, 2, "node7"},
      Ping{4'000'000'000, 1'000'000'000'000, 3'999'999'999},
      Resumed{12},
      PassSignal{5, 10},
      Exchanged{5, 3, 1, {"keys", ""}, true},
      Look{3, 1, "all"},
      Page{4, 2, "node7", true, "part", {"node8: was lost"}},
  };
}

}  // namespace ddrun::test
