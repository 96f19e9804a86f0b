#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ddrun/base/duration.hpp"

namespace ddrun::store {

class KeySpace;
struct WaitNode;

enum class KeyChange : char { updated = 0, created = 1, deleted = 2 };

/// A client that waits for keys to exist, or watches keys. leave() must be called before it is destroyed. The callbacks
/// are called during a change of the key space and must not use it.
class Waiter {
 public:
  Waiter() = default;
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  [[nodiscard]] bool waiting() const { return first_ != nullptr; }
  /// While it waits.
  [[nodiscard]] Clock::time_point waiting_since() const { return since_; }

 protected:
  ~Waiter() = default;

 private:
  friend class KeySpace;
  /// All awaited keys exist, or all members of the barrier have arrived.
  virtual void on_keys_exist() = 0;
  /// A watched key has changed. The views are valid during the call only.
  virtual void on_key_changed(KeyChange, std::string_view /*key*/, std::string_view /*before*/,
                              std::string_view /*now*/) {}

  WaitNode* first_ = nullptr;  // one node per key still missing
  Clock::time_point since_{};
  std::unique_ptr<std::string> granted_queue_;  // the queue whose element ended the wait and was not fetched yet
  bool is_watching_ = false;
};

/// The keys, their values, the queues, and the waits; independent of sockets, threads and the protocol.
///
/// Not thread-safe, never blocks. Does not allocate for existing keys: lookups take views, numbers are rewritten in
/// place, and wait nodes are reused.
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

  /// The reply to COMPARE_SET: the key's value afterwards, or `expected` if there is none. Valid until the next change.
  [[nodiscard]] std::string_view compare_set(std::string_view key, std::string_view expected, std::string_view desired);

  /// False, and nothing changed, if the value would become longer than `limit`.
  [[nodiscard]] bool append(std::string_view key, std::string_view value, std::size_t limit);

  /// Whether there was such a key.
  bool erase(std::string_view key);

  /// Keys, not queues.
  [[nodiscard]] std::size_t size() const { return keys_.size(); }

  /// Calls `visit(std::string_view)` with each key, in no order.
  template <class Visit>
  void for_each_key(Visit visit) const {
    for (const auto& entry : keys_) visit(std::string_view(entry.first));
  }

  // Keys and queues have separate names, except that a wait for a name ends with either.

  /// Adds an element at the end, and wakes the waiter that has waited longest and waits for nothing else.
  void push(std::string_view queue, std::string_view element);
  /// Removes and returns the oldest element, for `by`. Nothing if the queue is empty.
  [[nodiscard]] std::optional<std::string> pop(std::string_view queue, Waiter& by);
  [[nodiscard]] std::size_t queue_size(std::string_view queue) const;

  /// Whether the key exists or the queue of that name has an element.
  [[nodiscard]] bool exists(std::string_view name) const;

  /// Adds `name` to the names that `waiter` waits for, unless it exists. When all of them exist, on_keys_exist() is
  /// called.
  void await(std::string_view name, Waiter& waiter);

  /// Barrier: adds 1 to the number at `key`. If it is then `members` or more: calls on_keys_exist() for all waiters of
  /// the barrier and returns false. Else `waiter` waits too, and true is returned. Nothing if the value is no number.
  [[nodiscard]] std::optional<bool> arrive(std::string_view key, std::int64_t members, Waiter& waiter);

  /// The names that it waits for, in the order of await(); valid until the next change.
  [[nodiscard]] std::vector<std::string_view> awaited_by(const Waiter& waiter) const;

  /// Ends the wait without a callback. A queue element that had ended it and was not fetched wakes the next waiter.
  void cancel(Waiter& waiter);

  /// Calls on_key_changed() of `watcher` for each change of `key` from now on.
  void watch(std::string_view key, Waiter& watcher);

  /// Ends all waits and watches of `waiter`.
  void leave(Waiter& waiter);

  /// Deletes all keys and queues and frees their memory. Waits stay.
  void clear();

  // Memory of keys, values, queues and waits in bytes, estimated from above.

  [[nodiscard]] std::size_t memory() const { return memory_; }
  /// Bytes for a name besides its text and value.
  static constexpr std::size_t overhead = 128;

 private:
  struct Hash {
    using is_transparent = void;
    using is_avalanching = void;  // the standard library's string hash mixes well: no second round needed
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  using WaitList = WaitNode*;
  using WaitMap = std::unordered_map<std::string, WaitList, Hash, std::equal_to<>>;  // its elements stay where they are
  friend struct WaitNode;

  void create(std::string_view key, std::string_view value);
  void replace(const std::string& key, std::string& value, std::string_view now);
  void notify_watchers(KeyChange change, std::string_view key, std::string_view before, std::string_view now);
  void add_wait(WaitMap& map, std::string_view key, Waiter& waiter);
  void wake(WaitMap& map, std::string_view key);
  void wake_one(std::string_view queue);
  void remove_wait(WaitNode* node);
  void unlink_from_waiter(WaitNode* node);
  void release(WaitNode* node);
  void erase_list(WaitMap& map, WaitMap::iterator it);

  boost::unordered_flat_map<std::string, std::string, Hash, std::equal_to<>> keys_;
  std::unordered_map<std::string, std::deque<std::string>, Hash, std::equal_to<>> queues_;  // none is empty
  WaitMap waits_;
  WaitMap barriers_;
  std::unordered_map<std::string, std::vector<Waiter*>, Hash, std::equal_to<>> watchers_;
  WaitNode* free_ = nullptr;
  std::size_t memory_ = 0;
};

}  // namespace ddrun::store
