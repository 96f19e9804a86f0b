// Who is at the other end of a rank's sockets, from real sockets, and from those of ranks elsewhere.

#include "peers.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include "ddrun/base/address.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/ports.hpp"
#include "process_reader.hpp"

using namespace ddrun;
using namespace ddrun::inspect;

namespace {

using Known = RankStacks::Connections;

RankStacks rank_on(const std::string& host, int rank, const std::string& peer, std::vector<std::string> own = {}) {
  RankStacks stacks;
  stacks.rank = rank;
  stacks.host = host;
  stacks.connections_known = Known::all;
  for (std::string& address : own) stacks.connections.push_back({rank, std::move(address), false});
  ThreadStack& main = stacks.threads.emplace_back();
  main.state = 'S';
  main.on_socket = true;
  main.doing = "receives from " + peer;
  if (peer.starts_with("1")) main.peers = {peer};
  return stacks;
}

const ThreadStack& main_of(const StackPage& page, std::size_t rank) { return page.ranks.at(rank).threads.front(); }

}  // namespace

TEST_CASE("the peer of a socket is a rank, the store, or none of the job's") {
  const std::string at_0 = "10.0.0.1:4000", elsewhere = "10.0.0.9:80";
  const auto named = [&](const std::string& peer, bool is_whole, Known known = Known::all) {
    StackPage page;
    page.ranks = {rank_on("h1", 0, elsewhere, {at_0, "127.0.0.1:4001", "*:4002"}), rank_on("h2", 1, peer)};
    page.ranks[0].connections_known = known;
    name_peers(page, {29500}, is_whole);
    return std::pair(main_of(page, 1).doing, main_of(page, 1).on_socket);
  };
  CHECK(named(at_0, true) == std::pair<std::string, bool>("receives from rank 0", true));
  CHECK(named("10.0.0.1:4002", true) ==
        std::pair<std::string, bool>("receives from rank 0", true));  // not accepted yet
  CHECK(named("10.0.0.1:29500", true) == std::pair<std::string, bool>("receives from the store", true));
  const std::string unchanged = "receives from " + elsewhere;
  CHECK(named(elsewhere, true) == std::pair(unchanged, false));
  CHECK(named(elsewhere, false) == std::pair(unchanged, true));
  CHECK(named(elsewhere, true, Known::of_store) == std::pair(unchanged, true));
  CHECK(named("10.0.0.9:4002", true).second == false);                           // a server at the same port
  CHECK(named("127.0.0.1:4001", true).first == "receives from 127.0.0.1:4001");  // of another machine
  CHECK(named("a socket", true) == std::pair<std::string, bool>("receives from a socket", true));
  CHECK(named("*:4002", true) == std::pair<std::string, bool>("receives from *:4002", true));
}

TEST_CASE("of several sockets on which a thread waits one that leads to a rank counts") {
  const auto named = [](std::vector<std::string> peers) {
    StackPage page;
    page.ranks = {rank_on("h1", 0, "a socket", {"10.0.0.1:4000"}), rank_on("h2", 1, "a socket")};
    ThreadStack& main = page.ranks[1].threads.front();
    main.doing = "waits for " + peers.front() + " and 2 more";
    main.peers = std::move(peers);
    name_peers(page, {}, true);
    return std::pair(main.doing, main.on_socket);
  };
  using Named = std::pair<std::string, bool>;
  CHECK(named({"10.0.0.9:80", "10.0.0.1:4000"}) == Named("waits for rank 0 and 2 more", true));
  CHECK(named({"10.0.0.9:80", "10.0.0.9:81"}) == Named("waits for 10.0.0.9:80 and 2 more", false));
  CHECK(named({"10.0.0.9:80", ""}) == Named("waits for 10.0.0.9:80 and 2 more", true));
}

TEST_CASE("connections of a process are read with those to the store") {
  const test::Loopback loopback;
  const int port = loopback.port;
  const UniqueFd server(::accept(loopback.listener.get(), nullptr, nullptr));
  REQUIRE(server);

  RankStacks rank;
  rank.rank = 3;
  rank.pid = ::getpid();
  TcpTables tables;
  read_connections(rank, {port}, tables);
  CHECK(rank.connections_known == Known::all);
  const auto has = [&](const std::string& address, bool to_store) {
    return std::ranges::count_if(rank.connections, [&](const Connection& one) {
      return one.rank == 3 && one.own == address && one.to_store == to_store;
    });
  };
  CHECK(has(local_socket_address(loopback.client.get())->text(), true) == 1);
  CHECK(has(concat("127.0.0.1:", port), false) == 1);
  CHECK(has(concat("*:", port), false) == 1);

  RankStacks cut_short;
  cut_short.pid = ::getpid();
  TcpTables part(100);
  read_connections(cut_short, {port}, part);
  CHECK(cut_short.connections_known == Known::unknown);

  RankStacks gone;
  gone.pid = 1 << 30;
  read_connections(gone, {port}, tables);
  CHECK(gone.connections_known == Known::unknown);
}

