#include <algorithm>

#include "causes.hpp"
#include "coordinator_state.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/event_text.hpp"

namespace ddrun::rendezvous {

namespace {

// With the most nodes that settings allow, ranks still fit into an int.
constexpr std::uint32_t most_workers_of_a_node = 16'384;

}  // namespace

void Coordinator::State::join(LinkId link, const Join& join, const LinkFacts& facts) {
  if (members_.find(link) != nullptr || drop_claim(link)) {
    close(link);
    lost(link, "it sent a second JOIN");
    return;
  }
  // Nobody is there and nothing has run: it is the newcomer's job.
  if (members_.empty() && !memory_.started && !memory_.verdict) {
    memory_.settings.clear();
    memory_.job_id.clear();
    join_until_.reset();
    last_call_.reset();
    last_call_over_ = false;
    last_cause_.reset();
    answered_ = expected_ = 0;
  }
  if (const std::string why = objection(join); !why.empty()) {
    event(event_text::refused(join.host, facts.peer_address.text(), why));
    const bool other_job = join.job_id != job_id(join);
    refuse(link, other_job ? RefusalKind::other_job : RefusalKind::for_good, why);
    if (!other_job) count_answered(join);
  } else if (memory_.verdict) {
    answer_after_the_end(link);
    count_answered(join);
  } else if (Seat* rival = members_.rival(join)) {
    dispute(link, join, facts, *rival);
  } else {
    count_answered(join);
    admit(link, join, facts);
  }
}

void Coordinator::State::count_answered(const Join& join) {
  ++answered_;
  expected_ = std::max<std::uint64_t>(expected_, join.agents_expected);
  if (answered_ >= expected_) latecomers_until_.reset();
}

/// Of the job that is served, if it is known yet; otherwise the newcomer's.
const std::string& Coordinator::State::job_id(const Join& join) const {
  if (!options_.job_id.empty()) return options_.job_id;
  return memory_.job_id.empty() ? join.job_id : memory_.job_id;
}

std::string Coordinator::State::objection(const Join& join) {
  if (const std::string& job = job_id(join); join.job_id != job) {
    return concat("the coordinator on ", options_.host, " serves the job ", job, ", not ", join.job_id,
                  "; give both the same --rdzv-id, or this one another endpoint");
  }
  if (join.agent_id.empty()) return "an agent needs an id";
  if (join.local_world_size == 0 || join.local_world_size > most_workers_of_a_node) {
    return concat("a node has 1 to ", most_workers_of_a_node, " workers, not ", join.local_world_size);
  }
  if (memory_.settings.empty()) {
    const auto meaning = read_settings(join.settings);
    if (!meaning) return meaning.error().message;
    memory_.adopt(join, *meaning);
  }
  if (join.version != memory_.version) {
    return concat("this is ddrun ", join.version, ", but the other nodes of the job run ", memory_.version);
  }
  if (const std::string different = describe_differences(memory_.settings, join.settings); !different.empty()) {
    return concat("this node and those that are there do not agree: ", different);
  }
  if (join.node_rank < -1 || join.node_rank >= memory_.meaning.max_nodes) {
    return concat("node rank ", join.node_rank, " is not from 0 to ", memory_.meaning.max_nodes - 1);
  }
  if (memory_.excluded(join.host)) {
    return concat(join.host, " is left out: its workers failed ", memory_.meaning.node_max_failures,
                  " times (--node-max-failures)");
  }
  return "";
}

void Coordinator::State::admit(LinkId link, const Join& join, const LinkFacts& facts) {
  const JobSettings& job = memory_.meaning;
  Seat& seat = members_.add(link, join, facts, now);
  heartbeat_.add(link, now);
  send(link, Welcome{options_.host, static_cast<std::uint32_t>(options_.heartbeat_interval.count()),
                     static_cast<std::uint32_t>(options_.heartbeat_misses), memory_.job_id});
  const bool in_time = phase_ == Phase::gathering || (phase_ == Phase::stopping && !ending_->for_good);
  const bool joins_now = (phase_ == Phase::opening || phase_ == Phase::running) && !any_succeeded_ &&
                         members_.available() <= job.max_nodes;
  const bool spare = !joins_now && (!in_time || members_.available() > job.max_nodes);
  event(event_text::joined(seat.node(), seat.local_world_size, members_.available(), spare));
  if (phase_ == Phase::gathering) {
    gather();
    if (phase_ != Phase::gathering || members_.find(link) == nullptr) return;
    const int wanted = job.min_nodes - members_.available();
    tell_waiting(seat, spare,
                 wanted > 0     ? causes::more_nodes(wanted)
                 : pause_until_ ? "the end of the pause before the restart"
                                : "the end of the last call");
    return;
  }
  tell_waiting(seat, spare,
               spare                                    ? "a place in the job"
               : phase_ == Phase::stopping || joins_now ? "the end of the round before"
                                                        : "the next round");
  if (joins_now) meet_again(concat(describe(seat), " joins"));
}

void Coordinator::State::tell_waiting(Seat& seat, bool spare, const std::string& what_for) {
  seat.told_spare = spare;
  send(seat.link,
       Waiting{static_cast<std::uint32_t>(members_.available()), static_cast<std::uint32_t>(memory_.meaning.min_nodes),
               static_cast<std::uint32_t>(memory_.meaning.max_nodes), spare, what_for});
}

void Coordinator::State::answer_after_the_end(LinkId link) {
  tell_the_end(link, false);
  close(link);
}

}  // namespace ddrun::rendezvous
