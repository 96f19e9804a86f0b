#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace ddrun::worker_env {

/// The environment that ddrun was started with, entry by entry as it is: in order, with doubles and with entries
/// that are not "NAME=VALUE". Borrows the strings: they must live as long as this and what is made from it, and
/// must not be changed by setenv() meanwhile.
class ParentEnvironment {
 public:
  ParentEnvironment() = default;
  /// A null-terminated array like `environ`.
  explicit ParentEnvironment(const char* const* entries);

  [[nodiscard]] const std::vector<const char*>& entries() const { return entries_; }

  /// The value that getenv() would give: of the first entry of that name.
  [[nodiscard]] std::optional<std::string_view> get(std::string_view name) const;

 private:
  std::vector<const char*> entries_;
};

/// The name of an entry: what stands before its first '='; empty if there is no '='.
[[nodiscard]] std::string_view entry_name(std::string_view entry);

}  // namespace ddrun::worker_env
