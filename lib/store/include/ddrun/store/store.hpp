#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::store {

/// What a key, a value and a request may measure in every store, so that what works in one works in all.
inline constexpr std::size_t max_key_size = 8191;  ///< bytes, with the prefixes of all PrefixStores
inline constexpr std::size_t max_value_size = 8 * 1024 * 1024;
inline constexpr std::size_t max_keys_per_call = 131072;

/// A key-value store in which the members of a group meet. Keys and values are any bytes.
///
/// Every call may block, until `deadline` at the longest (a TcpClient needs up to five seconds more to withdraw from a
/// server that has stopped answering); Deadline::max() waits without end. A deadline in the past still finds what is
/// there already. Safe to use from several threads.
///
/// Errors of all calls: `invalid_argument` for a key, value or number of keys beyond the limits, `timeout`,
/// `connection_lost` when the server is gone and `protocol` when it answers nonsense: after these two the object is
/// of no more use, unless it was told to connect again. `cancelled` when the program asked for that.
class Store {
 public:
  virtual ~Store() = default;

  /// Creates or replaces. May return before the server has it; what this client asks later sees it.
  virtual Result<void> set(std::string_view key, std::string_view value, Deadline deadline) = 0;

  /// Waits until the key exists. If it is deleted right then, the value is empty.
  virtual Result<std::string> get(std::string_view key, Deadline deadline) = 0;

  /// Adds to the decimal number at `key`, a missing one being 0, and returns the sum. Adding 0 creates the key too.
  /// A value that is not a number: `invalid_argument` or, over TCP, `connection_lost` because the server hangs up.
  virtual Result<std::int64_t> add(std::string_view key, std::int64_t delta, Deadline deadline) = 0;

  /// Waits until all keys have come into existence. `timeout` names the first keys waited for.
  virtual Result<void> wait(std::span<const std::string> keys, Deadline deadline) = 0;

  /// Whether all keys exist now.
  virtual Result<bool> check(std::span<const std::string> keys, Deadline deadline) = 0;

  /// Stores `desired` if the value is `expected`, or if the key is missing and `expected` is empty. Returns the value
  /// afterwards; `expected` if the key is still missing.
  virtual Result<std::string> compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                          Deadline deadline) = 0;

  /// Whether there was such a key.
  virtual Result<bool> delete_key(std::string_view key, Deadline deadline) = 0;

  /// All keys of the server, of all clients and under every prefix.
  virtual Result<std::int64_t> num_keys(Deadline deadline) = 0;

  /// The keys of this store, of a PrefixStore those under its prefix and without it, in no order. Not the queues.
  virtual Result<std::vector<std::string>> list_keys(Deadline deadline) = 0;

  /// Adds at the end of the value; creates the key if it is missing. Returns early as set() does.
  virtual Result<void> append(std::string_view key, std::string_view value, Deadline deadline) = 0;

  /// Waits until all keys exist and returns their values in the same order.
  virtual Result<std::vector<std::string>> multi_get(std::span<const std::string> keys, Deadline deadline) = 0;

  /// set() for each pair; as many values as keys. Returns early as set() does.
  virtual Result<void> multi_set(std::span<const std::string> keys, std::span<const std::string> values,
                                 Deadline deadline) = 0;

  // Queues: first in, first out, with names of their own. wait() and check() are content with a key or with an element
  // in the queue of that name.

  /// Adds at the end; one of those who wait for the queue gets it. Returns early as set() does.
  virtual Result<void> queue_push(std::string_view queue, std::string_view element, Deadline deadline) = 0;

  /// Waits until there is an element, takes the oldest one out and returns it. Each element goes to one caller.
  virtual Result<std::string> queue_pop(std::string_view queue, Deadline deadline) = 0;

  virtual Result<std::int64_t> queue_length(std::string_view queue, Deadline deadline) = 0;

  /// Waits until `members` callers have come to the barrier `key`, whose value is the number of those. For one use:
  /// later callers pass. One whose deadline passes stays counted. `invalid_argument` or, over TCP, `connection_lost` if
  /// the key has a value that is not a number.
  virtual Result<void> barrier(std::string_view key, std::int64_t members, Deadline deadline) = 0;
};

}  // namespace ddrun::store
