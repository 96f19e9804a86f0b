#include "codec.hpp"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/event_text.hpp"

namespace ddrun::rendezvous {

namespace {

using nlohmann::json;

/// Escaping may lengthen it six times; the record is limited to 16 KiB.
constexpr std::size_t max_why_bytes = 2048;

constexpr VerdictKind kinds[] = {VerdictKind::success,           VerdictKind::worker_failed,   VerdictKind::timed_out,
                                 VerdictKind::stopped_by_signal, VerdictKind::launcher_failed, VerdictKind::node_lost};

}  // namespace

std::string serialize_verdict(const VerdictMessage& verdict) {
  const json text{{"verdict", event_text::name(verdict.kind)},
                  {"exit_code", verdict.exit_code},
                  {"signal", verdict.signal},
                  {"host", cut_line(verdict.host, max_why_bytes / 8)},
                  {"node_rank", verdict.node_rank},
                  {"rank", verdict.rank},
                  {"restarts", verdict.restarts},
                  {"why", cut_line(verdict.why, max_why_bytes)}};
  return text.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<VerdictMessage> parse_verdict(const std::string& text) {
  const auto parsed = json::parse(text, nullptr, false);
  if (!parsed.is_object()) return std::nullopt;
  VerdictMessage verdict;
  try {
    const auto name = parsed.at("verdict").get<std::string>();
    const auto* kind = std::find_if(std::begin(kinds), std::end(kinds),
                                    [&](VerdictKind one) { return event_text::name(one) == name; });
    if (kind == std::end(kinds)) return std::nullopt;
    verdict.kind = *kind;
    verdict.exit_code = parsed.at("exit_code").get<std::int32_t>();
    verdict.signal = parsed.value("signal", verdict.signal);
    verdict.host = plain_line(parsed.value("host", verdict.host));
    verdict.node_rank = parsed.value("node_rank", verdict.node_rank);
    verdict.rank = parsed.value("rank", verdict.rank);
    verdict.restarts = parsed.value("restarts", verdict.restarts);
    verdict.why = plain_line(parsed.value("why", verdict.why));
  } catch (const json::exception&) {
    return std::nullopt;
  }
  return verdict;
}

}  // namespace ddrun::rendezvous
