#include "simulation_world.hpp"

#include <signal.h>

#include "ddrun/base/text.hpp"
#include "order_marks.hpp"

namespace ddrun::test {

namespace {

CoordinatorOptions options_of(const Scenario& scenario) {
  CoordinatorOptions options;
  if (scenario.embedded) {
    Join& own = options.own_join.emplace();
    own.version = "1.0";
    own.job_id = "job";
    own.agent_id = "agent0";
    own.settings = scenario.settings();
  }
  options.host = "host0";
  options.own_addresses = {*IpAddress::parse("10.0.0.0")};
  options.on_step = mark_steps("coordinator");
  return options;
}

}  // namespace

World::World(Scenario scenario, bool tracing)
    : scenario_(std::move(scenario)),
      tracing_(tracing),
      random_(scenario_.seed + 1),
      survey_random_(~scenario_.seed),
      network_(timeline_, random_,
               Network::Handlers{[this](LinkId link, const FromAgent& message) { coordinator_receives(link, message); },
                                 [this](LinkId link, const std::string& how) { coordinator_disconnected(link, how); },
                                 [this](std::size_t agent, LinkId link, const FromCoordinator& message) {
                                   receives(agent, link, message);
                                 },
                                 [this](std::size_t agent, LinkId link) { disconnected(agent, link); }}),
      coordinator_(options_of(scenario_)),
      invariants_(scenario_, coordinator_),
      start_(timeline_.now()) {
  network_.max_latency = scenario_.max_latency;
  network_.bandwidth = scenario_.bandwidth;
  for (int i = 0; i < scenario_.agents; ++i) {
    const int rank = scenario_.given_ranks && i < scenario_.max_nodes ? i : -1;
    const bool at_once = scenario_.embedded && i == 0;
    add_agent(concat("host", i), i, rank, at_once ? Clock::duration{0} : random_.time({}, scenario_.arrival_spread));
  }
  for (const auto& what : scenario_.disturbances) timeline_.in(what.when, [this, what] { disturb(what); });
  for (const auto& question : scenario_.questions) timeline_.in(question.when, [this, question] { ask(question); });
}

void World::run() {
  const auto end = start_ + scenario_.bound();
  while (timeline_.step()) {
    if (timeline_.now() > end && !coordinator_.done()) throw Violation("it is not over after its time");
    if (!coordinator_.done()) continue;
    bool all = true;
    for (const Agent& agent : agents_) all = all && agent.outcome != Outcome::none;
    if (all) break;
  }
  const bool never_joined =
      coordinator_.job().round == 0 && coordinator_.job().members.empty() && !coordinator_.job().verdict;
  if (!coordinator_.done() && !never_joined) throw Violation("nothing happens any more, but it is not over");
  invariants_.check_finished();
  check_outcomes();
}

void World::check_outcomes() const {
  for (const Agent& agent : agents_) {
    if (agent.outcome == Outcome::none) throw Violation(concat(agent.host, " heard no end"));
    if (agent.outcome == Outcome::coordinator_lost && agent.disturbed == 0 && !was_suspended_) {
      throw Violation(concat(agent.host, " lost its coordinator, but nothing was done to it"));
    }
  }
}

void World::run_coordinator(const std::function<void()>& what, bool ticked) {
  if (timeline_.now() < blocked_until_) {
    timeline_.at(blocked_until_, [this, what, ticked] { run_coordinator(what, ticked); });
    return;
  }
  what();
  for (auto& output : coordinator_.take_outputs()) {
    if (auto* ping = output.message ? std::get_if<Ping>(&*output.message) : nullptr) {
      ping->received = received_[output.link];
    }
    if (!output.message || !std::holds_alternative<Ping>(*output.message)) {
      note([&] { return concat("  to ", output.link, ": ", output.message ? output.message->index() + 65 : 0); });
    }
    invariants_.sends(output, timeline_.now());
    if (output.message) network_.send_to_agent(output.link, *output.message);
    else network_.close_by_coordinator(output.link);
  }
  invariants_.after_step(timeline_.now(), ticked);
  schedule_tick();
}

void World::schedule_tick() {
  const auto wanted = coordinator_.next_deadline();
  if (!wanted || (tick_at_ && *tick_at_ <= *wanted)) return;
  tick_at_ = wanted;
  timeline_.at(*wanted, [this, at = *wanted] {
    if (tick_at_ != at) return;
    tick_at_.reset();
    run_coordinator(
        [this] {
          const auto deadline = coordinator_.next_deadline();
          if (deadline && *deadline <= timeline_.now()) coordinator_.tick(timeline_.now());
        },
        true);
  });
}

void World::coordinator_receives(LinkId link, const FromAgent& message) {
  run_coordinator(
      [this, link, message] {
        if (coordinator_.done()) {
          network_.break_link(link, false, true);
          return;
        }
        if (is_counted(message)) ++received_[link];
        if (!std::holds_alternative<Pong>(message)) {
          note([&] { return concat("link ", link, " says ", message.index() + 1); });
        }
        if (const auto* join = std::get_if<Join>(&message)) {
          invariants_.joins(link, *join, timeline_.now());
          coordinator_.join(link, *join, addresses_.at(link), timeline_.now());
        } else {
          invariants_.receives(link, message, timeline_.now());
          coordinator_.receive(link, message, timeline_.now());
        }
      },
      false);
}

void World::coordinator_disconnected(LinkId link, const std::string& how) {
  run_coordinator(
      [this, link, how] {
        note([&] { return concat("link ", link, " is lost: ", how); });
        invariants_.disconnected(link);
        coordinator_.lost(link, how, timeline_.now());
      },
      false);
}

void World::disturb(const Scenario::Disturbance& what) {
  const std::size_t agent = what.agent % agents_.size();
  note([&] { return concat("disturbance ", static_cast<int>(what.kind), " of ", agents_[agent].host); });
  switch (what.kind) {
    case Scenario::Kind::crash:
    case Scenario::Kind::vanish: crash(agent, what.kind == Scenario::Kind::vanish); break;
    case Scenario::Kind::stall:
      if (is_own(agent) || agents_[agent].link == 0) break;
      note_fault(agent);
      network_.stall(agents_[agent].link, what.time);
      break;
    case Scenario::Kind::leave: leave(agent); break;
    case Scenario::Kind::leave_all:
      for (std::size_t each = 0; each < agents_.size(); ++each) {
        timeline_.in(random_.time({}, std::chrono::milliseconds(100)), [this, each] { leave(each); });
      }
      break;
    case Scenario::Kind::newcomer: {
      const int number = static_cast<int>(agents_.size());
      add_agent(concat("host", number), number, -1, {});
      break;
    }
    case Scenario::Kind::machine_restarted: {
      // The machine restarts, whether the coordinator has noticed its loss or not.
      if (is_own(agent)) break;
      const Agent& before = agents_[agent];
      crash(agent, random_.chance(0.5));
      add_agent(before.host, before.number, before.wanted_rank, what.time);
      if (random_.chance(0.2)) agents_.back().agent_id = before.agent_id;
      break;
    }
    case Scenario::Kind::wrong_settings: {
      const int number = static_cast<int>(agents_.size());
      agents_[add_agent(concat("host", number), number, -1, {})].wrong_settings = true;
      break;
    }
    case Scenario::Kind::coordinator_suspended:
      was_suspended_ = true;
      invariants_.note_coordinator_suspended(what.time);
      blocked_until_ = timeline_.now() + what.time;
      break;
  }
}

void World::note(const std::function<std::string()>& text) {
  if (!tracing_) return;
  const double at = std::chrono::duration<double>(timeline_.now() - start_).count();
  trace_.push_back(concat(std::to_string(at), " ", text()));
  if (trace_.size() > 120) trace_.pop_front();
}

std::string World::trace() const {
  std::string lines;
  for (const auto& line : trace_) lines += line + "\n";
  return lines;
}

World::Summary World::summary() const {
  return {coordinator_.job().verdict, coordinator_.job().round, network_.hash()};
}

}  // namespace ddrun::test
