// All sequences of a few events that a driver, an agent, a coordinator and a lease can give a member, from each of its
// states: what holds after every step.

#include <signal.h>

#include <deque>

#include "codec.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "member_machine.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using namespace std::chrono_literals;

namespace {

struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void require(bool holds, const char* what) {
  if (!holds) throw Wrong(what);
}

MemberOptions watched_options(bool has_lease) {
  MemberOptions options;
  if (has_lease) options.spec.lease = "program";
  options.spec.min_nodes = options.spec.max_nodes = 2;
  options.run_id = "job";
  options.may_run_server = !has_lease;
  options.new_agent_id = [] { return "id"; };
  options.on_step = [](std::string_view state, std::string_view next, bool is_legal) {
    if (!is_legal) throw Wrong(concat("a wrong step from ", state, ": ", next));
    return true;
  };
  return options;
}

/// A member and what its driver, agent and lease know. To be copied.
class Place {
 public:
  explicit Place(bool with_lease) : has_lease(with_lease), machine(watched_options(with_lease)) {}

  void step(const MemberEvent& first) {
    for (std::deque<MemberEvent> events{first}; !events.empty(); events.pop_front()) {
      const bool is_timer = std::holds_alternative<member_event::TimeIsUp>(events.front());
      if (const auto* message = std::get_if<FromAgent>(&events.front())) {
        if (std::holds_alternative<Stopped>(*message)) has_workers = false;
        has_left = has_left || std::holds_alternative<Leave>(*message);
      }
      const auto actions = machine.step(events.front(), now);
      require(!is_timer || !machine.next_deadline() || *machine.next_deadline() > now, "a deadline fires twice");
      for (const auto& action : actions) {
        std::visit([&](const auto& what) { carry_out(what, events); }, action);
      }
    }
  }

  bool has_lease;
  Clock::time_point now{1h};
  bool has_link = false, has_workers = false, has_left = false;
  bool is_told = false, closes = false, closes_link = false, is_done = false;
  int servers = 0, resigns = 0;
  Term term = 1;
  MemberMachine machine;

 private:
  using Events = std::deque<MemberEvent>;
  template <class Other>
  void carry_out(const Other& /*changes nothing here*/, Events& /*events*/) {}
  void carry_out(const FromAgent& message, Events& /*events*/) {
    require(has_link && !is_told, "a message without a coordinator, or after the end");
    if (const auto* stopped = std::get_if<Stopped>(&message)) {
      require(stopped->round > stopped_, "STOPPED twice for one round");
      stopped_ = stopped->round;
    }
    require(!(has_left && std::holds_alternative<Failed>(message)), "FAILED after LEAVE");
    has_left = has_left || std::holds_alternative<Leave>(message);
  }
  void carry_out(const ToAgent& what, Events& /*events*/) {
    require(!is_told || std::holds_alternative<Log>(what), "more after the end");
    if (const auto* begins = std::get_if<RoundBegins>(&what)) {
      require(!has_left, "workers after LEAVE");
      require(!has_workers && begins->round > stopped_, "workers beside others, or of a round that is over");
      has_workers = true;
      started_ = begins->round;
      claim_ = {machine.claim().term, started_};
    }
    const bool for_workers = std::holds_alternative<PassSignal>(what) || std::holds_alternative<Exchanged>(what);
    require(has_workers || !for_workers, "a signal, or keys, for no workers");
    if (const auto* stop = std::get_if<StopOrder>(&what); stop != nullptr && has_workers) stop_ordered_ = true;
    is_told = is_told || std::holds_alternative<VerdictMessage>(what) || std::holds_alternative<CoordinatorLost>(what);
  }
  void carry_out(const member_action::Dial& dial, Events& /*events*/) {
    require(!has_workers && !is_told, "a new link beside workers, or after the end");
    require(std::pair(dial.join.claim.term, dial.join.claim.round) == claim_ || claim_.second == 0,
            "a claim that is not of the last START");
    has_link = true;
    stopped_ = started_ = 0;
  }
  void carry_out(const member_action::Hang& /*order*/, Events& /*events*/) {
    require(!has_workers, "the end of a link, which says that no workers run");
    has_link = false;
  }
  void carry_out(const member_action::OpenStore& open, Events& events) {
    require(!has_workers && open.order.round > stopped_, "a store beside workers, or for a round that is over");
    events.emplace_back(member_event::StoreOpened{open.order.round, std::uint16_t{1}});
  }
  void carry_out(const member_action::StartServer& order, Events& events) {
    servers = order.server;
    events.emplace_back(member_event::ServerStarted{});
  }
  void carry_out(const member_action::Resign& order, Events& /*events*/) { resigns += order.answers ? 1 : 0; }
  void carry_out(const member_action::CloseLink& /*order*/, Events& events) {
    if (has_link) closes_link = true;
    else events.emplace_back(member_event::LinkClosed{});
  }
  void carry_out(const member_action::DropAll& /*order*/, Events& /*events*/) {
    has_link = false;
    resigns = 0;
  }
  void carry_out(const member_action::Done& /*order*/, Events& /*events*/) {
    require(closes && !std::exchange(is_done, true), "Done without Close, or twice");
  }

