// Joining: which agents are admitted.

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "scripted_job.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::ip;
using ddrun::test::ScriptedJob;

TEST_CASE("agents of another job are refused with a reason") {
  struct Row {
    std::string name;
    std::function<void(Join&)> change;
    std::string why;
  };
  const auto set = [](const std::string& key, const std::string& value) {
    return [=](Join& join) {
      for (auto& [name, old] : join.settings) {
        if (name == key) old = value;
      }
    };
  };
  const std::vector<Row> rows = {
      {"another job", [](Join& join) { join.job_id = "other"; },
       "the coordinator on a serves the job job, not other; give both the same --rdzv-id, or this one another "
       "endpoint"},
      {"another job without a name", [](Join& join) { join.settings.emplace_back("program", "abc"); },
       "the coordinator on a serves a job that runs another program, or the same with other arguments; give each job "
       "an --rdzv-id of its own, or another endpoint (one job whose machines run different command lines needs an "
       "--rdzv-id, too, or another --node-rank on each)"},
      {"a name that is none", [](Join& join) { join.host.assign(256, 'h'); },
       "the name of a host has at most 255 bytes"},
      {"a term that no job gets to", [](Join& join) { join.claim.term = std::uint64_t{1} << 63U; },
       "no job gets to the term or round that is claimed"},
      {"a round that no job gets to", [](Join& join) { join.claim.round = ~std::uint64_t{0}; },
       "no job gets to the term or round that is claimed"},
      {"another version", [](Join& join) { join.version = "2.0"; },
       "this is ddrun 2.0, but the other nodes of the job run 1.0"},
      {"a setting", set("max_restarts", "7"),
       "this node and those that are there do not agree: --max-restarts is 7, but 3 there"},
      {"a setting that is not there", set("exit_skew_ms", "5"),
       "this node and those that are there do not agree: --exit-skew is 0.005 s, but not set there"},
      {"a time", set("grace_ms", "10500"),
       "this node and those that are there do not agree: --shutdown-timeout is 10.5 s, but 10 s there"},
      {"the most nodes", set("max_nodes", "4"),
       "this node and those that are there do not agree: --nnodes is 3:4, but 3 there"},
      {"the least and the most nodes",
       [=](Join& join) {
         set("min_nodes", "2")(join);
         set("max_nodes", "2")(join);
       },
       "this node and those that are there do not agree: --nnodes is 2, but 3 there"},
      {"what cannot be read", set("grace_ms", "soon"),
       "this node and those that are there do not agree: --shutdown-timeout is soon, but 10 s there"},
      {"one that nobody knows", [](Join& join) { join.settings.emplace_back("zebra", "1"); },
       "this node and those that are there do not agree: zebra is 1, but not set there"},
      {"a node rank beyond", [](Join& join) { join.node_rank = 3; }, "node rank 3 is not from 0 to 2"},
      {"no workers", [](Join& join) { join.local_world_size = 0; }, "a node has 1 to 16384 workers, not 0"},
      {"no id", [](Join& join) { join.agent_id = ""; }, "an agent needs an id"},
  };
  for (const Row& row : rows) {
    INFO(row.name);
    ScriptedJob job(3, 3);
    const LinkId a = job.joins("a");
    Join join = job.join_of("b");
    row.change(join);
    const LinkId b = job.joins(join);
    const Refused refused = job.next<Refused>(b);
    CHECK(refused.why == row.why);
    CHECK(refused.kind == (row.name.starts_with("another job") ? RefusalKind::other_job : RefusalKind::permanent));
    CHECK(job.closed(b));
    CHECK(job.coordinator().job().members.size() == 1);
    CHECK_FALSE(job.closed(a));
  }
}

