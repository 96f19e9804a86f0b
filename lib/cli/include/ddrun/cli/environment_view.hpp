#pragma once

#include <optional>
#include <string_view>

namespace ddrun::cli {

/// The environment as an argument: a null-terminated array of "NAME=value", such as `environ`. Owns nothing; the
/// array must outlive the view and stay unchanged meanwhile.
class EnvironmentView {
 public:
  explicit EnvironmentView(const char* const* entries) : entries_(entries) {}

  /// The value of `name`; nothing if it is unset or empty (an empty variable means "not set" to ddrun).
  [[nodiscard]] std::optional<std::string_view> get(std::string_view name) const;

  /// For walking over all of it.
  [[nodiscard]] const char* const* entries() const { return entries_; }

 private:
  const char* const* entries_;
};

}  // namespace ddrun::cli
