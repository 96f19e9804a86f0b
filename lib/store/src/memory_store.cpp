#include "ddrun/store/memory_store.hpp"

#include <condition_variable>
#include <mutex>

#include "ddrun/base/text.hpp"
#include "key_space.hpp"
#include "limits.hpp"
#include "wire.hpp"

namespace ddrun::store {

struct MemoryStore::State {
  std::mutex mutex;
  KeySpace space;
};

namespace {

/// A thread that sleeps until its keys exist.
class SleepingThread final : public Waiter {
 public:
  /// Returns with `lock` held; false when the deadline came first.
  bool sleep(std::unique_lock<std::mutex>& lock, Deadline deadline) {
    if (deadline != Deadline::max()) return woken_.wait_until(lock, deadline, [this] { return !waiting(); });
    woken_.wait(lock, [this] { return !waiting(); });
    return true;
  }

 private:
  void keys_exist() override { woken_.notify_one(); }
  std::condition_variable woken_;
};

Result<void> wait_locked(KeySpace& space, std::unique_lock<std::mutex>& lock, std::span<const std::string> keys,
                         Deadline deadline) {
  SleepingThread thread;
  for (const auto& key : keys) space.await(key, thread);
  const bool came = thread.sleep(lock, deadline);
  space.leave(thread);
  if (came) return {};
  return fail(Errc::timeout, concat("timed out waiting for store ", describe_keys(keys)));
}

tl::unexpected<Error> not_a_number(const char* what, std::string_view key) {
  const std::string name(key);
  return fail(Errc::invalid_argument,
              concat("cannot ", what, " store ", describe_keys({&name, 1}), ": its value is not a 64-bit number"));
}

std::string value_of(const KeySpace& space, std::string_view key) {
  const std::string* value = space.find(key);
  return value != nullptr ? *value : std::string();
}

}  // namespace

MemoryStore::MemoryStore() : state_(std::make_unique<State>()) {}
MemoryStore::~MemoryStore() = default;

Result<void> MemoryStore::set(std::string_view key, std::string_view value, Deadline) {
  if (auto ok = check_value(key, value); !ok) return ok;
  const std::lock_guard lock(state_->mutex);
  state_->space.set(key, value);
  return {};
}

Result<std::string> MemoryStore::get(std::string_view key, Deadline deadline) {
  if (auto ok = check_key(key); !ok) return tl::unexpected(std::move(ok.error()));
  std::unique_lock lock(state_->mutex);
  const std::string name(key);
  if (auto ok = wait_locked(state_->space, lock, {&name, 1}, deadline); !ok) return tl::unexpected(ok.error());
  return value_of(state_->space, key);
}

Result<std::int64_t> MemoryStore::add(std::string_view key, std::int64_t delta, Deadline) {
  if (auto ok = check_key(key); !ok) return tl::unexpected(std::move(ok.error()));
  const std::lock_guard lock(state_->mutex);
  if (const auto sum = state_->space.add(key, delta)) return *sum;
  return not_a_number("add to", key);
}

Result<void> MemoryStore::wait(std::span<const std::string> keys, Deadline deadline) {
  if (auto ok = check_keys(keys); !ok) return ok;
  std::unique_lock lock(state_->mutex);
  return wait_locked(state_->space, lock, keys, deadline);
}

Result<bool> MemoryStore::check(std::span<const std::string> keys, Deadline) {
  if (auto ok = check_keys(keys); !ok) return tl::unexpected(std::move(ok.error()));
  const std::lock_guard lock(state_->mutex);
  for (const auto& key : keys) {
    if (!state_->space.exists(key)) return false;
  }
  return true;
}

Result<std::string> MemoryStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                             Deadline) {
  if (auto ok = check_value(key, expected); !ok) return tl::unexpected(std::move(ok.error()));
  if (auto ok = check_value(key, desired); !ok) return tl::unexpected(std::move(ok.error()));
  const std::lock_guard lock(state_->mutex);
  return std::string(state_->space.compare_set(key, expected, desired));
}

