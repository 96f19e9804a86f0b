#pragma once

#include <memory>

#include "ddrun/store/store.hpp"

namespace ddrun::store {

/// A store within the process: for tests whose ranks are threads.
class MemoryStore final : public Store {
 public:
  MemoryStore();
  ~MemoryStore() override;

  Result<void> set(std::string_view key, std::string_view value, Deadline deadline) override;
  Result<std::string> get(std::string_view key, Deadline deadline) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t delta, Deadline deadline) override;
  Result<void> wait(std::span<const std::string> keys, Deadline deadline) override;
  Result<bool> check(std::span<const std::string> keys, Deadline deadline) override;
  Result<std::string> compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                  Deadline deadline) override;
  Result<bool> delete_key(std::string_view key, Deadline deadline) override;
  Result<std::int64_t> num_keys(Deadline deadline) override;
  Result<std::vector<std::string>> list_keys(Deadline deadline) override;
  Result<void> append(std::string_view key, std::string_view value, Deadline deadline) override;
  Result<std::vector<std::string>> multi_get(std::span<const std::string> keys, Deadline deadline) override;
  Result<void> multi_set(std::span<const std::string> keys, std::span<const std::string> values,
                         Deadline deadline) override;
  Result<void> queue_push(std::string_view queue, std::string_view element, Deadline deadline) override;
  Result<std::string> queue_pop(std::string_view queue, Deadline deadline) override;
  Result<std::int64_t> queue_length(std::string_view queue, Deadline deadline) override;
  Result<void> barrier(std::string_view key, std::int64_t members, Deadline deadline) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ddrun::store
