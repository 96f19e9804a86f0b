#include "etcd_responses.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace ddrun::etcd {

namespace {

using nlohmann::json;

/// The parsed text, if it is an object.
std::optional<json> object(std::string_view text) {
  json parsed = json::parse(text, nullptr, false);
  if (!parsed.is_object()) return std::nullopt;
  return parsed;
}

const json& part(const json& of, const char* name) {
  static const json nothing;
  if (!of.is_object()) return nothing;
  const auto found = of.find(name);
  return found == of.end() ? nothing : *found;
}

std::string text_of(const json& of, const char* name) {
  const json& value = part(of, name);
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::int64_t number_of(const json& of, const char* name) {
  const json& value = part(of, name);
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_string()) return 0;
  const auto& text = value.get_ref<const std::string&>();
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : 0;
}

bool flag_of(const json& of, const char* name) {
  const json& value = part(of, name);
  return value.is_boolean() && value.get<bool>();
}

std::optional<KeyValue> key_value(const json& from) {
  auto key = from_base64(text_of(from, "key"));
  auto value = from_base64(text_of(from, "value"));
  if (!key || key->empty() || !value) return std::nullopt;
  return KeyValue{std::move(*key), std::move(*value), number_of(from, "create_revision"),
                  number_of(from, "mod_revision"), number_of(from, "lease")};
}

bool add_all(const json& kvs, std::vector<KeyValue>& to) {
  if (kvs.is_null()) return true;
  if (!kvs.is_array()) return false;
  for (const json& kv : kvs) {
    auto found = key_value(kv);
    if (!found) return false;
    to.push_back(std::move(*found));
  }
  return true;
}

/// Every response has a header with a revision from 1 on, below the maximum.
std::optional<std::int64_t> revision_of(const json& answer) {
  const auto revision = number_of(part(answer, "header"), "revision");
  if (revision <= 0 || revision == std::numeric_limits<std::int64_t>::max()) return std::nullopt;
  return revision;
}

/// In seconds; 0 if expired; bounded so that a time point in nanoseconds does not overflow.
std::int64_t time_to_live_of(const json& answer) {
  return std::clamp<std::int64_t>(number_of(answer, "TTL"), 0, 1'000'000'000);
}

}  // namespace

std::optional<Snapshot> parse_range(std::string_view text) {
  const auto answer = object(text);
  const auto revision = answer ? revision_of(*answer) : std::nullopt;
  Snapshot snapshot;
  if (!revision || !add_all(part(*answer, "kvs"), snapshot.kvs)) return std::nullopt;
  snapshot.revision = *revision;
  return snapshot;
}

std::optional<TxnResponse> parse_txn(std::string_view text) {
  const auto answer = object(text);
  const auto revision = answer ? revision_of(*answer) : std::nullopt;
  if (!revision) return std::nullopt;
  TxnResponse txn;
  txn.succeeded = flag_of(*answer, "succeeded");
  txn.found.revision = *revision;
  const json& responses = part(*answer, "responses");
  if (responses.is_array()) {
    for (const json& response : responses) {
      if (!add_all(part(part(response, "response_range"), "kvs"), txn.found.kvs)) return std::nullopt;
    }
  }
  return txn;
}

std::optional<LeaseGrant> parse_grant(std::string_view text) {
  const auto answer = object(text);
  if (!answer || !revision_of(*answer)) return std::nullopt;
  const LeaseGrant granted{number_of(*answer, "ID"), time_to_live_of(*answer)};
  if (granted.id == 0 || granted.ttl == 0) return std::nullopt;
  return granted;
}

std::optional<std::int64_t> parse_keepalive(std::string_view text) {
  const auto answer = object(text);
  if (!answer) return std::nullopt;
  const json& result = part(*answer, "result");
  if (!revision_of(result)) return std::nullopt;
  return time_to_live_of(result);
}

bool is_ok_response(std::string_view text) {
  const auto answer = object(text);
  return answer && revision_of(*answer);
}

std::optional<std::string> parse_token(std::string_view text) {
  const auto answer = object(text);
  if (!answer) return std::nullopt;
  std::string token = text_of(*answer, "token");
  // It becomes part of a header line.
  const auto is_invalid = [](char c) { return c <= ' ' || c > '~'; };
  if (token.empty() || std::any_of(token.begin(), token.end(), is_invalid)) return std::nullopt;
  return token;
}

std::optional<WatchResponse> parse_watch(std::string_view line) {
  const auto answer = object(line);
  if (!answer) return std::nullopt;
  WatchResponse update;
  if (const json& error = part(*answer, "error"); error.is_object()) {
    update.canceled = true;
    update.reason = text_of(error, "message");
    return update;
  }
  const json& result = part(*answer, "result");
  if (!result.is_object()) return std::nullopt;
  update.canceled = flag_of(result, "canceled");
  update.reason = text_of(result, "cancel_reason");
  const json& events = part(result, "events");
  if (!events.is_null() && !events.is_array()) return std::nullopt;
  for (const json& event : events) {
    auto kv = key_value(part(event, "kv"));
    if (!kv) return std::nullopt;
    update.events.push_back({text_of(event, "type") == "DELETE", std::move(*kv)});
  }
  return update;
}

std::optional<EtcdError> parse_error(std::string_view text) {
  const auto answer = object(text);
  if (!answer) return std::nullopt;
  // Newer gateways send only the second.
  EtcdError error{0, text_of(*answer, "error")};
  if (error.message.empty()) error.message = text_of(*answer, "message");
  const auto code = number_of(*answer, "code");
  if (error.message.empty() && code == 0) return std::nullopt;
  error.code = code > 0 && code < 100 ? static_cast<int>(code) : 0;
  return error;
}

std::string to_base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // EVP_EncodeBlock appends a zero
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.empty()) return std::string();
  if (text.size() % 4 != 0 || text.size() > std::numeric_limits<int>::max()) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  // EVP_DecodeBlock would accept surrounding blanks.
  if (text.find_first_of(" \t\r\n-") != std::string_view::npos || text.find('=') < text.size() - padding) {
    return std::nullopt;
  }
  std::string bytes(text.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (size < 0) return std::nullopt;
  bytes.resize(static_cast<std::size_t>(size) - padding);
  return bytes;
}

}  // namespace ddrun::etcd
