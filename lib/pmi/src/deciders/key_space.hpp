#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace ddrun::pmi {

/// Keys and values of one round.
class KeySpace {
 public:
  /// `collect`: keeps a batch of what is put, for the other nodes.
  explicit KeySpace(bool collect) : collect_(collect) {}

  /// What a rank of this machine puts. False if it is not storable or the bound is reached.
  [[nodiscard]] bool put(std::string_view key, std::string_view value);
  /// The batch of a node. False if it is malformed or the bound is reached.
  [[nodiscard]] bool merge(std::string_view batch);
  [[nodiscard]] std::optional<std::string_view> find(std::string_view key) const;
  /// The puts since the last call.
  [[nodiscard]] std::string take_batch();

 private:
  [[nodiscard]] bool store(std::string_view key, std::string_view value);

  /// Of all keys and values.
  static constexpr std::size_t max_bytes = 64 * 1024 * 1024;

  bool collect_;
  std::map<std::string, std::string, std::less<>> values_;
  std::size_t bytes_ = 0;
  std::string batch_;
};

}  // namespace ddrun::pmi
