#include "node_ranks.hpp"

#include "ddrun/test/catch.hpp"

using namespace ddrun::rendezvous;

namespace {

Member member(const std::string& host, std::uint64_t arrival, int wanted = -1, int kept = -1, bool own = false) {
  Member made;
  made.host = made.name = host;
  made.arrival = arrival;
  made.wanted_rank = wanted;
  made.kept_rank = kept;
  made.runs_coordinator = own;
  return made;
}

std::string hosts(const std::vector<Member*>& members) {
  std::string text;
  for (const Member* each : members) text += each->host + " ";
  return text;
}

std::vector<Member*> pointers(std::vector<Member>& members) {
  std::vector<Member*> all;
  for (Member& each : members) all.push_back(&each);
  return all;
}

}  // namespace

TEST_CASE("numbers in host names count by value") {
  const std::vector<std::string> sorted = {
      "", "a", "a0", "a1", "a2", "a10", "a10b", "a10c2", "a10c10", "a99999999999999999999999", "b", "b-1"};
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    for (std::size_t j = 0; j < sorted.size(); ++j) {
      INFO(sorted[i] << " " << sorted[j]);
      CHECK(host_before(sorted[i], sorted[j]) == (i < j));
    }
  }
  CHECK_FALSE(host_before("a01", "a1"));
  CHECK_FALSE(host_before("a1", "a01"));
}

TEST_CASE("which members take part when there are too many") {
  std::vector<Member> members = {member("late", 9), member("early", 1), member("given", 8, 2),
                                 member("own", 7, -1, -1, true), member("old", 6, -1, 3)};
  CHECK(hosts(choose_members(pointers(members), 1)) == "old ");
  CHECK(hosts(choose_members(pointers(members), 2)) == "old own ");
  CHECK(hosts(choose_members(pointers(members), 3)) == "old own given ");
  CHECK(hosts(choose_members(pointers(members), 4)) == "old own given early ");
  CHECK(choose_members(pointers(members), 5).size() == 5);
}

TEST_CASE("node ranks: given, kept, then by name") {
  std::vector<Member> given = {member("a", 1, 2), member("b", 2), member("c", 3, 0)};
  CHECK(hosts(order_members(pointers(given))) == "c b a ");
  std::vector<Member> beyond = {member("a", 1, 5), member("b", 2)};
  CHECK(hosts(order_members(pointers(beyond))) == "a b ");
  std::vector<Member> kept = {member("a", 1), member("d", 2, -1, 3), member("c", 3, -1, 2), member("b", 4, -1, 0)};
  CHECK(hosts(order_members(pointers(kept))) == "b a c d ");
  kept.pop_back();
  CHECK(hosts(order_members(pointers(kept))) == "d a c ");
  std::vector<Member> taken = {member("old", 1, -1, 0), member("new", 2, 0)};
  CHECK(hosts(order_members(pointers(taken))) == "new old ");
  std::vector<Member> own = {member("a", 1), member("z", 2, -1, -1, true), member("a", 3)};
  const auto ordered = order_members(pointers(own));
  CHECK(ordered[0]->host == "z");
  CHECK(ordered[1]->arrival == 1);
}

namespace {

ddrun::IpAddress address(const std::string& text) { return *ddrun::IpAddress::parse(text); }

/// MASTER_ADDR for two members, of which the first is on the coordinator's machine or not.
std::string reached(bool on_coordinator_machine, const std::string& by, const std::vector<std::string>& first_has) {
  std::vector<Member> members{member("a", 1), member("b", 2)};
  std::vector<ddrun::IpAddress> own{address("127.0.0.1"), address("172.17.0.1"), address("fe80::9")};
  for (const std::string& text : first_has)
    (on_coordinator_machine ? own : members[0].own_addresses).push_back(address(text));
  members[1].own_addresses = {address("172.17.0.1"), address("fe80::2")};
  members[0].peer_address = on_coordinator_machine ? address("127.0.0.1") : address(by);
  members[1].peer_address = address("fe80::2");
  members[1].local_address = on_coordinator_machine ? address(by) : address("fe80::9");
  return address_of_node_rank_0({&members[0], &members[1]}, own);
}

}  // namespace

TEST_CASE("a link-local address is advertised only if no other is known") {
  for (const bool on_coordinator_machine : {true, false}) {
    CAPTURE(on_coordinator_machine);
    CHECK(reached(on_coordinator_machine, "10.0.0.1", {"10.0.0.1", "fe80::1"}) == "10.0.0.1");
    CHECK(reached(on_coordinator_machine, "fe80::1", {"fe80::1", "10.0.0.1"}) == "10.0.0.1");
    CHECK(reached(on_coordinator_machine, "fe80::1", {"fe80::1", "172.17.0.1", "fd00::1"}) == "fd00::1");
    CHECK(reached(on_coordinator_machine, "fe80::1", {"fe80::1", "172.17.0.1"}) == "fe80::1");
  }
}
