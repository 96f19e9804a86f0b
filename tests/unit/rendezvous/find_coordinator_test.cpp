#include "ddrun/rendezvous/find_coordinator.hpp"

#include <map>
#include <set>

#include "ddrun/test/catch.hpp"
#include "settings.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;

namespace {

/// A machine of the name "node3.cluster" with three addresses, and a name server that knows a few names.
struct Machine {
  LocalMachine local;
  int questions = 0;

  Machine() {
    local.host_name = "node3.cluster";
    for (const char* text : {"127.0.0.1", "10.0.0.3", "fd00::3"}) local.addresses.push_back(*IpAddress::parse(text));
    local.resolve = [this](const std::string& name) {
      ++questions;
      static const std::map<std::string, std::vector<std::string>> known{
          {"node3-ib", {"fd00::3", "10.0.0.3"}},
          {"node4", {"10.0.0.4"}},
          {"here", {"127.0.1.1"}},
          {"here-too", {"127.0.1.1", "10.0.0.3", "fd00::3"}},
          {"headless", {"10.0.0.4", "10.0.0.3", "10.0.0.5"}},
          {"others", {"10.0.0.4", "10.0.0.5"}},
          {"dual", {"10.0.0.3", "fd00::4"}}};
      const auto found = known.find(name);
      return found == known.end() ? std::vector<std::string>() : found->second;
    };
  }
};

RendezvousSpec at(const std::string& endpoint, const std::string& backend = "c10d") {
  RendezvousSpec spec;
  spec.min_nodes = spec.max_nodes = 2;
  spec.backend = backend;
  spec.endpoint = endpoint;
  return spec;
}

CoordinatorLocation found(const RendezvousSpec& spec) {
  const Machine machine;
  auto place = find_coordinator(spec, machine.local);
  if (!place) FAIL(place.error().message);
  return *place;
}

std::string refusal(const RendezvousSpec& spec) {
  const Machine machine;
  const auto place = find_coordinator(spec, machine.local);
  return place ? "" : place.error().message;
}

}  // namespace

TEST_CASE("the agent whose machine the endpoint names runs the coordinator") {
  for (const char* ours : {"node3", "node3.cluster", "node3-ib", "localhost", "127.0.0.1", "127.0.0.9", "10.0.0.3",
                           "[fd00::3]", "[fd00:0::3]", "[::ffff:10.0.0.3]", "[::1]", "here", "here-too"}) {
    INFO(ours);
    const auto place = found(at(std::string(ours) + ":29400"));
    CHECK(place.is_local);
    CHECK_FALSE(place.is_explicit);
    CHECK(place.ports == std::vector<std::uint16_t>{29400});
  }
  for (const char* other : {"node4", "node33", "node3.elsewhere", "10.0.0.33", "[fd00::4]", "unknown", "others"}) {
    INFO(other);
    CHECK_FALSE(found(at(std::string(other) + ":29400")).is_local);
  }
}

TEST_CASE("an address is compared without asking for a name, and a name is asked for once") {
  Machine machine;
  CHECK(find_coordinator(at("10.0.0.9:1"), machine.local));
  CHECK(find_coordinator(at("localhost:1"), machine.local));
  CHECK(machine.questions == 0);
  RendezvousSpec spec;
  spec.coordinators = {{"node4", 1}, {"node4", 2}, {"node4", 3}};
  const auto place = find_coordinator(spec, machine.local);
  REQUIRE(place);
  CHECK(machine.questions == 1);
  CHECK(place->ports == std::vector<std::uint16_t>{1, 2, 3});
}

TEST_CASE("a name that is this machine's and another's is refused, as each would run a coordinator") {
  const std::string c10d = refusal(at("headless:1"));
  CHECK(c10d ==
        "the endpoint's name headless has several addresses (10.0.0.4, 10.0.0.3, 10.0.0.5), and not all are this "
        "machine's: name one machine, or say which one runs the coordinator: --rdzv-conf=is_host=true there, "
        "is_host=false elsewhere");
  CHECK(refusal(at("dual:1")).find("(10.0.0.3, fd00::4)") != std::string::npos);
  CHECK(refusal(at("headless:1", "static")).find("--node-rank=0 there") != std::string::npos);
  RendezvousSpec spec = at("headless:1");
  for (const bool host : {true, false}) {
    spec.is_host = host;
    CHECK(found(spec).is_local == host);
  }
  spec = at("headless:1", "static");
  for (const int rank : {0, 1}) {
    spec.node_rank = rank;
    CHECK(found(spec).is_local == (rank == 0));
  }
}

