#include "codec.hpp"

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous {

using bytes::put;
using bytes::put_text;
using bytes::Reader;

namespace {

// One function per message and direction of travel, fields in the page's order.

void write(std::string& to, const Join& join) {
  put_text(to, join.version);
  put_text(to, join.job_id);
  put_text(to, join.agent_id);
  put_text(to, join.host);
  put(to, join.node_rank);
  put(to, join.local_world_size);
  put_text(to, join.role);
  put_text(to, join.address);
  put(to, join.runs_coordinator);
  put(to, join.clock_us);
  put(to, static_cast<std::uint32_t>(join.settings.size()));
  for (const auto& [key, value] : join.settings) {
    put_text(to, key);
    put_text(to, value);
  }
  put(to, static_cast<std::uint32_t>(join.own_addresses.size()));
  for (const auto& address : join.own_addresses) put_text(to, address);
  put(to, join.agents_expected);
}
void read(Reader& from, Join& join) {
  join.version = from.text();
  join.job_id = from.text();
  join.agent_id = from.text();
  join.host = from.text();
  join.node_rank = from.number<std::int32_t>();
  join.local_world_size = from.number<std::uint32_t>();
  join.role = from.text();
  join.address = from.text();
  join.runs_coordinator = from.boolean();
  join.clock_us = from.number<std::int64_t>();
  for (auto left = from.count(8); left > 0; --left) {
    const auto key = from.text();
    join.settings.emplace_back(key, from.text());
  }
  for (auto left = from.count(4); left > 0; --left) join.own_addresses.emplace_back(from.text());
  join.agents_expected = from.number<std::uint32_t>();
}

void write(std::string& to, const Opened& opened) {
  put(to, opened.round);
  put(to, opened.port);
}
void read(Reader& from, Opened& opened) {
  opened.round = from.number<Round>();
  opened.port = from.number<std::uint16_t>();
}

void write(std::string& to, const Failed& failed) {
  put(to, failed.round);
  put(to, failed.rank);
  put(to, failed.local_rank);
  put(to, failed.pid);
  put(to, failed.by_signal);
  put(to, failed.code);
  put(to, failed.core_dumped);
  put(to, failed.may_restart);
}
void read(Reader& from, Failed& failed) {
  failed.round = from.number<Round>();
  failed.rank = from.number<std::int32_t>();
  failed.local_rank = from.number<std::int32_t>();
  failed.pid = from.number<std::int32_t>();
  failed.by_signal = from.boolean();
  failed.code = from.number<std::int32_t>();
  failed.core_dumped = from.boolean();
  failed.may_restart = from.boolean();
}

void write(std::string& to, const Succeeded& succeeded) { put(to, succeeded.round); }
void read(Reader& from, Succeeded& succeeded) { succeeded.round = from.number<Round>(); }

void write(std::string& to, const Stopped& stopped) {
  put(to, stopped.round);
  put_text(to, stopped.cause);
  put_text(to, stopped.workers);
}
void read(Reader& from, Stopped& stopped) {
  stopped.round = from.number<Round>();
  stopped.cause = from.text();
  stopped.workers = from.text();
}

void write(std::string& to, const Leave& leave) {
  put(to, leave.signal);
  put_text(to, leave.sender);
}
void read(Reader& from, Leave& leave) {
  leave.signal = from.number<std::int32_t>();
  leave.sender = from.text();
}

void write(std::string& to, const Abort& abort) {
  put(to, static_cast<std::uint8_t>(abort.kind));
  put(to, abort.exit_code);
  put_text(to, abort.what);
}
void read(Reader& from, Abort& abort) {
  abort.kind = from.choice<AbortKind>(static_cast<std::uint8_t>(AbortKind::skewed));
  abort.exit_code = from.number<std::int32_t>();
  abort.what = from.text();
}

void write(std::string& to, const Pong& pong) { put(to, pong.number); }
void read(Reader& from, Pong& pong) { pong.number = from.number<std::uint32_t>(); }

void write(std::string& to, const Welcome& welcome) {
  put_text(to, welcome.coordinator_host);
  put(to, welcome.heartbeat_ms);
  put(to, welcome.heartbeat_misses);
  put_text(to, welcome.job_id);
}
void read(Reader& from, Welcome& welcome) {
  welcome.coordinator_host = from.text();
  welcome.heartbeat_ms = from.number<std::uint32_t>();
  welcome.heartbeat_misses = from.number<std::uint32_t>();
  welcome.job_id = from.text();
}

void write(std::string& to, const Refused& refused) {
  put(to, static_cast<std::uint8_t>(refused.kind));
  put_text(to, refused.why);
}
void read(Reader& from, Refused& refused) {
  refused.kind = from.choice<RefusalKind>(static_cast<std::uint8_t>(RefusalKind::other_job));
  refused.why = from.text();
}

void write(std::string& to, const Waiting& waiting) {
  put(to, waiting.here);
  put(to, waiting.min_nodes);
  put(to, waiting.max_nodes);
  put(to, waiting.spare);
  put_text(to, waiting.what_for);
}
void read(Reader& from, Waiting& waiting) {
  waiting.here = from.number<std::uint32_t>();
  waiting.min_nodes = from.number<std::uint32_t>();
  waiting.max_nodes = from.number<std::uint32_t>();
  waiting.spare = from.boolean();
  waiting.what_for = from.text();
}

void write(std::string& to, const Open& open) {
  put(to, open.round);
  put_text(to, open.address);
  put(to, open.port);
  put(to, static_cast<std::uint32_t>(open.addresses.size()));
  for (const auto& address : open.addresses) put_text(to, address);
}
void read(Reader& from, Open& open) {
  open.round = from.number<Round>();
  open.address = from.text();
  open.port = from.number<std::uint16_t>();
  for (auto left = from.count(4); left > 0; --left) open.addresses.emplace_back(from.text());
}

// Ranks are what the rest of ddrun has as int.
static_assert(sizeof(int) == sizeof(std::int32_t));
void write(std::string& to, const Start& start) {
  put(to, start.round);
  const auto& ranks = start.ranks;
  for (const int number : {ranks.restart_count, ranks.max_restarts, ranks.node_rank, ranks.node_count, ranks.base_rank,
                           ranks.local_world_size, ranks.world_size, ranks.role_base_rank, ranks.role_world_size}) {
    put(to, number);
  }
  put_text(to, ranks.master_addr);
  put(to, static_cast<std::uint16_t>(ranks.master_port));
}
void read(Reader& from, Start& start) {
  start.round = from.number<Round>();
  auto& ranks = start.ranks;
  for (int* number : {&ranks.restart_count, &ranks.max_restarts, &ranks.node_rank, &ranks.node_count, &ranks.base_rank,
                      &ranks.local_world_size, &ranks.world_size, &ranks.role_base_rank, &ranks.role_world_size}) {
    *number = from.number<std::int32_t>();
  }
  ranks.master_addr = from.text();
  ranks.master_port = from.number<std::uint16_t>();
}

void write(std::string& to, const Stop& stop) {
  put(to, stop.round);
  put(to, stop.another_round);
  put_text(to, stop.why);
  put(to, stop.signal);
}
void read(Reader& from, Stop& stop) {
  stop.round = from.number<Round>();
  stop.another_round = from.boolean();
  stop.why = from.text();
  stop.signal = from.number<std::int32_t>();
}

void write(std::string& to, const VerdictMessage& verdict) {
  put(to, static_cast<std::uint8_t>(verdict.kind));
  put(to, verdict.exit_code);
  put(to, verdict.signal);
  put_text(to, verdict.host);
  put(to, verdict.node_rank);
  put(to, verdict.rank);
  put_text(to, verdict.why);
  put_text(to, verdict.cause);
  put(to, verdict.restarts);
}
void read(Reader& from, VerdictMessage& verdict) {
  verdict.kind = from.choice<VerdictKind>(static_cast<std::uint8_t>(VerdictKind::node_lost));
  verdict.exit_code = from.number<std::int32_t>();
  verdict.signal = from.number<std::int32_t>();
  verdict.host = from.text();
  verdict.node_rank = from.number<std::int32_t>();
  verdict.rank = from.number<std::int32_t>();
  verdict.why = from.text();
  verdict.cause = from.text();
  verdict.restarts = from.number<std::int32_t>();
}

void write(std::string& to, const NodeReport& report) {
  put(to, report.round);
  put(to, report.node_rank);
  put_text(to, report.host);
  put_text(to, report.workers);
}
void read(Reader& from, NodeReport& report) {
  report.round = from.number<Round>();
  report.node_rank = from.number<std::int32_t>();
  report.host = from.text();
  report.workers = from.text();
}

void write(std::string& to, const Ping& ping) { put(to, ping.number); }
void read(Reader& from, Ping& ping) { ping.number = from.number<std::uint32_t>(); }

void write(std::string& to, const EventLine& event) { put_text(to, event.json); }
void read(Reader& from, EventLine& event) { event.json = from.text(); }

// Types are numbered in the order in which the variants list them.
constexpr std::uint8_t first_from_agent = join_type;
constexpr std::uint8_t first_from_coordinator = 65;
constexpr const char* agent_names[] = {"JOIN", "OPENED", "FAILED", "SUCCEEDED", "STOPPED", "LEAVE", "ABORT", "PONG"};
constexpr const char* coordinator_names[] = {"WELCOME", "REFUSED", "WAITING",     "OPEN", "START",
                                             "STOP",    "VERDICT", "NODE_REPORT", "PING", "EVENT"};
static_assert(std::size(agent_names) == std::variant_size_v<FromAgent>);
static_assert(std::size(coordinator_names) == std::variant_size_v<FromCoordinator>);

template <class Message>
std::uint8_t encode_any(const Message& message, std::string& payload, std::uint8_t first) {
  payload.clear();
  std::visit([&](const auto& alternative) { write(payload, alternative); }, message);
  return static_cast<std::uint8_t>(first + message.index());
}

template <class Message, std::size_t index = 0>
Result<Message> decode_any(std::uint8_t type, std::uint8_t first, std::string_view payload) {
  if constexpr (index == std::variant_size_v<Message>) {
    return fail(Errc::protocol, concat("a message of the unknown type ", int{type}));
  } else {
    if (type != first + index) return decode_any<Message, index + 1>(type, first, payload);
    Reader reader(payload);
    std::variant_alternative_t<index, Message> message;
    read(reader, message);
    if (!reader.ok()) {
      return fail(Errc::protocol,
                  concat(type_name(type), " with a payload of ", payload.size(), " bytes that cannot be read"));
    }
    return message;
  }
}

/// What a message can do without; none for most kinds.
struct Spare {
  std::vector<std::string*> texts;
  void operator()(Stopped& stopped) { texts = {&stopped.workers, &stopped.cause}; }
  void operator()(Abort& abort) { texts = {&abort.what}; }
  void operator()(VerdictMessage& verdict) { texts = {&verdict.cause, &verdict.why}; }
  void operator()(NodeReport& report) { texts = {&report.workers}; }
  void operator()(Stop& stop) { texts = {&stop.why}; }
  void operator()(Refused& refused) { texts = {&refused.why}; }
  void operator()(EventLine& event) { texts = {&event.json}; }
  template <class Other>
  void operator()(Other& /*other*/) {}
};

template <class Message>
bool shorten_any(Message& message, std::size_t max_size) {
  Spare spare;
  std::visit(spare, message);
  std::string payload;
  for (auto& text : spare.texts) {
    encode(message, payload);
    if (payload.size() <= max_size) return true;
    text->clear();
  }
  encode(message, payload);
  return payload.size() <= max_size;
}

}  // namespace

bool shorten(FromAgent& message, std::size_t max_size) { return shorten_any(message, max_size); }
bool shorten(FromCoordinator& message, std::size_t max_size) { return shorten_any(message, max_size); }

std::uint8_t encode(const FromAgent& message, std::string& payload) {
  return encode_any(message, payload, first_from_agent);
}

std::uint8_t encode(const FromCoordinator& message, std::string& payload) {
  return encode_any(message, payload, first_from_coordinator);
}

Result<FromAgent> decode_from_agent(std::uint8_t type, std::string_view payload) {
  return decode_any<FromAgent>(type, first_from_agent, payload);
}

Result<FromCoordinator> decode_from_coordinator(std::uint8_t type, std::string_view payload) {
  return decode_any<FromCoordinator>(type, first_from_coordinator, payload);
}

const char* type_name(std::uint8_t type) {
  if (type >= first_from_agent && type < first_from_agent + std::size(agent_names)) {
    return agent_names[type - first_from_agent];
  }
  if (type >= first_from_coordinator && type < first_from_coordinator + std::size(coordinator_names)) {
    return coordinator_names[type - first_from_coordinator];
  }
  return "?";
}

}  // namespace ddrun::rendezvous
