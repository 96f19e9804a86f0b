#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ddrun::store {

class KeySpace;
struct WaitNode;

/// Someone who waits for keys to exist. Must be cancelled before it is destroyed while a wait is open.
class Waiter {
 public:
  Waiter() = default;
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  [[nodiscard]] bool waiting() const { return first_ != nullptr; }

 protected:
  ~Waiter() = default;

 private:
  friend class KeySpace;
  /// All keys have come. Called in the middle of a change to the key space: must not touch it.
  virtual void keys_exist() = 0;

  WaitNode* first_ = nullptr;  // one node per key still missing
};

/// The keys, their values, and who waits for which; knows neither sockets nor threads nor the wire.
///
/// Not thread-safe. Does not allocate for what exists already: lookups take views, numbers are rewritten in place,
/// and waiting reuses its nodes.
class KeySpace {
 public:
  KeySpace() = default;
  KeySpace(const KeySpace&) = delete;
  KeySpace& operator=(const KeySpace&) = delete;
  ~KeySpace();

  void set(std::string_view key, std::string_view value);

  /// The value, or nullptr; valid until the next change.
  [[nodiscard]] const std::string* find(std::string_view key) const;

  /// The sum, which is then the key's value in decimal text; nothing if the value there is not a number of 64 bits.
  [[nodiscard]] std::optional<std::int64_t> add(std::string_view key, std::int64_t delta);

  /// What COMPARE_SET answers: the key's value afterwards, or `expected` if there is none. Valid until the next change.
  [[nodiscard]] std::string_view compare_set(std::string_view key, std::string_view expected, std::string_view desired);

  /// False, and nothing changed, if the value would become longer than `limit`.
  [[nodiscard]] bool append(std::string_view key, std::string_view value, std::size_t limit);

  /// Whether there was such a key.
  bool erase(std::string_view key);

  [[nodiscard]] std::size_t size() const { return keys_.size(); }

  /// Has `waiter` wait for `key` too, unless it exists. When the last of its keys has come, keys_exist() is called.
  void await(std::string_view key, Waiter& waiter);

  /// Ends the wait without a call.
  void cancel(Waiter& waiter);

  /// Forgets all keys and gives their memory back. Waits stay.
  void clear();

 private:
  struct Hash {
    using is_transparent = void;
    using is_avalanching = void;  // the standard library's hash of texts mixes well: no second round needed
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  using WaitList = WaitNode*;
  using WaitMap = std::unordered_map<std::string, WaitList, Hash, std::equal_to<>>;  // its elements stay where they are
  friend struct WaitNode;

  void wake(std::string_view key);
  void release(WaitNode* node);

  boost::unordered_flat_map<std::string, std::string, Hash, std::equal_to<>> keys_;
  WaitMap waits_;
  WaitNode* free_ = nullptr;
};

}  // namespace ddrun::store