  Round started_ = 0, stopped_ = 0;  ///< under this coordinator
  bool stop_ordered_ = false;
  std::pair<Term, Round> claim_{0, 0};
};

struct Choice {
  const char* name;
  bool (*may_come)(const Place&);
  MemberEvent (*event)(Place&);
};

bool is_heard(const Place& place) { return place.has_link && !place.closes; }
bool may_speak(const Place& place) { return !place.closes && !place.has_left && !place.is_told; }
bool leads_or_not(const Place& place) { return place.has_lease && !place.is_done; }

template <class Message>
MemberEvent said(Message message) {
  return FromCoordinator(std::move(message));
}

/// Anything from the wire and from a lease at any time; from a driver and an agent what they can.
const std::vector<Choice> choices = {
    {"Begin", [](const Place& p) { return p.machine.state() == MemberState::idle && may_speak(p); },
     [](Place&) -> MemberEvent { return member_event::Begin{}; }},
    {"WELCOME", is_heard,
     [](Place& p) {
       return said(Welcome{"b", 1000, 3, "", p.has_lease ? p.term : 0});
     }},
    {"REFUSED lost", is_heard,
     [](Place&) {
       return said(Refused{RefusalKind::lost, "lost"});
     }},
    {"REFUSED moved", is_heard,
     [](Place&) {
       return said(Refused{RefusalKind::moved, "moved"});
     }},
    {"REFUSED", is_heard,
     [](Place&) {
       return said(Refused{RefusalKind::permanent, "no"});
     }},
    {"WAITING", is_heard,
     [](Place&) {
       return said(Waiting{1, 1, 2, false, "more nodes"});
     }},
    {"OPEN 1", is_heard,
     [](Place&) {
       return said(Open{1, "", {}});
     }},
    {"OPEN 2", is_heard,
     [](Place&) {
       return said(Open{2, "", {}});
     }},
    {"START 1", is_heard,
     [](Place& p) {
       return said(Start{1, {}, p.has_lease ? p.term : 0, ""});
     }},
    {"START 2", is_heard,
     [](Place& p) {
       return said(Start{2, {}, p.has_lease ? p.term : 0, ""});
     }},
    {"STOP 1", is_heard,
     [](Place&) {
       return said(Stop{1, true, "a worker failed"});
     }},
    {"STOP 2", is_heard,
     [](Place&) {
       return said(Stop{2, false, "a worker failed"});
     }},
    {"VERDICT", is_heard, [](Place&) { return said(VerdictMessage{}); }},
    {"PASS_SIGNAL", is_heard,
     [](Place&) {
       return said(PassSignal{1, SIGUSR1});
     }},
    {"EXCHANGED", is_heard,
     [](Place&) {
       return said(Exchanged{1, 0, 0, {""}, true});
     }},
    {"LinkLoss", is_heard,
     [](Place& p) -> MemberEvent {
       p.has_link = p.has_workers;  // it stays open, unused
       return LinkLoss{{Errc::connection_lost, "it broke"}, true};
     }},
    {"FAILED", [](const Place& p) { return p.has_workers && !p.closes; },
     [](Place&) -> MemberEvent { return FromAgent(Failed{.round = 1}); }},
    {"STOPPED", [](const Place& p) { return p.has_workers && !p.closes; },
     [](Place& p) -> MemberEvent { return FromAgent(Stopped{p.machine.claim().round}); }},
    {"LEAVE", may_speak,
     [](Place&) -> MemberEvent {
       return FromAgent(Leave{LeaveKind::cannot_go_on, 125, "no"});
     }},
    {"Close", [](const Place& p) { return !p.closes && !p.has_workers && (p.is_told || p.has_left); },
     [](Place& p) -> MemberEvent {
       p.closes = true;
       return member_event::Close{};
     }},
    {"Abandon", [](const Place& p) { return may_speak(p) && !p.has_workers; },
     [](Place& p) -> MemberEvent {
       p.is_told = true;
       return member_event::Abandon{};
     }},
    {"LinkClosed", [](const Place& p) { return p.closes_link; },
     [](Place& p) -> MemberEvent {
       p.closes_link = p.has_link = false;
       return member_event::LinkClosed{};
     }},
    {"TimeIsUp", [](const Place& p) { return p.machine.next_deadline().has_value(); },
     [](Place& p) -> MemberEvent {
       p.now = std::max(p.now, *p.machine.next_deadline());
       return member_event::TimeIsUp{};
     }},
    {"Retry", [](const Place& p) { return is_heard(p) && p.machine.state() == MemberState::joining; },
     [](Place&) -> MemberEvent { return member_event::Retry{"no answer"}; }},
    {"the lead", leads_or_not,
     [](Place& p) -> MemberEvent {
       return lease::Tell(lease::Leader{++p.term, "", true});
     }},
    {"a leader", leads_or_not,
     [](Place& p) -> MemberEvent {
       return lease::Tell(lease::Leader{++p.term, "b:1", false});
     }},
    {"Lost", leads_or_not, [](Place&) -> MemberEvent { return lease::Tell(lease::tell::Lost{"it is gone"}); }},
    {"a verdict", leads_or_not,
     [](Place&) -> MemberEvent { return lease::Tell(lease::tell::Verdict{serialize_verdict({})}); }},
    {"Unusable", leads_or_not,
     [](Place&) -> MemberEvent {
       return lease::Tell(lease::tell::Unusable{{Errc::unavailable, "no etcd"}});
     }},
    {"stepped down", [](const Place& p) { return p.has_lease && p.machine.runs_coordinator(); },
     [](Place& p) -> MemberEvent { return member_event::ServerSteppedDown{p.servers}; }},
    {"its coordinator is done", [](const Place& p) { return p.machine.runs_coordinator(); },
     [](Place& p) -> MemberEvent { return member_event::ServerDone{p.servers}; }},
    {"not recorded", [](const Place& p) { return p.has_lease && p.machine.runs_coordinator(); },
     [](Place&) -> MemberEvent {
       return member_event::Recorded{{}, false};
     }},
    {"Resigned", [](const Place& p) { return p.resigns > 0; },
     [](Place& p) -> MemberEvent {
       --p.resigns;
       return member_event::Resigned{};
     }},
};

const Choice& choice(std::string_view name) {
  return *std::find_if(choices.begin(), choices.end(), [&](const Choice& one) { return one.name == name; });
}

/// Returns the number of sequences.
std::size_t walk(const Place& from, int depth, std::vector<const char*>& names) {
  if (depth == 0) return 1;
  std::size_t sequences = 0;
  for (const Choice& one : choices) {
    if (!one.may_come(from)) continue;
    names.push_back(one.name);
    Place place = from;
    place.step(one.event(place));
    sequences += walk(place, depth - 1, names);
    names.pop_back();
  }
  return sequences;
}

/// Ways to each state.
const std::vector<std::vector<const char*>> ways_with_lease = {
    {},
    {"Begin"},
    {"Begin", "a leader"},
    {"Begin", "a leader", "WELCOME"},
    {"Begin", "a leader", "WELCOME", "START 1"},
    {"Begin", "a leader", "WELCOME", "START 1", "LinkLoss"},
    {"Begin", "a leader", "WELCOME", "START 1", "STOPPED"},
    {"Begin", "the lead"},
    {"Begin", "the lead", "WELCOME", "START 1"},
    {"Begin", "the lead", "WELCOME", "VERDICT"},
    {"Begin", "the lead", "WELCOME", "VERDICT", "Close"},
    {"Begin", "the lead", "WELCOME", "VERDICT", "Close", "LinkClosed"},
    {"Begin", "the lead", "WELCOME", "VERDICT", "Close", "LinkClosed", "its coordinator is done"},
};
const std::vector<std::vector<const char*>> ways_without = {
    {},
    {"Begin"},
    {"Begin", "WELCOME"},
    {"Begin", "WELCOME", "START 1"},
    {"Begin", "WELCOME", "START 1", "LinkLoss"},
    {"Begin", "WELCOME", "START 1", "STOPPED"},
    {"Begin", "WELCOME", "VERDICT", "Close"},
};

void walk_all(int depth) {
  std::size_t sequences = 0;
  std::set<MemberState> begun;
  for (const bool has_lease : {false, true}) {
    for (const bool runs_server : {false, true}) {
      if (has_lease && runs_server) continue;
      for (const auto& way : has_lease ? ways_with_lease : ways_without) {
        Place place(has_lease);
        if (runs_server) place.step(member_event::Prepare{});
        std::vector<const char*> names;
        for (const char* name : way) {
          names.push_back(name);
          place.step(choice(name).event(place));
        }
        begun.insert(place.machine.state());
        try {
          sequences += walk(place, depth, names);
        } catch (const Wrong& wrong) {
          std::string all;
          for (const char* name : names) all += concat(name, ", ");
          FAIL(all << "with a lease: " << has_lease << ", with a coordinator here: " << runs_server << ": "
                   << wrong.what());
        }
      }
    }
  }
  CHECK(begun.size() == 10);  // all but closed, after which nothing comes
  CHECK(sequences > 100'000);
}

}  // namespace

TEST_CASE("whatever three events come to a member in any state, its promises hold") { walk_all(3); }
TEST_CASE("whatever four events come to a member in any state, its promises hold", "[full]") { walk_all(4); }
