#include "protocol.hpp"

#include <nlohmann/json.hpp>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/remote/bootstrap.hpp"

namespace ddrun::remote {

namespace {

using nlohmann::json;

/// Variables and arguments are bytes, JSON is text: each byte is encoded as the code point of that value.
std::string packed(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text += c;
    } else {
      text += static_cast<char>(0xC0U | byte >> 6U);
      text += static_cast<char>(0x80U | (byte & 0x3FU));
    }
  }
  return text;
}

std::string unpacked(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) bytes += text[i];
    else if (++i < text.size())
      bytes += static_cast<char>((byte & 3U) << 6U | (static_cast<unsigned char>(text[i]) & 0x3FU));
  }
  return bytes;
}

json packed_all(const std::vector<std::string>& all) {
  json list = json::array();
  for (const auto& one : all) list.push_back(packed(one));
  return list;
}

std::vector<std::string> unpacked_all(const json& list) {
  std::vector<std::string> all;
  for (const auto& one : list) all.push_back(unpacked(one.get<std::string>()));
  return all;
}

/// nlohmann's exceptions may quote the text, which may contain secrets.
template <class Read>
auto guarded(std::string_view text, Read&& read) -> Result<decltype(read(json()))> {
  try {
    return read(json::parse(text));
  } catch (const std::exception&) {
    return fail(Errc::protocol, "a message between two ddruns cannot be read");
  }
}

}  // namespace

std::string to_json(const Bootstrap& b) {
  json variables = json::array();
  for (const auto& [name, value] : b.variables) variables.push_back({packed(name), packed(value)});
  json coordinators = json::array();
  for (const auto& at : b.coordinators) coordinators.push_back({packed(at.host), at.port});
  json text{{"words", packed_all(b.args)},
            {"directory", packed(b.directory)},
            {"directory_needed", b.directory_needed},
            {"started_as", packed(b.started_as)},
            {"variables", std::move(variables)},
            {"job_id", packed(b.job_id)},
            {"node_rank", b.node_rank},
            {"runs_coordinator", b.runs_coordinator},
            {"first_round_nodes", b.first_round_nodes},
            {"node_count", b.node_count},
            {"min_nodes", b.min_nodes},
            {"max_nodes", b.max_nodes},
            {"slots", b.slots ? json(*b.slots) : json()},
            {"coordinators", std::move(coordinators)},
            {"reads_input", b.reads_input},
            {"color", b.color},
            {"relay_mark", b.relay_mark},
            {"one_console", b.one_console},
            {"ending_signal", b.ending_signal},
            {"grace", b.grace.count()}};
  return text.dump();
}

Result<Bootstrap> bootstrap_from_json(std::string_view text) {
  return guarded(text, [](const json& from) {
    Bootstrap b;
    b.args = unpacked_all(from.at("words"));
    b.directory = unpacked(from.at("directory"));
    b.directory_needed = from.at("directory_needed");
    b.started_as = unpacked(from.at("started_as"));
    for (const auto& variable : from.at("variables")) {
      b.variables.emplace_back(unpacked(variable.at(0)), unpacked(variable.at(1)));
    }
    b.job_id = unpacked(from.at("job_id"));
    b.node_rank = from.at("node_rank");
    b.runs_coordinator = from.at("runs_coordinator");
    b.first_round_nodes = from.at("first_round_nodes");
    b.node_count = from.at("node_count");
    b.min_nodes = from.at("min_nodes");
    b.max_nodes = from.at("max_nodes");
    if (!from.at("slots").is_null()) b.slots = from.at("slots").get<int>();
    for (const auto& at : from.at("coordinators")) {
      b.coordinators.push_back({unpacked(at.at(0)), at.at(1).get<std::uint16_t>()});
    }
    b.reads_input = from.at("reads_input");
    b.color = from.at("color");
    b.relay_mark = from.at("relay_mark");
    b.one_console = from.at("one_console");
    b.ending_signal = from.at("ending_signal");
    b.grace = Milliseconds(from.at("grace").get<std::int64_t>());
    return b;
  });
}

std::string to_json(const Hello& hello) { return json{{"addresses", packed_all(hello.addresses)}}.dump(); }

Result<Hello> hello_from_json(std::string_view text) {
  return guarded(text, [](const json& from) { return Hello{unpacked_all(from.at("addresses"))}; });
}

std::chrono::seconds silence_timeout() {
  static const auto limit = [] {
    const auto setting = variable("DDRUN_SSH_SILENCE");
    return std::chrono::seconds(setting ? parse_integer(*setting, 1, 30).value_or(30) : 30);
  }();
  return limit;
}

std::chrono::milliseconds ping_interval() { return std::chrono::milliseconds(silence_timeout()) / 6; }

void append_frame(WipedString& to, FrameType type, std::string_view payload) {
  bytes::put<std::endian::big>(to, static_cast<std::uint32_t>(payload.size()));
  to += static_cast<char>(type);
  to += payload;
}

}  // namespace ddrun::remote
