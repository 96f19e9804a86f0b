#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// What etcd's JSON gateway says, as values. Numbers of 64 bits come as texts there, and what is 0, false or empty is
// left out. Functions give nothing for what is not such an answer; they hold no more than what came.

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
  Snapshot found;  ///< `kvs`: of all ranges among what was done
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

/// What gRPC calls its status.
struct EtcdError {
  int code = 0;
  std::string message;
};

[[nodiscard]] std::optional<Snapshot> parse_range(std::string_view text);
[[nodiscard]] std::optional<TxnResponse> parse_txn(std::string_view text);
[[nodiscard]] std::optional<LeaseGrant> parse_grant(std::string_view text);
/// Seconds that are left; 0 if there is no such lease.
[[nodiscard]] std::optional<std::int64_t> parse_keepalive(std::string_view text);
/// Any answer that says no more than "done".
[[nodiscard]] bool is_ok_response(std::string_view text);
[[nodiscard]] std::optional<std::string> parse_token(std::string_view text);
[[nodiscard]] std::optional<WatchResponse> parse_watch(std::string_view line);
[[nodiscard]] std::optional<EtcdError> parse_error(std::string_view text);

// And what it is asked.

[[nodiscard]] std::string to_base64(std::string_view bytes);
[[nodiscard]] std::optional<std::string> from_base64(std::string_view text);

}  // namespace ddrun::etcd