TEST_CASE("those that wait are told once which machine is turned away, and why") {
  ScriptedJob job(2, 2);
  const LinkId a = job.joins("a");
  const auto warned = [&] { return job.coordinator().take_warnings(); };
  const auto refused = [&](const std::string& host, auto&& change) {
    Join join = job.join_of(host);
    change(join);
    CHECK(job.has<Refused>(job.joins(join, {ip("10.0.0.9"), ip("10.0.0.1")})));
    return warned();
  };
  const auto set = [](const std::string& key, const std::string& value) {
    return [=](Join& join) {
      for (auto& [name, old] : join.settings) {
        if (name == key) old = value;
      }
    };
  };
  using Texts = std::vector<std::string>;
  CHECK(warned().empty());
  const std::string restarts = "b (10.0.0.9) was turned away: --max-restarts is 7 there, 3 here";
  CHECK(refused("b", set("max_restarts", "7")) == Texts{restarts});
  CHECK(refused("b", set("max_restarts", "7")).empty());
  CHECK(refused("b", set("min_nodes", "1")) == Texts{"b (10.0.0.9) was turned away: --nnodes is 1:2 there, 2 here"});
  CHECK(refused("c", set("max_restarts", "7")) ==
        Texts{"c (10.0.0.9) was turned away: --max-restarts is 7 there, 3 here"});
  CHECK(refused("c", [](Join& join) { join.version = "2.0"; }) ==
        Texts{"c (10.0.0.9) was turned away: it runs ddrun 2.0, and this job 1.0"});
  CHECK(refused("c", [](Join& join) { join.job_id = "x"; }) ==
        Texts{"c (10.0.0.9) was turned away: --rdzv-id is x there, job here"});
  CHECK(refused("c", [](Join& join) { join.settings.emplace_back("program", "abc"); }) ==
        Texts{"c (10.0.0.9) was turned away: it runs another program, or the same with other arguments (see "
              "--rdzv-id)"});
  SECTION("the end names them") {
    job.wait(Milliseconds{600'000});
    CHECK(job.next<VerdictMessage>(a).why ==
          "only 1 of 2 machines came within --join-timeout (600 s): a (10.0.0.1); turned away: "
          "b (10.0.0.9): --max-restarts is 7 there, 3 here; b (10.0.0.9): --nnodes is 1:2 there, 2 here; "
          "c (10.0.0.9): --max-restarts is 7 there, 3 here; c (10.0.0.9): it runs ddrun 2.0, and this job 1.0; "
          "c (10.0.0.9): --rdzv-id is x there, job here; c (10.0.0.9): it runs another program, or the same with other "
          "arguments (see --rdzv-id)");
  }
  SECTION("with those whose name is not known, as they have another secret") {
    for (int i = 0; i < 2; ++i) job.coordinator().note_refused_peer("10.0.0.8", "another secret");
    for (int i = 0; i < 20; ++i) job.coordinator().note_refused_peer(concat("10.0.1.", i), "another secret");
    CHECK(warned().empty());
    CHECK(refused("e", set("max_restarts", "7")).size() == 1);  // strangers take no place of others
    const LinkId admitted = job.joins(job.join_of("f"), {ip("10.0.1.0"), ip("10.0.0.1")});
    job.opens();
    job.disconnects(admitted);
    job.stops(a);
    job.wait(Milliseconds{600'000});
    const std::string why = job.next<VerdictMessage>(a).why;
    CHECK(why.find("; turned away: b (10.0.0.9): ") != std::string::npos);
    CHECK(why.find("; 10.0.0.8: another secret; 10.0.1.1: another secret; ") != std::string::npos);
    CHECK(why.ends_with("10.0.1.8: another secret; others"));
  }
  SECTION("but for one that is admitted later") {
    CHECK(refused("d", set("max_restarts", "7")).size() == 1);
    const LinkId d = job.joins(job.join_of("d"), {ip("10.0.0.9"), ip("10.0.0.1")});
    CHECK(job.has<Welcome>(d));
    CHECK(warned().empty());
    job.opens();
    job.disconnects(d);
    job.stops(a);
    job.wait(Milliseconds{600'000});
    const std::string why = job.next<VerdictMessage>(a).why;
    CHECK(why.find("; turned away: b (10.0.0.9): ") != std::string::npos);
    CHECK(why.find("d (10.0.0.9): ") == std::string::npos);
  }
  SECTION("and once, also if it is admitted in between") {
    const LinkId b = job.joins(job.join_of("b"), {ip("10.0.0.9"), ip("10.0.0.1")});
    job.opens();
    job.disconnects(b);
    job.stops(a);
    CHECK(refused("b", set("max_restarts", "7")).empty());
    job.wait(Milliseconds{600'000});
    CHECK(job.next<VerdictMessage>(a).why.find("b (10.0.0.9): --max-restarts is 7 there") != std::string::npos);
  }
  SECTION("a flood is cut short") {
    for (int i = 0; i < 1000; ++i) {
      const auto shown = refused("h" + std::to_string(i), set("max_restarts", std::string(5000, '9')));
      CHECK(shown.size() == (i < 4 ? 1 : 0));
      if (!shown.empty()) CHECK(shown[0].size() < 500);
    }
    job.wait(Milliseconds{600'000});
    const std::string why = job.next<VerdictMessage>(a).why;
    CHECK(why.ends_with("; others"));
    CHECK(why.size() < 5000);
  }
}

TEST_CASE("an agent that comes again before its old connection is known to be lost is not called turned away") {
  ScriptedJob job(2, 2);
  job.joins("a", 0);
  Join again = job.join_of("a");
  again.agent_id = "agent 1";
  CHECK(job.has<Refused>(job.joins(again)));
  CHECK(job.coordinator().take_warnings().empty());
  CHECK(job.has<Refused>(job.joins("b", 0)));
  CHECK(job.coordinator().take_warnings() ==
        std::vector<std::string>{"b (10.0.0.3) was turned away: node rank 0 is taken by a (10.0.0.1)"});
}

TEST_CASE("a first round whose members are known does not wait for more") {
  ScriptedJob job(1, 4);
  job.options.first_round_nodes = 2;
  job.joins("a");
  CHECK(job.coordinator().job().round == 0);
  job.joins("b");
  CHECK(job.coordinator().job().round == 1);
  ScriptedJob lost(1, 4);
  lost.options.first_round_nodes = 2;
  lost.joins("a");
  lost.wait(Milliseconds{30'000});
  CHECK(lost.coordinator().job().round == 1);
}

TEST_CASE("invalid settings are refused") {
  struct Row {
    std::string key;
    std::string value;
    std::string why;
  };
  const std::vector<Row> rows = {
      {"min_nodes", "0", "the setting min_nodes is '0', not a number from 1 to 100000"},
      {"min_nodes", "x", "the setting min_nodes is 'x', not a number from 1 to 100000"},
      {"min_nodes", "3", "the setting min_nodes is larger than max_nodes"},
      {"grace_ms", "-1", "the setting grace_ms is '-1', not a number from 0 to 3153600000000"},
      {"exit_skew_ms", "1.5", "the setting exit_skew_ms is '1.5', not a number from 0 to 3153600000000"},
  };
  for (const Row& row : rows) {
    ScriptedJob job(1, 2, {{row.key, row.value}});
    CHECK(job.next<Refused>(job.joins("a")).why == row.why);
  }
  ScriptedJob job(1, 2);
  job.settings.erase(job.settings.begin() + 4);
  CHECK(job.next<Refused>(job.joins("a")).why == "the setting max_nodes is missing");
}

TEST_CASE("a coordinator that was given a job serves no other") {
  ScriptedJob job(1, 2);
  job.options.job_id = "mine";
  CHECK(job.has<Refused>(job.joins("a")));
  Join join = job.join_of("b");
  join.job_id = "mine";
  CHECK(job.has<Welcome>(job.joins(join)));
}

TEST_CASE("as long as nothing has run the first that is there decides on the settings") {
  ScriptedJob job(2, 2);
  const LinkId a = job.joins("a");
  job.disconnects(a);
  job.settings[0].second = "100";
  const LinkId b = job.joins("b");
  CHECK(job.has<Welcome>(b));
  job.joins("c");
  CHECK(job.coordinator().job().round == 1);
}

TEST_CASE("where an agent runs the coordinator its job is served, also if a forgotten one of another comes first") {
  ScriptedJob job(2, 2);
  const Join own = job.own_join_of("a");
  Join other = job.join_of("b");
  SECTION("with other settings") {
    for (auto& [key, value] : other.settings) {
      if (key == "max_restarts") value = "7";
    }
    CHECK(job.next<Refused>(job.joins(other)).why ==
          "this node and those that are there do not agree: --max-restarts is 7, but 3 there");
  }
  SECTION("of another version") {
    other.version = "0.9";
    CHECK(job.next<Refused>(job.joins(other)).why == "this is ddrun 0.9, but the other nodes of the job run 1.0");
  }
  CHECK(job.has<Welcome>(job.joins(own)));
  CHECK(job.has<Welcome>(job.joins("b")));
  CHECK(job.coordinator().job().round == 1);
}

TEST_CASE("a node rank or an agent id that a member has is refused until that member is known to be lost") {
  ScriptedJob job(1, 2, {{"last_call_ms", "0"}});
  const LinkId a = job.joins("a", 1);
  job.opens();
  const auto refused = [&](const Join& join) {
    const LinkId link = job.joins(join);
    const auto refused = job.next<Refused>(link);
    CHECK(refused.kind == RefusalKind::taken);
    CHECK(job.closed(link));
    return refused.why;
  };
  Join same_rank = job.join_of("b");
  same_rank.node_rank = 1;
  Join same_id = job.join_of("a");
  same_id.agent_id = "agent 1";
  job.goes_silent(a);
  CHECK(refused(same_rank) == "node rank 1 is taken by a (10.0.0.1)");
  CHECK(refused(same_id) == "an agent of this id is there already: a (10.0.0.1)");
  job.wait(Milliseconds{2'000});
  refused(same_rank);
  CHECK_FALSE(job.closed(a));
  job.wait(Milliseconds{2'000});
  CHECK(job.closed(a));
  CHECK(job.has<Welcome>(job.joins(same_rank)));
  CHECK(job.coordinator().job().budget.used() == 1);
}

TEST_CASE("a node rank that is only wished for goes to one machine, and the others get the next free ones") {
  ScriptedJob job(3, 3);
  const auto wish = [&](const std::string& host, int rank) {
    Join join = job.join_of(host);
    join.node_rank = rank;
    join.rank_is_wish = true;
    join.machine = "boot of " + host;
    return join;
  };
  SECTION("of three with the same, the coordinator's own agent gets it") {
    Join own = job.own_join_of("c");
    own.node_rank = 0;
    own.rank_is_wish = true;
    own.machine = "boot of c";
    job.options.own_join = own;
    const LinkId a = job.joins(wish("a", 0));
    const LinkId b = job.joins(wish("b", 0));
    const LinkId c = job.joins(own);
    CHECK(job.node_rank(c) == 0);
    CHECK(job.node_rank(a) == 1);
    CHECK(job.node_rank(b) == 2);
  }
  SECTION("without one, the first") {
    const LinkId b = job.joins(wish("b", 0));
    const LinkId a = job.joins(wish("a", 0));
    const LinkId c = job.joins(wish("c", 1));
    CHECK(job.node_rank(b) == 0);
    CHECK(job.node_rank(a) == 2);
    CHECK(job.node_rank(c) == 1);
    CHECK(job.coordinator().take_warnings().empty());
  }
  SECTION("a claim of the same stays one") {
    job.joins(wish("a", 0));
    CHECK(job.next<Refused>(job.joins("b", 0)).kind == RefusalKind::taken);
    const LinkId c = job.joins("c", 1);
    const LinkId d = job.joins(wish("d", 1));
    CHECK(job.node_rank(c) == 1);
    CHECK(job.node_rank(d) == 2);
  }
  SECTION("a machine that comes back waits for its own") {
    job.joins(wish("a", 0));
    Join again = wish("a", 0);
    again.agent_id = "another";
    CHECK(job.next<Refused>(job.joins(again)).kind == RefusalKind::taken);
  }
  SECTION("one that runs another program is of another job") {
    job.joins(wish("a", 0));
    Join other = wish("b", 0);
    other.settings.emplace_back("program", "abc");
    CHECK(job.next<Refused>(job.joins(other)).kind == RefusalKind::other_job);
  }
}

TEST_CASE("a rival on the coordinator's machine is named by the address that other machines know") {
  ScriptedJob job(2, 2);
  Join own = job.own_join_of("a");
  own.node_rank = 0;
  job.joins(own, {ip("127.0.0.1"), ip("127.0.0.1")});
  Join other = job.join_of("b");
  other.node_rank = 0;
  CHECK(job.next<Refused>(job.joins(other, {ip("10.0.0.2"), ip("10.0.0.1")})).why ==
        "node rank 0 is taken by a (10.0.0.1)");
}

TEST_CASE("the rank of one that leaves is free") {
  ScriptedJob job(1, 2, {{"last_call_ms", "0"}});
  const LinkId a = job.joins("a", 0);
  const LinkId b = job.joins("b");
  job.stops(a);
  job.opens();
  job.leaves(a, 2);
  const LinkId c = job.joins("c", 0);
  CHECK(job.has<Welcome>(c));
  job.stops(a);
  job.stops(b);
  CHECK(job.node_rank(c) == 0);
}

TEST_CASE("a second JOIN ends the connection") {
  ScriptedJob job(2, 2);
  const LinkId a = job.joins("a");
  job.sends(a, job.join_of("a"));
  CHECK(job.closed(a));
  CHECK(job.coordinator().job().members.empty());
}

TEST_CASE("out-of-phase messages, and those of unknown links, are ignored") {
  ScriptedJob job(2, 2);
  const LinkId a = job.joins("a");
  for (const FromAgent& message : std::vector<FromAgent>{Opened{0, 1}, Failed{}, Succeeded{}, Stopped{}, Pong{77}}) {
    job.sends(a, message);
    job.sends(99, message);
  }
  job.disconnects(99);
  CHECK(job.coordinator().job().members.size() == 1);
  const LinkId b = job.joins("b");
  CHECK(job.coordinator().job().round == 1);
  job.sends(b, Opened{1, 5});
  CHECK_FALSE(job.has<Start>(b));
  job.sends(a, Opened{1, 0});
  CHECK_FALSE(job.has<Start>(b));
  job.sends(a, Opened{1, 5});
  CHECK(job.has<Start>(b));
}

TEST_CASE("an agent that joins after the end gets the result") {
  for (const bool well : {true, false}) {
    ScriptedJob job(1, 1, {{"max_restarts", "0"}});
    const LinkId a = job.joins("a");
    job.opens();
    if (well) job.succeeds(a);
    else job.fails(a, 0, 3);
    job.stops(a);
    const LinkId b = job.joins("b");
    if (well) CHECK(job.next<Refused>(b).kind == RefusalKind::not_needed);
    else CHECK(job.next<VerdictMessage>(b).exit_code == 3);
    CHECK(job.closed(b));
  }
}

TEST_CASE("an agent that does not close after the verdict is closed") {
  ScriptedJob job(1, 1);
  const LinkId a = job.joins("a");
  job.opens();
  job.succeeds(a);
  job.stops(a);
  job.wait(Milliseconds{4'999});
  CHECK_FALSE(job.coordinator().done());
  job.wait(Milliseconds{1});
  CHECK(job.closed(a));
  CHECK(job.coordinator().done());
  CHECK_FALSE(job.coordinator().next_deadline());
}

TEST_CASE("machines that were given node ranks may have a command line each, those without may not") {
  ScriptedJob job(2, 2);
  const auto with_program = [&](const std::string& host, int node_rank, const std::string& program) {
    Join join = job.join_of(host);
    join.node_rank = node_rank;
    join.settings.emplace_back("program", program);
    return job.joins(join);
  };
  const LinkId a = with_program("a", 0, "abc");
  const LinkId other = with_program("other", -1, "def");
  CHECK(job.next<Refused>(other).kind == RefusalKind::other_job);
  const LinkId b = with_program("b", 1, "def");
  CHECK(job.node_rank(a) == 0);
  CHECK(job.node_rank(b) == 1);
}
