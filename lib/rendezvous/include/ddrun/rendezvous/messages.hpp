#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/ip_address.hpp"
#include "ddrun/spec/launch_spec.hpp"

// Messages between agents and the coordinator, as plain values: lib/rendezvous/PROTOCOL.md, sections 3 and 4.

namespace ddrun::rendezvous {

/// Connection number assigned by the transport; never reused.
using LinkId = std::uint64_t;

/// Addresses of a connection, known to the transport.
struct LinkAddresses {
  IpAddress peer_address;   ///< remote
  IpAddress local_address;  ///< local
};

/// Number of a round of a job, from 1.
using Round = std::uint64_t;

/// Settings that must be equal on all agents of a job: key and value, sorted by key.
using Settings = std::vector<std::pair<std::string, std::string>>;

/// Number of a job's coordinator; rises with each one, 0: no successor possible. A coordinator of a lower term is not
/// obeyed.
using Term = std::uint64_t;

// From an agent.
/// An agent's state of the last started round, for the coordinator of the next term.
struct RoundClaim {
  Term term = 0;  ///< of that START, else of the last WELCOME; 0: none
  Round round = 0;
  std::int32_t node_rank = -1;
  std::int32_t node_count = 0;
  std::string job_state;   ///< as in START
  bool succeeded = false;  ///< all local workers ended with success
  bool moved = false;      ///< the coordinator stepped down in order (RefusalKind::moved)
  bool operator==(const RoundClaim&) const = default;
};
struct Join {
  std::string version;  ///< of ddrun
  std::string job_id;
  std::string agent_id;         ///< random; distinguishes an agent from its successor on the same host
  std::string host;             ///< full name
  std::int32_t node_rank = -1;  ///< wanted; -1: any
  bool rank_is_wish = false;    ///< any, if the wanted one is another machine's
  std::uint32_t local_world_size = 1;
  std::string role = "default";
  std::string address;  ///< to advertise; empty: the address it connects from
  Settings settings;
  std::vector<std::string> own_addresses;  ///< of its machine: its workers may connect to the store from these
  RoundClaim claim;
  std::string machine;  ///< distinguishes machines with equal names, across their agents; empty: unknown
  bool operator==(const Join&) const = default;
};
struct Opened {
  Round round = 0;
  std::uint16_t port = 0;
  bool operator==(const Opened&) const = default;
};
struct Failed {
  Round round = 0;
  std::int32_t rank = 0;
  std::int32_t local_rank = 0;
  std::int32_t pid = 0;
  bool by_signal = false;
  std::int32_t code = 0;  ///< exit code or signal number
  bool core_dumped = false;
  bool may_restart = true;
  std::string why = {};   ///< the reason in a line, if it is known at once: the kernel's, a timer's, its own; or empty
  std::string role = {};  ///< of several programs; not sent, as these have one machine
  bool waited = false;    ///< its last words say that it waited in vain for other ranks
  bool declared = false;  ///< it has done what `why` says instead of ending with this exit code
  bool operator==(const Failed&) const = default;
};
struct Succeeded {
  Round round = 0;
  bool operator==(const Succeeded&) const = default;
};
/// The first failure of a node in a round: its description, which the coordinator passes on unread, and the evidence by
/// which it compares failures of nodes and rounds.
struct Failure {
  std::string full = {};     ///< JSON; empty: no failure
  std::string brief = {};    ///< the same without last lines and traceback, for reports of a line or two
  bool own = false;          ///< not a complaint about peers
  bool stopped = false;      ///< the worker was stopped
  bool explained = false;    ///< it ended by itself, with a reason
  std::int64_t time_us = 0;  ///< since 1970, by the node's clock
  std::string key = {};      ///< one line that is equal for failures of the same cause; empty: unknown
  bool operator==(const Failure&) const = default;
};
/// A worker of another node that failed before the one of the cause, or held up the others.
struct FailedFirst {
  std::string failure;  ///< as Failure::full or Failure::brief; empty: none
  std::string host;
  std::int32_t node_rank = -1;  ///< -1: not known
  bool operator==(const FailedFirst&) const = default;
};
struct Stopped {
  Round round = 0;
  Failure failure = {};
  std::string workers = {};  ///< JSON of all workers of the node in this round, or empty
  FailedFirst held_up = {};  ///< by the page of all machines, from the agent that got it; without its node rank
  bool operator==(const Stopped&) const = default;
};
enum class LeaveKind : std::uint8_t { signalled = 0, cannot_go_on = 1, time_is_up = 2, skewed = 3 };
struct Leave {
  LeaveKind kind = LeaveKind::signalled;
  std::int32_t code = 0;  ///< signal number, or exit code
  std::string text = {};  ///< sender of the signal, or what happened
  bool operator==(const Leave&) const = default;
};
struct Pong {
  std::uint32_t number = 0;
  std::uint32_t stalled_ms = 0;  ///< how long the agent's main thread has been blocked; 0: not
  std::uint64_t received = 0;    ///< sequenced messages from the coordinator so far
  bool operator==(const Pong&) const = default;
};
struct Resume {  ///< in place of Join on a new connection, after one broke
  std::string session;
  std::uint64_t received = 0;
  bool operator==(const Resume&) const = default;
};
/// A signal for the workers of all machines: from the agent that received it, and from the coordinator to each member.
struct PassSignal {
  Round round = 0;
  std::int32_t signal = 0;  ///< SIGUSR1 or SIGUSR2
  bool operator==(const PassSignal&) const = default;
};
/// A node's part of an exchange between the members of a round: what its MPI ranks tell those of other nodes.
struct Exchange {
  Round round = 0;
  std::uint32_t tag = 0;  ///< from 0, one more with each exchange
  std::string blob;       ///< opaque to the coordinator
  bool operator==(const Exchange&) const = default;
};
/// Of a part of an answer to a question, and of what is on the way of one agent.
inline constexpr std::size_t max_answer_part = std::size_t{32} << 10U;
/// Of the answers of all machines.
inline constexpr std::size_t max_all_answers = std::size_t{4} << 20U;
/// What a question to all machines asks for; others are answered with nothing.
inline constexpr std::uint8_t stacks_question = 0;
/// A question to all machines with workers. Its answers come as Page.
struct Ask {
  std::uint32_t number = 0;  ///< chosen by the agent, not 0
  std::uint8_t question = stacks_question;
  std::string options = {};  ///< of the question
  /// A stop follows the answers, which go to the agent that reports to the user; this one only gets their end.
  bool is_for_stop = false;
  bool operator==(const Ask&) const = default;
};
/// An answer to Look. On the connection it has parts of at most 32 KiB.
struct Stacks {
  std::uint32_t number = 0;  ///< of Look
  bool last = true;          ///< no part of this answer follows
  std::string part = {};     ///< opaque to the coordinator
  bool operator==(const Stacks&) const = default;
};
using FromAgent =
    std::variant<Join, Opened, Failed, Succeeded, Stopped, Leave, Pong, Resume, PassSignal, Exchange, Ask, Stacks>;

// From the coordinator.
struct Welcome {
  std::string coordinator_host;
  std::uint32_t heartbeat_ms = 1000;
  std::uint32_t heartbeat_misses = 3;
  std::string session;  ///< for Resume; known to these two only
  Term term = 0;
  bool operator==(const Welcome&) const = default;
};
enum class RefusalKind : std::uint8_t {
  permanent = 0,
  not_needed = 1,
  other_job = 2,
  lost = 3,   ///< counts as lost; may join again as a newcomer
  moved = 4,  ///< a coordinator of a higher term leads, or will
  taken = 5,  ///< a member has this node rank or id; a lost one is noticed after the heartbeat timeout
};
struct Refused {
  RefusalKind kind = RefusalKind::permanent;
  std::string why;
  bool operator==(const Refused&) const = default;
};
struct Waiting {
  std::uint32_t joined = 0;
  std::uint32_t min_nodes = 1;
  std::uint32_t max_nodes = 1;
  bool spare = false;
  std::string waiting_for;
  bool operator==(const Waiting&) const = default;
};
struct Open {
  Round round = 0;
  std::string address;
  std::vector<std::string> addresses;  ///< of all members: allowed to use the store
  bool operator==(const Open&) const = default;
};
struct Start {
  Round round = 0;
  /// All but round and run_id.
  RankAssignment ranks;
  Term term = 0;
  std::string job_state;  ///< for the coordinator of the next term; opaque to agents
  bool operator==(const Start&) const = default;
};
struct Stop {
  Round round = 0;
  bool another_round = false;
  std::string why;
  std::int32_t signal = 0;   ///< for the workers; 0: SIGTERM
  std::uint32_t look = 0;    ///< where the ranks are is to be sent first, as an answer to Look of this number; 0: not
  bool awaits_page = false;  ///< this agent gets the answers of all
  bool operator==(const Stop&) const = default;
};
enum class VerdictKind : std::uint8_t {
  success = 0,
  worker_failed = 1,      ///< no restart left, or the policy forbids one
  timed_out = 2,          ///< --timeout
  stopped_by_signal = 3,  ///< SIGTERM, Ctrl-C …
  launcher_failed = 4,    ///< ddrun itself failed
  node_lost = 5,          ///< no restart left after a loss, or the coordinator was lost
};
struct VerdictMessage {
  VerdictKind kind = VerdictKind::success;
  std::int32_t exit_code = 0;
  std::int32_t signal = 0;
  std::string host = {};        ///< of the cause; empty: no single host
  std::int32_t node_rank = -1;  ///< of that host
  std::int32_t rank = -1;       ///< of the worker that failed first
  std::string why = {};         ///< one sentence
  std::string cause = {};       ///< from its Stopped: Failure::full or Failure::brief
  FailedFirst failed_first = {};
  std::int32_t restarts = 0;
  std::string role = {};  ///< as Failed::role
  bool operator==(const VerdictMessage&) const = default;
};
enum class LogKind : std::uint8_t {
  event = 0,    ///< a line of JSON
  notice = 1,   ///< one sentence for the user
  report = 2,   ///< Stopped::workers of a node, or empty for one that was dropped
  warning = 3,  ///< the same as a notice, about this machine; never sent
};
/// For the agent that reports to the user.
struct Log {
  LogKind kind = LogKind::event;
  std::string text = {};
  // Of a report.
  Round round = 0;
  std::int32_t node_rank = -1;
  std::string host = {};
  bool operator==(const Log&) const = default;
};
struct Ping {
  std::uint32_t number = 0;
  std::uint64_t received = 0;  ///< sequenced messages from the agent so far
  std::uint32_t heard = 0;     ///< number of the agent's last PONG that has come; 0: none
  bool operator==(const Ping&) const = default;
};
struct Resumed {
  std::uint64_t received = 0;
  bool operator==(const Resumed&) const = default;
};
/// The blobs of consecutive nodes for a tag, once all are there; several of these are those of all nodes.
struct Exchanged {
  Round round = 0;
  std::uint32_t tag = 0;
  std::uint32_t first = 0;  ///< node rank of the first one
  std::vector<std::string> blobs;
  bool last = false;  ///< no further part of this tag follows
  bool operator==(const Exchanged&) const = default;
};
/// A question to a machine with workers, which answers with Stacks.
struct Look {
  std::uint32_t number = 0;  ///< not 0
  std::uint8_t question = stacks_question;
  std::string options = {};
  bool operator==(const Look&) const = default;
};
/// A part of a machine's answer, or the end of all answers.
struct Page {
  std::uint32_t number = 0;     ///< of Ask; 0: a stop has asked, and this agent reports to the user
  std::int32_t node_rank = -1;  ///< -1: the end
  std::string host = {};
  bool last = false;      ///< no part of this machine's answer follows
  std::string part = {};  ///< as in Stacks
  /// At the end: machines whose answer is missing, with the reason.
  std::vector<std::string> missing = {};
  bool operator==(const Page&) const = default;
};
using FromCoordinator = std::variant<Welcome, Refused, Waiting, Open, Start, Stop, VerdictMessage, Log, Ping, Resumed,
                                     PassSignal, Exchanged, Look, Page>;

template <class... Kinds>
[[nodiscard]] constexpr bool is_any(const FromCoordinator& message) {
  return (std::holds_alternative<Kinds>(message) || ...);
}

// From the member of a job to its agent, in one process.
/// The workers of this round may start.
struct RoundBegins {
  Round round;
  RankAssignment ranks;
};
/// The current round is over.
struct StopOrder {
  bool another_round;
  std::string why;
  int signal;  ///< for the workers; 0: SIGTERM
  /// From SIGTERM to SIGKILL, where the configured grace time is longer.
  Milliseconds max_grace = Milliseconds::max();
  std::uint32_t look = 0;    ///< as in Stop
  bool awaits_page = false;  ///< as in Stop
};
/// The job goes on without this node, or has ended. Nothing follows.
struct CoordinatorLost {
  std::string why;  ///< one sentence
};

/// What the member of a job tells its agent. VerdictMessage: the job is over, nothing follows. PassSignal: for the
/// workers of the current round. Waiting: on one machine, for a restart that is decided. Exchanged: of the current
/// round, in the order of tags and node ranks.
using ToAgent = std::variant<RoundBegins, StopOrder, VerdictMessage, CoordinatorLost, Log, PassSignal, Waiting,
                             Exchanged, Look, Page>;

}  // namespace ddrun::rendezvous
