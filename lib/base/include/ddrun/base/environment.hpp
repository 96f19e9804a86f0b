#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace ddrun {

/// An environment as an argument, entry by entry as it is: in order, with doubles and with entries that are not
/// "NAME=VALUE". Borrows the strings: they must live as long as this and what is made from it, and must not be changed
/// by setenv() meanwhile.
class Environment {
 public:
  Environment() = default;
  /// A null-terminated array like `environ`.
  explicit Environment(const char* const* entries);

  [[nodiscard]] const std::vector<const char*>& entries() const { return entries_; }

  /// The value that getenv() would give, of the first entry of that name; it may be empty.
  [[nodiscard]] std::optional<std::string_view> find(std::string_view name) const;
  /// By trim_typed(). Nothing if it is unset or empty: an empty variable means "not set" to ddrun.
  [[nodiscard]] std::optional<std::string_view> get(std::string_view name) const;
  /// Also true if it is empty.
  [[nodiscard]] bool has(std::string_view name) const { return find(name).has_value(); }

 private:
  std::vector<const char*> entries_;
};

/// The name of an entry: what stands before its first '='; empty if there is no '='.
[[nodiscard]] std::string_view entry_name(std::string_view entry);

/// The value of a variable of this process, as it is now, by trim_typed(); nothing if it is unset or empty.
[[nodiscard]] std::optional<std::string_view> variable(std::string_view name);

}  // namespace ddrun