TEST_CASE("our own name is another machine if it resolves to one, and this machine without an address") {
  for (const char* name : {"node3", "node3.cluster"}) {
    INFO(name);
    const auto looked_up = [&](std::vector<std::string> addresses) {
      Machine machine;
      machine.local.resolve = [&](const std::string&) { return addresses; };
      return find_coordinator(at(std::string(name) + ":1"), machine.local);
    };
    CHECK(looked_up({})->is_local);
    CHECK(looked_up({"127.0.1.1"})->is_local);
    CHECK(looked_up({"10.0.0.3", "fd00::3", "127.0.1.1"})->is_local);
    CHECK(looked_up({"10.0.0.3"})->warning.empty());
    CHECK_FALSE(looked_up({"10.0.0.3", "10.0.0.9"}));
    const auto copied = looked_up({"10.0.0.9"});
    REQUIRE(copied);
    CHECK_FALSE(copied->is_local);
    CHECK(copied->warning == std::string("this machine is called ") + name +
                                 ", but that name means 10.0.0.9, which it does not have: it does not run the "
                                 "coordinator (--rdzv-conf=is_host=true says that it does)");
  }
  CHECK(found(at("node4:1")).warning.empty());
}

TEST_CASE("an agent with is_host runs the coordinator") {
  RendezvousSpec spec = at("node4:1");
  spec.is_host = true;
  CHECK(found(spec).is_local);
  CHECK(found(spec).is_explicit);
  spec = at("node3:1");
  spec.is_host = false;
  CHECK_FALSE(found(spec).is_local);
}

TEST_CASE("with static node ranks it is node rank 0, as with torchrun") {
  RendezvousSpec spec = at("node4:1", "static");
  spec.node_rank = 0;
  CHECK(found(spec).is_local);
  CHECK(found(spec).is_explicit);
  spec.endpoint = "node3:1";
  spec.node_rank = 1;
  CHECK_FALSE(found(spec).is_local);
  spec.backend = "c10d";
  CHECK(found(spec).is_local);
}

TEST_CASE("ports that are not given are torchrun's") {
  CHECK(found(at("node4")).candidates.front().port == 29400);
  CHECK(found(at("node4", "static")).candidates.front().port == 29500);
  RendezvousSpec spec = at("", "static");
  spec.master_addr = "node4";
  CHECK(found(spec).candidates.front() == Endpoint{"node4", 29500});
  spec.master_port = 7;
  CHECK(found(spec).candidates.front() == Endpoint{"node4", 7});
}

TEST_CASE("a loopback endpoint is for this machine only") {
  CHECK(found(at("localhost:1")).loopback_only);
  CHECK(found(at("[::1]:1")).loopback_only);
  CHECK_FALSE(found(at("node3:1")).loopback_only);
  CHECK_FALSE(found(at("10.0.0.3:1")).loopback_only);
}

TEST_CASE("an invalid endpoint is refused with advice") {
  CHECK(refusal(at("")).find("--rdzv-endpoint=HOST:PORT") != std::string::npos);
  CHECK(refusal(at("node4:0")).find("all have to know it") != std::string::npos);
  RendezvousSpec spec = at("", "static");
  spec.master_addr = "node4";
  spec.master_port = 0;
  CHECK(refusal(spec).find("--master-port=0") != std::string::npos);
}

TEST_CASE("this machine has a name and the loopback") {
  const auto machine = this_machine();
  CHECK_FALSE(machine.host_name.empty());
  CHECK(std::count(machine.addresses.begin(), machine.addresses.end(), *IpAddress::parse("127.0.0.1")) == 1);
}

namespace {

std::string program_of(const Settings& settings) {
  for (const auto& [key, value] : settings) {
    if (key == "program") return value;
  }
  return "no such key";
}

}  // namespace

TEST_CASE("the settings of agents are sorted with unique keys") {
  LaunchSpec spec;
  spec.rendezvous.min_nodes = 2;
  spec.rendezvous.max_nodes = 4;
  spec.restart.window = Milliseconds{1500};
  const Settings settings = join_settings(spec);
  CHECK(settings == Settings{{"exit_skew_ms", ""},
                             {"fence_ms", ""},
                             {"grace_ms", "30000"},
                             {"join_timeout_ms", "600000"},
                             {"last_call_ms", "30000"},
                             {"max_nodes", "4"},
                             {"max_restarts", "0"},
                             {"min_nodes", "2"},
                             {"node_max_failures", "0"},
                             {"program", program_of(settings)},
                             {"restart_backoff_ms", "0"},
                             {"restart_window_ms", "1500"},
                             {"same_cause", "3"}});
}