Result<bool> MemoryStore::delete_key(std::string_view key, Deadline) {
  if (auto ok = check_key(key); !ok) return tl::unexpected(std::move(ok.error()));
  const std::lock_guard lock(state_->mutex);
  return state_->space.erase(key);
}

Result<std::int64_t> MemoryStore::num_keys(Deadline) {
  const std::lock_guard lock(state_->mutex);
  return static_cast<std::int64_t>(state_->space.size());
}

Result<void> MemoryStore::append(std::string_view key, std::string_view value, Deadline) {
  if (auto ok = check_value(key, value); !ok) return ok;
  const std::lock_guard lock(state_->mutex);
  if (state_->space.append(key, value, wire::max_message)) return {};
  const std::string name(key);
  return fail(Errc::invalid_argument, concat("the value of store ", describe_keys({&name, 1}),
                                             " would become longer than ", wire::max_message, " bytes"));
}

Result<std::vector<std::string>> MemoryStore::multi_get(std::span<const std::string> keys, Deadline deadline) {
  if (auto ok = check_keys(keys); !ok) return tl::unexpected(std::move(ok.error()));
  std::unique_lock lock(state_->mutex);
  if (auto ok = wait_locked(state_->space, lock, keys, deadline); !ok) return tl::unexpected(ok.error());
  std::vector<std::string> values;
  values.reserve(keys.size());
  for (const auto& key : keys) values.push_back(value_of(state_->space, key));
  return values;
}

Result<void> MemoryStore::multi_set(std::span<const std::string> keys, std::span<const std::string> values, Deadline) {
  if (auto ok = check_pairs(keys, values); !ok) return ok;
  const std::lock_guard lock(state_->mutex);
  for (std::size_t i = 0; i < keys.size(); ++i) state_->space.set(keys[i], values[i]);
  return {};
}

Result<std::vector<std::string>> MemoryStore::list_keys(Deadline) {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::string> keys;
  keys.reserve(state_->space.size());
  state_->space.for_each_key([&](std::string_view key) { keys.emplace_back(key); });
  return keys;
}

Result<void> MemoryStore::queue_push(std::string_view queue, std::string_view element, Deadline) {
  if (auto ok = check_value(queue, element); !ok) return ok;
  const std::lock_guard lock(state_->mutex);
  state_->space.push(queue, element);
  return {};
}

Result<std::string> MemoryStore::queue_pop(std::string_view queue, Deadline deadline) {
  if (auto ok = check_key(queue); !ok) return tl::unexpected(std::move(ok.error()));
  std::unique_lock lock(state_->mutex);
  const std::string name(queue);
  for (;;) {
    SleepingThread thread;
    state_->space.await(queue, thread);
    const bool came = thread.sleep(lock, deadline);
    auto element = state_->space.pop(queue, thread);
    state_->space.leave(thread);
    if (element) return std::move(*element);
    // Gone to another client, or a key of that name has come instead.
    const bool only_a_key = came && state_->space.find(queue) != nullptr;
    if (!came || only_a_key)
      return fail(Errc::timeout, concat("the store's queue of ", describe_keys({&name, 1}), " is empty"));
  }
}

Result<std::int64_t> MemoryStore::queue_length(std::string_view queue, Deadline) {
  if (auto ok = check_key(queue); !ok) return tl::unexpected(std::move(ok.error()));
  const std::lock_guard lock(state_->mutex);
  return static_cast<std::int64_t>(state_->space.queue_size(queue));
}

Result<void> MemoryStore::barrier(std::string_view key, std::int64_t members, Deadline deadline) {
  if (auto ok = check_key(key); !ok) return ok;
  std::unique_lock lock(state_->mutex);
  SleepingThread thread;
  if (!state_->space.arrive(key, members, thread)) return not_a_number("meet at", key);
  const bool came = thread.sleep(lock, deadline);
  state_->space.leave(thread);
  if (came) return {};
  const std::string name(key);
  return fail(Errc::timeout, concat("timed out waiting for store barrier of ", describe_keys({&name, 1})));
}

}  // namespace ddrun::store
