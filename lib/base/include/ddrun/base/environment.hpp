#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace ddrun {

/// A view of an environment, in order, with duplicates and with entries that are not "NAME=VALUE". Borrows the strings:
/// they must outlive this object and every view obtained from it, and must not be changed by setenv() meanwhile.
class Environment {
 public:
  Environment() = default;
  /// A null-terminated array like `environ`.
  explicit Environment(const char* const* entries);

  [[nodiscard]] const std::vector<const char*>& entries() const { return entries_; }

  /// The value that getenv() would return: of the first entry with that name; may be empty.
  [[nodiscard]] std::optional<std::string_view> find(std::string_view name) const;
  /// The value after trim_typed(). nullopt if unset or empty: ddrun treats an empty variable as not set.
  [[nodiscard]] std::optional<std::string_view> get(std::string_view name) const;
  /// Also true for an empty value.
  [[nodiscard]] bool has(std::string_view name) const { return find(name).has_value(); }

 private:
  std::vector<const char*> entries_;
};

/// The name of an entry: the text before its first '='; empty if there is no '='.
[[nodiscard]] std::string_view entry_name(std::string_view entry);

/// The current value of a variable of this process after trim_typed(); nullopt if unset or empty.
[[nodiscard]] std::optional<std::string_view> variable(std::string_view name);

}  // namespace ddrun
