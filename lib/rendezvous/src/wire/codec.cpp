#include "codec.hpp"

#include <concepts>
#include <type_traits>

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/fields.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous {

using bytes::put;
using bytes::Reader;

// Found by bytes::FieldReader.
static constexpr LeaveKind last(LeaveKind /*kind*/) { return LeaveKind::skewed; }
static constexpr LogKind last(LogKind /*kind*/) { return LogKind::report; }
static constexpr RefusalKind last(RefusalKind /*kind*/) { return RefusalKind::taken; }
static constexpr VerdictKind last(VerdictKind /*kind*/) { return VerdictKind::node_lost; }

namespace {

template <class Given, class Message>
concept Is = std::same_as<std::remove_const_t<Given>, Message>;

// One function per message with its fields in the order of PROTOCOL.md; `visitor` writes or reads them.

void fields(auto& visitor, Is<Join> auto& join) {
  visitor(join.version, join.job_id, join.agent_id, join.host);
  visitor.rank(join.node_rank, join.rank_is_wish);
  visitor(join.local_world_size, join.role, join.address, join.settings, join.own_addresses);
  auto& claim = join.claim;
  visitor(claim.term, claim.round, claim.node_rank, claim.node_count, claim.job_state, claim.succeeded, claim.moved);
  visitor(join.machine);
}
void fields(auto& visitor, Is<Opened> auto& opened) { visitor(opened.round, opened.port); }
void fields(auto& visitor, Is<Failed> auto& failed) {
  visitor(failed.round, failed.rank, failed.local_rank, failed.pid, failed.by_signal, failed.code, failed.core_dumped,
          failed.may_restart, failed.why, failed.waited, failed.declared);
}
void fields(auto& visitor, Is<Succeeded> auto& succeeded) { visitor(succeeded.round); }
void fields(auto& visitor, Is<Stopped> auto& stopped) {
  auto& failure = stopped.failure;
  visitor(stopped.round, failure.full, failure.brief, failure.own, failure.stopped, failure.explained, failure.time_us,
          failure.key, stopped.workers, stopped.held_up.failure, stopped.held_up.host);
}
void fields(auto& visitor, Is<Leave> auto& leave) { visitor(leave.kind, leave.code, leave.text); }
void fields(auto& visitor, Is<Pong> auto& pong) { visitor(pong.number, pong.stalled_ms, pong.received); }
void fields(auto& visitor, Is<Resume> auto& resume) { visitor(resume.session, resume.received); }

void fields(auto& visitor, Is<PassSignal> auto& pass) { visitor(pass.round, pass.signal); }
void fields(auto& visitor, Is<Exchange> auto& exchange) { visitor(exchange.round, exchange.tag, exchange.blob); }
void fields(auto& visitor, Is<Ask> auto& ask) { visitor(ask.number, ask.question, ask.options, ask.is_for_stop); }
void fields(auto& visitor, Is<Stacks> auto& stacks) { visitor(stacks.number, stacks.last, stacks.part); }

void fields(auto& visitor, Is<Welcome> auto& welcome) {
  visitor(welcome.coordinator_host, welcome.heartbeat_ms, welcome.heartbeat_misses, welcome.session, welcome.term);
}
void fields(auto& visitor, Is<Refused> auto& refused) { visitor(refused.kind, refused.why); }
void fields(auto& visitor, Is<Waiting> auto& waiting) {
  visitor(waiting.joined, waiting.min_nodes, waiting.max_nodes, waiting.spare, waiting.waiting_for);
}
void fields(auto& visitor, Is<Open> auto& open) { visitor(open.round, open.address, open.addresses); }
// Ranks are int elsewhere.
static_assert(sizeof(int) == sizeof(std::int32_t));
void fields(auto& visitor, Is<Start> auto& start) {
  auto& ranks = start.ranks;
  visitor(start.round, ranks.restart_count, ranks.max_restarts, ranks.node_rank, ranks.node_count, ranks.base_rank,
          ranks.local_world_size, ranks.world_size, ranks.role_base_rank, ranks.role_world_size, ranks.master_addr);
  visitor.port(ranks.master_port);
  visitor(start.term, start.job_state, ranks.host, ranks.hosts);
}
void fields(auto& visitor, Is<Stop> auto& stop) {
  visitor(stop.round, stop.another_round, stop.why, stop.signal, stop.look, stop.awaits_page);
}
void fields(auto& visitor, Is<VerdictMessage> auto& verdict) {
  visitor(verdict.kind, verdict.exit_code, verdict.signal, verdict.host, verdict.node_rank, verdict.rank, verdict.why,
          verdict.cause, verdict.failed_first.failure, verdict.failed_first.host, verdict.failed_first.node_rank,
          verdict.restarts);
}
void fields(auto& visitor, Is<Log> auto& log) { visitor(log.kind, log.text, log.round, log.node_rank, log.host); }
void fields(auto& visitor, Is<Ping> auto& ping) { visitor(ping.number, ping.received, ping.heard); }
void fields(auto& visitor, Is<Resumed> auto& resumed) { visitor(resumed.received); }
void fields(auto& visitor, Is<Exchanged> auto& part) {
  visitor(part.round, part.tag, part.first, part.blobs, part.last);
}
void fields(auto& visitor, Is<Look> auto& look) { visitor(look.number, look.question, look.options); }
void fields(auto& visitor, Is<Page> auto& page) {
  visitor(page.number, page.node_rank, page.host, page.last, page.part, page.missing);
}

struct FieldWriter : bytes::FieldWriter {
  void port(int value) { put(to, static_cast<std::uint16_t>(value)); }
  void rank(std::int32_t rank, bool is_wish) { put(to, is_wish ? -2 - rank : rank); }
};

struct FieldReader : bytes::FieldReader {
  void port(int& value) { value = from.number<std::uint16_t>(); }
  void rank(std::int32_t& rank, bool& is_wish) {
    rank = from.number<std::int32_t>();
    is_wish = rank < -1;
    if (is_wish) rank = -2 - rank;
  }
};

// In the order of the variants.
constexpr std::uint8_t agent_types[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13};
constexpr std::uint8_t coordinator_types[] = {65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 78, 79};
constexpr const char* agent_names[] = {"JOIN", "OPENED", "FAILED",      "SUCCEEDED", "STOPPED", "LEAVE",
                                       "PONG", "RESUME", "PASS_SIGNAL", "EXCHANGE",  "ASK",     "STACKS"};
constexpr const char* coordinator_names[] = {"WELCOME",     "REFUSED",   "WAITING", "OPEN", "START",
                                             "STOP",        "VERDICT",   "LOG",     "PING", "RESUMED",
                                             "PASS_SIGNAL", "EXCHANGED", "LOOK",    "PAGE"};

template <class Of>
constexpr const auto& types_of() {
  if constexpr (std::same_as<Of, FromAgent>) return agent_types;
  else return coordinator_types;
}
template <class Message, class Of, std::size_t index = 0>
constexpr std::uint8_t type_of() {
  if constexpr (std::same_as<std::variant_alternative_t<index, Of>, Message>) return types_of<Of>()[index];
  else return type_of<Message, Of, index + 1>();
}
static_assert(std::size(agent_types) == std::variant_size_v<FromAgent> &&
              std::size(agent_names) == std::size(agent_types));
static_assert(std::size(coordinator_types) == std::variant_size_v<FromCoordinator> &&
              std::size(coordinator_names) == std::size(coordinator_types));

template <class Message>
std::uint8_t encode_any(const Message& message, std::string& payload) {
  payload.clear();
  FieldWriter visitor{{payload}};
  std::visit([&](const auto& alternative) { fields(visitor, alternative); }, message);
  return types_of<Message>()[message.index()];
}

template <class Message, std::size_t index = 0>
Result<Message> decode_any(std::uint8_t type, std::string_view payload) {
  if constexpr (index == std::variant_size_v<Message>) {
    return fail(Errc::unsupported, concat("a message of the unknown type ", int{type}));
  } else {
    if (type != types_of<Message>()[index]) return decode_any<Message, index + 1>(type, payload);
    Reader reader(payload);
    std::variant_alternative_t<index, Message> message;
    FieldReader visitor{{reader}};
    fields(visitor, message);
    if (!reader.ok()) {
      return fail(Errc::protocol,
                  concat(type_name(type), " with a payload of ", payload.size(), " bytes that cannot be read"));
    }
    return message;
  }
}

// Texts that a message can be sent without; only these may be long.
std::vector<std::string*> optional_texts(FromAgent& message) {
  if (auto* stopped = std::get_if<Stopped>(&message)) return {&stopped->workers, &stopped->failure.full};
  if (auto* leave = std::get_if<Leave>(&message)) return {&leave->text};
  return {};
}
std::vector<std::string*> optional_texts(FromCoordinator& message) {
  if (auto* log = std::get_if<Log>(&message)) return {&log->text};
  return {};
}

template <class Message>
std::optional<std::uint8_t> encode_shortened(Message& message, std::string& payload, std::size_t max_size) {
  const auto type = encode(message, payload);
  for (auto* text : optional_texts(message)) {
    if (payload.size() <= max_size) break;
    text->clear();
    encode(message, payload);
  }
  return payload.size() <= max_size ? std::optional(type) : std::nullopt;
}

}  // namespace

std::uint8_t encode(const FromAgent& message, std::string& payload) { return encode_any(message, payload); }

std::uint8_t encode(const FromCoordinator& message, std::string& payload) { return encode_any(message, payload); }

std::optional<std::uint8_t> encode(FromAgent& message, std::string& payload, std::size_t max_size) {
  return encode_shortened(message, payload, max_size);
}

std::optional<std::uint8_t> encode(FromCoordinator& message, std::string& payload, std::size_t max_size) {
  return encode_shortened(message, payload, max_size);
}

Result<FromAgent> decode_from_agent(std::uint8_t type, std::string_view payload) {
  return decode_any<FromAgent>(type, payload);
}

Result<FromCoordinator> decode_from_coordinator(std::uint8_t type, std::string_view payload) {
  return decode_any<FromCoordinator>(type, payload);
}

bool is_sequenced(std::uint8_t type) {
  switch (type) {
    case type_of<Join, FromAgent>():
    case type_of<Pong, FromAgent>():
    case type_of<Resume, FromAgent>():
    case type_of<Ping, FromCoordinator>():
    case type_of<Resumed, FromCoordinator>(): return false;
    default: return true;
  }
}

const char* type_name(std::uint8_t type) {
  for (std::size_t i = 0; i < std::size(agent_types); ++i) {
    if (agent_types[i] == type) return agent_names[i];
  }
  for (std::size_t i = 0; i < std::size(coordinator_types); ++i) {
    if (coordinator_types[i] == type) return coordinator_names[i];
  }
  return "?";
}

}  // namespace ddrun::rendezvous
