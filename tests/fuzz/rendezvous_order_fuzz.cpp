// A coordinator, a member with its dialer, or a candidate for the lease, and peers that send any message, or print any
// line, at any time: twice, too early and too late.
//
// The input chooses the decider and its events. Checks: no step is wrong, and nothing is sent on a closed link.
#include <signal.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "codec.hpp"
#include "coordinator.hpp"
#include "ddrun/lease/candidate.hpp"
#include "input.hpp"
#include "member_machine.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::fuzz::Input;
using std::chrono::milliseconds;

namespace {

const StepHook only_legal = [](std::string_view, std::string_view, bool is_legal) {
  DDRUN_FUZZ_CHECK(is_legal);
  return true;
};

/// Mostly a short time, sometimes one after which each deadline is over.
Clock::duration time_of(std::uint8_t byte) {
  return milliseconds(byte % 8 == 7 ? 1'000'000 : byte % 8 == 6 ? 40'000 : 100 * (byte % 8));
}

std::vector<FromAgent> from_agent(Round round) {
  return {Join{},
          Opened{round, 1},
          Failed{.round = round, .code = 1},
          Failed{.round = round, .code = 1, .may_restart = false},
          Succeeded{round},
          Stopped{round},
          Leave{LeaveKind::signalled, SIGTERM, ""},
          Leave{LeaveKind::cannot_go_on, 125, "no"},
          Leave{LeaveKind::time_is_up, 124, "no"},
          Pong{1},
          Resume{},
          PassSignal{round, SIGUSR1},
          Exchange{round, 0, ""},
          Exchange{round, 1, "keys"}};
}

std::vector<FromCoordinator> from_coordinator(Round round, Term term) {
  std::vector<FromCoordinator> messages{Welcome{"a", 1000, 3, "session", term},
                                        Waiting{1, 1, 2, false, "more nodes"},
                                        Open{round, "", {}},
                                        Start{round, {}, term, ""},
                                        Stop{round, true, "a worker failed"},
                                        Stop{round, false, "a worker failed", SIGKILL},
                                        VerdictMessage{},
                                        Log{},
                                        Ping{1},
                                        Resumed{},
                                        PassSignal{round, SIGUSR1},
                                        Exchanged{round, 0, 0, {""}, true}};
  for (int kind = 0; kind <= static_cast<int>(RefusalKind::taken); ++kind) {
    messages.emplace_back(Refused{static_cast<RefusalKind>(kind), "no"});
  }
  return messages;
}

Join join_of(Input& input, const std::string& agent) {
  static constexpr std::pair<const char*, const char*> settings[] = {
      {"exit_skew_ms", "500"},   {"grace_ms", "10000"},      {"join_timeout_ms", "600000"},
      {"last_call_ms", "3000"},  {"max_nodes", "3"},         {"max_restarts", "2"},
      {"min_nodes", "2"},        {"node_max_failures", "1"}, {"restart_backoff_ms", "0"},
      {"restart_window_ms", ""}, {"same_cause", "3"}};
  Join join;
  join.version = "1.0";
  join.job_id = "job";
  join.agent_id = agent;
  join.host = agent;
  join.local_world_size = 1;
  for (const auto& [key, value] : settings) join.settings.emplace_back(key, value);
  const auto claim = input.byte();
  join.claim.term = claim % 4;
  join.claim.round = claim / 4 % 4;
  join.claim.node_count = claim / 16 % 4;
  join.claim.node_rank = claim / 64;
  return join;
}

void run_coordinator(Input& input) {
  const auto flags = input.byte();
  CoordinatorOptions options;
  options.host = "a";
  options.has_lease = (flags & 1) != 0;
  options.term = options.has_lease ? 3 : 0;
  options.on_step = only_legal;
  if ((flags & 2) != 0) options.own_join = join_of(input, "own");
  Coordinator coordinator(options);
  Clock::time_point now{std::chrono::hours(1)};
  LinkId links = 0;
  std::set<LinkId> closed;
  while (!input.empty()) {
    const auto what = input.byte();
    const LinkId link = what % 4 < links ? links - what % 4 : 0;
    switch (what / 32) {
      case 0:
      case 1:
        ++links;
        coordinator.join(
            links, what % 8 == 0 && options.own_join ? *options.own_join : join_of(input, concat(what % 5)), {}, now);
        break;
      case 2:
      case 3:
      case 4: {
        const Round late = input.byte() % 4 == 0 ? 1 : 0;
        const auto messages = from_agent(coordinator.job().round - std::min(late, coordinator.job().round));
        if (!closed.contains(link)) coordinator.receive(link, messages[what / 4 % messages.size()], now);
        break;
      }
      case 5:
        if (!closed.contains(link)) coordinator.lost(link, "it broke", now);
        closed.insert(link);
        break;
      case 6:
        if (!options.has_lease) break;
        if (what % 4 == 0) coordinator.suspend(now);
        else if (what % 4 == 1) coordinator.lead(++options.term, now);
        else if (what % 16 == 2) coordinator.step_down("it has to", now);
        else coordinator.recorded(now);
        break;
      default:
        now += time_of(what);
        if (const auto due = coordinator.next_deadline(); due && *due <= now) coordinator.tick(now);
    }
    for (const auto& output : coordinator.take_outputs()) {
      DDRUN_FUZZ_CHECK(output.link != 0 && output.link <= links);
      if (!output.message) closed.insert(output.link);
    }
    (void)coordinator.take_verdict_to_record();
  }
}

/// The driver of a member answers what it can at once; its link passes on what the dialer does.
void run_member(Input& input) {
  const auto flags = input.byte();
  MemberOptions options;
  if ((flags & 1) != 0) options.spec.lease = "program";
  options.spec.min_nodes = options.spec.max_nodes = 2;
  options.may_run_server = (flags & 3) == 2;
  options.new_agent_id = [] { return "id"; };
  options.on_step = only_legal;
  MemberMachine member(options);
  std::optional<Dialer> dialer;
  Clock::time_point now{std::chrono::hours(1)};
  std::vector<MemberEvent> events{member_event::Prepare{}, member_event::Begin{}};
  const auto step = [&] {
    for (std::size_t at = 0; at < events.size(); ++at) {
      for (const auto& action : member.step(MemberEvent(events[at]), now)) {
        if (const auto* dial = std::get_if<member_action::Dial>(&action)) {
          DialerOptions to;
          to.coordinators = {{"10.0.0.1", 7}, {"10.0.0.2", 7}};
          to.join = dial->join;
          to.on_step = only_legal;
          dialer.emplace(to);
          (void)dialer->begin(now);
          (void)dialer->connected(now);
          (void)dialer->shook_hands(HandshakeState::done, protocol_version, now);
        }
        if (std::holds_alternative<member_action::Hang>(action) ||
            std::holds_alternative<member_action::DropAll>(action)) {
          dialer.reset();
        }
        if (std::holds_alternative<member_action::StartServer>(action))
          events.emplace_back(member_event::ServerStarted{});
        if (const auto* open = std::get_if<member_action::OpenStore>(&action)) {
          events.emplace_back(member_event::StoreOpened{open->order.round, std::uint16_t{1}});
        }
      }
    }
    events.clear();
  };
  step();
  while (!input.empty()) {
    const auto what = input.byte();
    const Round round = 1 + what % 2;
    switch (what / 32) {
      case 0:
      case 1:
      case 2:
      case 3: {
        if (!dialer) break;
        const auto messages = from_coordinator(round, (flags & 1) != 0 ? 1 + what / 64 : 0);
        const auto& message = messages[input.byte() % messages.size()];
        const auto next =
            std::holds_alternative<Ping>(message) ? std::optional<DialStep>() : dialer->received(message, now);
        if (next && std::holds_alternative<LinkLoss>(next->next)) {
          events.emplace_back(std::get<LinkLoss>(next->next));
          dialer.reset();
        } else if (dialer->is_joined()) {
          events.emplace_back(message);
        } else {
          dialer.reset();  // it goes to another address, in vain
          events.emplace_back(LinkLoss{{Errc::timeout, "it was not reached"}});
        }
        break;
      }
      case 4: {
        const auto messages = from_agent(round);
        const auto& message = messages[what % messages.size()];
        if (member.state() < MemberState::closing) events.emplace_back(message);
        break;
      }
      case 5:
        if ((flags & 1) == 0) break;
        if (what % 4 == 0) events.emplace_back(lease::Tell(lease::Leader{what % 8U, "", true}));
        else if (what % 4 == 1) events.emplace_back(lease::Tell(lease::Leader{what % 8U, "b:1", false}));
        else if (what % 4 == 2) events.emplace_back(lease::Tell(lease::tell::Lost{"it is gone"}));
        else if (what % 8 == 3) events.emplace_back(lease::Tell(lease::tell::Verdict{serialize_verdict({})}));
        else events.emplace_back(lease::Tell(lease::tell::Unusable{{Errc::unavailable, "no etcd"}}));
        break;
      case 6:
        if (what % 4 == 0 && dialer) events.emplace_back(LinkLoss{{Errc::connection_lost, "it broke"}, what % 8 == 0});
        if (what % 4 == 1 && member.runs_coordinator()) events.emplace_back(member_event::ServerSteppedDown{1});
        if (what % 4 == 2 && member.runs_coordinator()) events.emplace_back(member_event::ServerDone{1});
        if (what % 4 == 3 && (flags & 1) != 0) events.emplace_back(member_event::Resigned{});
        break;
      default:
        now += time_of(what);
        if (member.next_deadline() && *member.next_deadline() <= now) events.emplace_back(member_event::TimeIsUp{});
    }
    step();
  }
}

void run_candidate(Input& input) {
  using namespace lease;
  LeaseOptions options{"job", milliseconds(4000), 8};
  options.on_step = only_legal;
  Candidate candidate(options, "prog", input.byte());
  FenceClock::time_point now{std::chrono::hours(1)};
  const auto step = [&](const Event& event) { (void)candidate.step(event, now); };
  step(event::TimeIsUp{});
  while (!input.empty()) {
    const auto what = input.byte();
    const auto number = std::uint64_t{input.byte()} % 16 + 1;
    switch (what % 16) {
      case 0: step(event::WantLead{"a:1"}); break;
      case 1: step(event::WantResign{number % 3, milliseconds(number % 2 * 500)}); break;
      case 2: step(event::Depose{number}); break;
      case 3: step(event::Record{"exit 0", number}); break;
      case 4: step(from_program::Line(from_program::Mine{number, what / 16 + 1U})); break;
      case 5: step(from_program::Line(from_program::Other{number, "b:1"})); break;
      case 6: step(from_program::Line(from_program::None{})); break;
      case 7: step(from_program::Line(from_program::Done{number})); break;
      case 8: step(from_program::Line(from_program::Resigned{})); break;
      case 9: step(from_program::Line(from_program::Recorded{})); break;
      case 10: step(from_program::Line(from_program::Refused{"no"})); break;
      case 11: step(from_program::Line(from_program::Verdict{what < 128 ? "exit 0" : "exit 1"})); break;
      case 12: step(event::Unparsable{"?"}); break;
      case 13: step(event::ProgramEnded{"exited"}); break;
      default: now += milliseconds(what < 128 ? 100 * number : 1000 * number); step(event::TimeIsUp{});
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, std::min<std::size_t>(size, 4096));
  switch (input.byte() % 3) {
    case 0: run_coordinator(input); break;
    case 1: run_member(input); break;
    default: run_candidate(input);
  }
  return 0;
}