TEST_CASE("clients that wait in the store are named as ranks, others by their addresses") {
  StackPage page;
  page.store_host = "h1";
  page.ranks = {rank_on("h1", 0, "a", {"127.0.0.1:4000"}), rank_on("h2", 1, "a", {"10.0.0.2:4000"}),
                rank_on("h2", 2, "a", {"127.0.0.1:4000"})};
  page.store_waits = {{"k/3", {"127.0.0.1:4000", "10.0.0.2:4000", "10.0.0.9:1"}, 62'000},
                      {"other", {"10.0.0.9:2"}, 300}};
  for (int i = 0; i < 5; ++i) page.store_waits.push_back({concat("more", i), {"10.0.0.9:3"}, 1});
  name_store_clients(page);
  CHECK(page.in_store == std::vector<RankName>{{"", 0}, {"", 1}});
  REQUIRE(page.notes.size() == 6);
  CHECK(page.notes[0] == "ranks 0,1, 10.0.0.9:1 wait in the store for k/3, 1 min 2 s");
  CHECK(page.notes[1] == "10.0.0.9:2 waits in the store for other, 0.3 s");
  CHECK(page.notes[5] == "others wait in the store for 2 more keys");
}

TEST_CASE("for another machine all but connections to the store are left out if it needs them not, or are too many") {
  StackPage page;
  page.ranks = {rank_on("", 0, "a", {"127.0.0.1:4000", "10.0.0.2:4000"})};
  page.ranks[0].connections.push_back({0, "127.0.0.1:4001", true});
  StackPage small = page, library = page;
  reduce_connections(page, 1000);
  CHECK(page.ranks[0].connections.size() == 3);
  CHECK(page.ranks[0].connections_known == Known::all);
  library.ranks[0].threads[0].native = {{nullptr, 1, "gloo::Buffer::waitRecv"}};
  reduce_connections(library, 1000);
  reduce_connections(small, 10);
  for (const StackPage& reduced : {small, library}) {
    CHECK(reduced.ranks[0].connections.size() == 1);
    CHECK(reduced.ranks[0].connections_known == Known::of_store);
  }
}

TEST_CASE("a rank without a connection to the store has not reached the call in which others wait there") {
  const auto page_of = [](std::vector<std::string> own_of_last) {
    StackPage page;
    for (int rank = 0; rank < 3; ++rank) {
      RankStacks& stacks = page.ranks.emplace_back(rank_on("", rank, "a socket"));
      stacks.pid = 4700 + rank;
      stacks.connections = {{rank, concat("127.0.0.1:400", rank), true}};
      stacks.threads[0].python = {{"init_process_group", "/x/torch/distributed/distributed_c10d.py", 9, {}},
                                  {"main", "/job/train.py", 7, {}}};
    }
    RankStacks& last = page.ranks.back();
    last.threads[0].python = {{"load", "/job/train.py", 3, {}}};
    last.threads[0].on_socket = false;
    last.threads[0].doing = "sleeps";
    last.connections.clear();
    for (std::string& own : own_of_last) last.connections.push_back({2, std::move(own), true});
    page.store_waits = {{"key", {"127.0.0.1:4001"}, 1000}};
    name_store_clients(page);
    return page;
  };
  const StackPage page = page_of({});
  CHECK(short_text(page, "").starts_with(
      "rank 2 has not reached init_process_group; ranks 0,1 wait for it: load (train.py:3), sleeps\n"));
  CHECK(find_culprits(page, 3).why == "has not reached init_process_group: load (train.py:3), sleeps");
  const StackPage connected = page_of({"127.0.0.1:4002"});
  CHECK(short_text(connected, "").starts_with("ranks 0,1 wait for rank 2: load (train.py:3), sleeps\n"));
  StackPage unknown = page;
  unknown.ranks[2].connections_known = Known::unknown;
  CHECK(short_text(unknown, "").starts_with("ranks 0,1 wait for rank 2: load (train.py:3), sleeps\n"));
  StackPage elsewhere = page;
  elsewhere.in_store.clear();
  CHECK(short_text(elsewhere, "").starts_with("ranks 0,1 wait for rank 2: load (train.py:3), sleeps\n"));
}
