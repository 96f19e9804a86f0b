#include <signal.h>

#include "ddrun/base/text.hpp"
#include "simulation_world.hpp"

// An agent that follows the protocol, with workers that succeed, fail, stop slowly or never.

namespace ddrun::test {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// As AgentLinkOptions has it.
constexpr milliseconds conflict_timeout{6'000};

std::size_t World::add_agent(const std::string& host, int number, int wanted_rank, Clock::duration when) {
  const std::size_t index = agents_.size();
  Agent& agent = agents_.emplace_back();
  agent.host = host;
  agent.exchange = SimulatedExchange(scenario_.exchanges);
  agent.number = number;
  agent.agent_id = concat("agent", index);
  agent.wanted_rank = wanted_rank;
  timeline_.in(when, [this, index] { connect(index); });
  if (!is_own(index) && random_.chance(scenario_.reconnecting)) {
    timeline_.in(when + random_.time({}, milliseconds(500)), [this, index] {
      // The first connection was given up before any reply, and the coordinator may not know.
      Agent& again = agents_[index];
      if (again.outcome != Outcome::none || again.welcomed || again.link == 0) return;
      note_fault(index);
      network_.break_link(again.link, random_.chance(0.5), false);
      connect(index);
    });
  }
  return index;
}

void World::connect(std::size_t index) {
  Agent& agent = agents_[index];
  if (agent.outcome != Outcome::none) return;
  if (coordinator_.done()) {
    agent.outcome = Outcome::no_coordinator;
    return;
  }
  agent.joined = true;
  agent.questions.forget_open();
  agent.answers = {};
  agent.link = network_.connect(index);
  note([&] { return concat(agent.host, " dials, link ", agent.link); });
  const std::string address = concat("10.0.", agent.number / 250, ".", agent.number % 250);
  addresses_[agent.link] = LinkAddresses{*IpAddress::parse(address), *IpAddress::parse("10.0.0.0")};
  if (agent.disturbed > 0) invariants_.note_fault(agent.link);
  Join join;
  join.version = "1.0";
  join.job_id = "job";
  join.agent_id = agent.agent_id;
  join.host = agent.host;
  join.node_rank = agent.wanted_rank;
  join.local_world_size = static_cast<std::uint32_t>(1 + agent.number % 3);
  join.role = agent.number % 4 == 3 ? "other" : "default";
  join.settings = scenario_.settings();
  if (agent.wrong_settings) join.settings.emplace_back("other", "1");
  network_.send_to_coordinator(agent.link, join);
  // An agent without any reply gives up eventually.
  timeline_.in(seconds(30), [this, index, link = agent.link] {
    Agent& waiting = agents_[index];
    if (waiting.outcome != Outcome::none || waiting.link != link || waiting.welcomed) return;
    network_.close_by_agent(link);
    ends(index, Outcome::coordinator_lost);
  });
}

void World::sends(std::size_t index, const FromAgent& message) {
  Agent& agent = agents_[index];
  if (agent.outcome != Outcome::none) return;
  agent.answers.note_sent(message);
  network_.send_to_coordinator(agent.link, message);
}

void World::receives(std::size_t index, LinkId link, const FromCoordinator& message) {
  Agent& agent = agents_[index];
  if (agent.outcome != Outcome::none || agent.link != link) return;
  agent.last_heard = timeline_.now();
  if (std::holds_alternative<Welcome>(message)) {
    if (agent.welcomed) throw Violation(concat(agent.host, " is welcomed twice"));
    agent.welcomed = true;
    watch(index);
  } else if (const auto* ping = std::get_if<Ping>(&message)) {
    on(index, *ping);
  } else if (const auto* open = std::get_if<Open>(&message)) {
    on(index, *open);
  } else if (const auto* start = std::get_if<Start>(&message)) {
    on(index, *start);
  } else if (const auto* part = std::get_if<Exchanged>(&message)) {
    on(index, *part);
  } else if (const auto* look = std::get_if<Look>(&message)) {
    answer(index, look->number);
  } else if (const auto* page = std::get_if<Page>(&message)) {
    agent.questions.take(*page);
  } else if (const auto* stop = std::get_if<Stop>(&message)) {
    on(index, *stop);
  } else if (const auto* refused = std::get_if<Refused>(&message)) {
    network_.close_by_agent(link);
    if (refused->kind == RefusalKind::taken) {
      if (!agent.taken_since) agent.taken_since = timeline_.now();
      if (timeline_.now() - *agent.taken_since < conflict_timeout) {
        timeline_.in(seconds(1), [this, index, link] {
          if (agents_[index].link == link) connect(index);  // else it has dialled again meanwhile
        });
        return;
      }
    }
    ends(index, Outcome::refused);
  } else if (std::holds_alternative<VerdictMessage>(message)) {
    // A slow one is closed by the coordinator.
    if (random_.chance(0.9)) network_.close_by_agent(link);
    ends(index, Outcome::verdict);
  }
}

void World::on(std::size_t index, const Open& open) {
  Agent& agent = agents_[index];
  if (!agent.sent_stopped) throw Violation(concat(agent.host, " is to open a round while it is in another"));
  agent.round = open.round;
  agent.sent_stopped = false;
  agent.workers = Workers::opening;
  if (random_.chance(scenario_.stuck)) {
    note_fault(index);
    return;
  }
  timeline_.in(random_.time({}, milliseconds(20)), [this, index, round = open.round] {
    Agent& opening = agents_[index];
    if (opening.round != round || opening.workers != Workers::opening) return;
    if (random_.chance(scenario_.aborting)) sends(index, Leave{LeaveKind::cannot_go_on, 125, "the port is taken"});
    else sends(index, Opened{round, 29'500});
  });
}

void World::on(std::size_t index, const Start& start) {
  Agent& agent = agents_[index];
  if (start.round != agent.round && !agent.sent_stopped) {
    throw Violation(concat(agent.host, " is to start a round while it is in another"));
  }
  agent.round = start.round;
  agent.base_rank = start.ranks.base_rank;
  agent.sent_stopped = false;
  agent.workers = Workers::running;
  agent.owes_success = false;
  contribute_later(index, agent.exchange.begin(start));
  // With a window restarts are unlimited, so failures must be bounded.
  const bool fails = start.round < 30 && random_.chance(scenario_.failing);
  timeline_.in(random_.time({}, scenario_.max_run),
               [this, index, round = start.round, fails] { workers_end(index, round, !fails); });
  if (random_.chance(scenario_.aborting)) {
    timeline_.in(random_.time({}, scenario_.max_run), [this, index] {
      if (agents_[index].workers != Workers::running) return;
      const bool time_is_up = random_.chance(0.5);
      sends(index,
            Leave{time_is_up ? LeaveKind::time_is_up : LeaveKind::cannot_go_on, time_is_up ? 124 : 125, "trouble"});
      stop_workers(index);
    });
  }
}

void World::contribute_later(std::size_t index, std::optional<Exchange> part) {
  if (!part) return;
  timeline_.in(random_.time({}, scenario_.max_run / 2), [this, index, part = *part] {
    const Agent& agent = agents_[index];
    if (agent.round == part.round && agent.workers == Workers::running) sends(index, part);
  });
}

void World::on(std::size_t index, const Exchanged& part) {
  Agent& agent = agents_[index];
  if (agent.workers != Workers::running) return;
  contribute_later(index, agent.exchange.take(part));
  if (agent.owes_success && agent.exchange.is_complete()) workers_end(index, part.round, true);
}

// ---- questions to all machines

void World::ask(const Scenario::Question& question) {
  const std::size_t index = question.agent % agents_.size();
  Agent& agent = agents_[index];
  if (agent.welcomed) sends(index, agent.questions.ask(question.options, question.is_for_stop));
}

void World::answer(std::size_t index, std::uint32_t look) {
  if (survey_random_.chance(scenario_.mute)) return;
  const std::size_t size = 64 + survey_random_.below(scenario_.max_answer);
  timeline_.in(survey_random_.time({}, scenario_.max_reading), [this, index, look, size, link = agents_[index].link] {
    Agent& agent = agents_[index];
    if (agent.link != link) return;
    agent.answers.add({look, true, answer_of(agent.host, size)});
    send_answers(index);
  });
}

void World::send_answers(std::size_t index) {
  while (const auto part = agents_[index].answers.next()) sends(index, *part);
}

void World::on(std::size_t index, const Ping& ping) {
  agents_[index].answers.confirm(ping);
  send_answers(index);
  sends(index, Pong{ping.number});
}

/// Its workers may have stopped before the answer is sent.
void World::on(std::size_t index, const Stop& stop) {
  if (stop.look != 0 && !agents_[index].sent_stopped) answer(index, stop.look);
  stop_workers(index);
}

void World::workers_end(std::size_t index, Round round, bool well) {
  Agent& agent = agents_[index];
  if (agent.round != round || agent.workers != Workers::running || agent.outcome != Outcome::none) return;
  if (well) {
    agent.owes_success = !agent.exchange.is_complete();
    if (agent.owes_success) return;
    sends(index, Succeeded{round});
    stop_workers(index);
    return;
  }
  Failed failed;
  failed.round = round;
  failed.rank = agent.base_rank;
  failed.by_signal = random_.chance(0.3);
  failed.code = failed.by_signal ? SIGSEGV : random_.between(1, 255);
  failed.may_restart = random_.chance(0.95);
  failed.waited = survey_random_.chance(scenario_.waited);
  sends(index, failed);
  stop_workers(index);
}

void World::stop_workers(std::size_t index) {
  Agent& agent = agents_[index];
  if (agent.workers == Workers::stopping || agent.sent_stopped) return;
  agent.workers = Workers::stopping;
  if (random_.chance(scenario_.stuck)) {
    note_fault(index);
    return;
  }
  const Clock::duration longest = random_.chance(0.8) ? Clock::duration(milliseconds(10)) : scenario_.grace;
  timeline_.in(random_.time({}, longest), [this, index, round = agent.round] {
    Agent& stopping = agents_[index];
    if (stopping.round != round || stopping.sent_stopped) return;
    stopping.workers = Workers::none;
    stopping.sent_stopped = true;
    sends(index, Stopped{round, {"cause", "cause"}, "workers"});
  });
}

void World::watch(std::size_t index) {
  Agent& agent = agents_[index];
  const auto bound = milliseconds(3'500);
  if (agent.outcome != Outcome::none) return;
  if (timeline_.now() - agent.last_heard >= bound) {
    note([&] { return concat(agent.host, " takes the coordinator for lost"); });
    network_.close_by_agent(agent.link);
    ends(index, Outcome::coordinator_lost);
    return;
  }
  timeline_.at(agent.last_heard + bound, [this, index] { watch(index); });
}

void World::disconnected(std::size_t index, LinkId link) {
  Agent& agent = agents_[index];
  if (agent.link != link || agent.outcome != Outcome::none) return;
  ends(index, coordinator_.done() && !agent.welcomed ? Outcome::no_coordinator : Outcome::coordinator_lost);
}

void World::ends(std::size_t index, Outcome outcome) {
  agents_[index].outcome = outcome;
  agents_[index].workers = Workers::none;
}

void World::leave(std::size_t index) {
  Agent& agent = agents_[index];
  if (agent.outcome != Outcome::none || agent.leaving) return;
  if (agent.link == 0) {
    ends(index, Outcome::crashed);
    return;
  }
  agent.leaving = true;
  sends(index, Leave{LeaveKind::signalled, random_.chance(0.5) ? SIGINT : SIGTERM, "pid 1"});
  stop_workers(index);
}

void World::crash(std::size_t index, bool silently) {
  Agent& agent = agents_[index];
  if (is_own(index) || agent.outcome != Outcome::none) return;
  note_fault(index);
  if (agent.link != 0) network_.break_link(agent.link, !silently, false);
  ends(index, silently ? Outcome::vanished : Outcome::crashed);
}

void World::note_fault(std::size_t index) {
  ++agents_[index].disturbed;
  if (agents_[index].link != 0) invariants_.note_fault(agents_[index].link);
}

}  // namespace ddrun::test
