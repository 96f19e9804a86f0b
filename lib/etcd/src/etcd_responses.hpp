#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Responses of etcd's JSON gateway as values. It sends 64-bit numbers as strings and omits 0, false and empty fields.
// Parsers return empty for anything else; memory is proportional to the input.

namespace ddrun::etcd {

struct KeyValue {
  std::string key, value;
  std::int64_t create_revision = 0, mod_revision = 0, lease = 0;
};

struct Snapshot {
  std::int64_t revision = 0;
  std::vector<KeyValue> kvs;
};

struct TxnResponse {
  bool succeeded = false;
  Snapshot found;  ///< `kvs`: of all range responses
};

struct LeaseGrant {
  std::int64_t id = 0;
  std::int64_t ttl = 0;  ///< seconds
};

struct WatchResponse {
  bool canceled = false;
  std::string reason;
  struct Event {
    bool deleted = false;
    KeyValue kv;
  };
  std::vector<Event> events;
};

/// A gRPC status.
struct EtcdError {
  int code = 0;
  std::string message;
};

[[nodiscard]] std::optional<Snapshot> parse_range(std::string_view text);
[[nodiscard]] std::optional<TxnResponse> parse_txn(std::string_view text);
[[nodiscard]] std::optional<LeaseGrant> parse_grant(std::string_view text);
/// Remaining seconds; 0: no such lease.
[[nodiscard]] std::optional<std::int64_t> parse_keepalive(std::string_view text);
/// A response without further content.
[[nodiscard]] bool is_ok_response(std::string_view text);
[[nodiscard]] std::optional<std::string> parse_token(std::string_view text);
[[nodiscard]] std::optional<WatchResponse> parse_watch(std::string_view line);
[[nodiscard]] std::optional<EtcdError> parse_error(std::string_view text);

// For requests.

[[nodiscard]] std::string to_base64(std::string_view bytes);
[[nodiscard]] std::optional<std::string> from_base64(std::string_view text);

}  // namespace ddrun::etcd
