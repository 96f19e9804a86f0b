#include "protocol.hpp"

#include <nlohmann/json.hpp>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/remote/bootstrap.hpp"

template <>
struct nlohmann::adl_serializer<ddrun::Milliseconds> {
  static void to_json(json& to, ddrun::Milliseconds time) { to = time.count(); }
  static void from_json(const json& from, ddrun::Milliseconds& time) {
    time = ddrun::Milliseconds(from.get<std::int64_t>());
  }
};

namespace ddrun {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Endpoint, host, port)

namespace remote {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Bootstrap, args, directory, directory_needed, started_as, variables, job_id,
                                   node_rank, runs_coordinator, first_round_nodes, node_count, min_nodes, max_nodes,
                                   slots, coordinators, reads_input, color, all_progress, one_console, ending_signal,
                                   grace)

// CBOR: variables and arguments are bytes, and JSON is text.
std::string encode(const Bootstrap& bootstrap) {
  std::string bytes;
  nlohmann::json::to_cbor(bootstrap, bytes);
  return bytes;
}

Result<Bootstrap> decode_bootstrap(std::string_view bytes) {
  try {
    return nlohmann::json::from_cbor(bytes).get<Bootstrap>();
  } catch (const std::exception&) {
    return fail(Errc::protocol, "a message between two ddruns cannot be read");
  }
}

std::chrono::seconds silence_timeout() {
  static const auto limit = [] {
    const auto setting = variable("DDRUN_SSH_SILENCE");
    return std::chrono::seconds(setting ? parse_integer(*setting, 1, 30).value_or(30) : 30);
  }();
  return limit;
}

std::chrono::milliseconds ping_interval() { return std::chrono::milliseconds(silence_timeout()) / 6; }

std::string numbered(std::uint32_t number, std::string_view text) {
  std::string payload;
  bytes::put<std::endian::big>(payload, number);
  return payload.append(text);
}

std::pair<std::uint32_t, std::string_view> decode_numbered(std::string_view payload) {
  if (payload.size() < sizeof(std::uint32_t)) return {};
  return {bytes::load<std::uint32_t, std::endian::big>(payload.data()), payload.substr(sizeof(std::uint32_t))};
}

void append_frame(WipedString& to, FrameType type, std::string_view payload) {
  bytes::put<std::endian::big>(to, static_cast<std::uint32_t>(payload.size()));
  to += static_cast<char>(type);
  to += payload;
}

Result<std::string_view> FrameReader::whole(std::string_view bytes) {
  partial_.erase(0, std::exchange(passed_on_, 0));
  partial_.append(bytes);
  while (partial_.size() - passed_on_ >= header_size) {
    const std::size_t length = bytes::load<std::uint32_t, std::endian::big>(partial_.data() + passed_on_);
    if (length > max_payload_bytes) return fail(Errc::protocol, "a frame is too long");
    if (partial_.size() - passed_on_ - header_size < length) break;
    passed_on_ += header_size + length;
  }
  return std::string_view(partial_).substr(0, passed_on_);
}

}  // namespace remote

}  // namespace ddrun