TEST_CASE("agents that serve MPI say so, and agree on it") {
  const LaunchSpec spec;
  const Settings off = join_settings(spec), on = join_settings(spec, "pmi");
  CHECK(on.size() == off.size() + 1);
  CHECK(read_settings(on));
  CHECK(describe_differences(off, on, Audience::there) == "--mpi is pmi, but none there");
  CHECK(describe_differences(on, off, Audience::there) == "--mpi is none, but pmi there");
}

TEST_CASE("agents of which any may come to lead agree on how long each waits for others") {
  LaunchSpec spec;
  spec.rendezvous.lease = "program";
  spec.rendezvous.lease_ttl = Milliseconds{2000};
  spec.rendezvous.heartbeat_interval = Milliseconds{1500};
  spec.rendezvous.heartbeat_misses = 2;
  const Settings ours = join_settings(spec);
  CHECK(read_settings(ours));
  spec.rendezvous.lease_ttl = Milliseconds{60'000};
  spec.rendezvous.heartbeat_misses = 4;
  CHECK(describe_differences(ours, join_settings(spec), Audience::there) ==
        "--lease-ttl is 60 s, but 2 s there; --heartbeat-interval times --heartbeat-misses is 6 s, but 3 s there");
}

TEST_CASE("agents without a name for their job agree on what they run, and with one they need not") {
  const auto program = [](const std::string& name, const std::vector<std::string>& args,
                          const std::string& id = "none") {
    LaunchSpec spec;
    spec.rendezvous.id = id;
    spec.first().name = name;
    spec.first().args = args;
    return program_of(join_settings(spec));
  };
  const std::string one = program("./train", {"--lr", "0.1"});
  CHECK(one.size() == 32);
  CHECK(one.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(program("./train", {"--lr", "0.1"}) == one);
  CHECK(program("./train", {"--lr", "0.2"}) != one);
  CHECK(program("./other", {"--lr", "0.1"}) != one);
  CHECK(program("./train", {"--lr 0.1"}) != one);
  CHECK(program("./train", {"--lr"}) != program("./train--lr", {}));
  CHECK(program("./train", {"--lr", "0.1"}, "mine").empty());

  // Each program of several, and where one ends, counts.
  using Words = std::vector<std::string>;
  const auto programs = [](const std::vector<Words>& all) {
    LaunchSpec spec;
    spec.programs.clear();
    for (const Words& words : all)
      spec.programs.push_back({.name = words[0], .args = {words.begin() + 1, words.end()}});
    return program_of(join_settings(spec));
  };
  CHECK(programs({{"./train", "--lr", "0.1"}}) == one);
  std::set<std::string> different;
  for (const auto& all : std::vector<std::vector<Words>>{{{"a", "b", "c"}},
                                                         {{"a"}, {"b", "c"}},
                                                         {{"a", "b"}, {"c"}},
                                                         {{"a"}, {"b"}, {"c"}},
                                                         {{"a", "", "b", "c"}},
                                                         {{"a", "0", "b", "c"}},
                                                         {{"a", ""}, {"b", "c"}},
                                                         {{"b", "c"}, {"a"}}})
    CHECK(different.insert(programs(all)).second);

  // Other settings of the machine, and its number of workers, do not matter.
  LaunchSpec elsewhere;
  elsewhere.first().name = "./train";
  elsewhere.first().args = {"--lr", "0.1"};
  elsewhere.first().kind = ProgramKind::python_script;
  elsewhere.first().nproc.count = 8;
  elsewhere.rendezvous.node_rank = 1;
  elsewhere.first().chdir = "/scratch";
  CHECK(program_of(join_settings(elsewhere)) == one);
}

TEST_CASE("of a machine's addresses those are tried first that are likely to be near") {
  const auto ip = [](const char* text) { return IpAddress::parse(text).value(); };
  std::vector<Endpoint> endpoints{{"fd00:1::5", 7}, {"172.17.0.1", 7}, {"10.0.3.5", 7}, {"10.0.0.5", 7}, {"a-name", 7}};
  nearest_first(endpoints, {ip("127.0.0.1"), ip("10.0.0.9"), ip("fd00:2::9")});
  CHECK(endpoints ==
        std::vector<Endpoint>{{"10.0.0.5", 7}, {"10.0.3.5", 7}, {"172.17.0.1", 7}, {"fd00:1::5", 7}, {"a-name", 7}});
  CHECK(ip("10.0.0.1").common_bits(ip("10.0.0.1")) == 128);
  CHECK(ip("10.0.0.1").common_bits(ip("10.0.0.2")) == 126);
  CHECK(ip("::1").common_bits(ip("8000::")) == 0);
}
