#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddrun::cluster {

// What detection looks at. All of it comes in as arguments, so that a test can be any machine.

/// A null-terminated array of "NAME=value", such as `environ`. Owns nothing; the array must outlive it.
class Variables {
 public:
  explicit Variables(const char* const* entries) : entries_(entries) {}
  /// Nothing if it is unset or empty.
  [[nodiscard]] std::optional<std::string_view> get(std::string_view name) const;
  /// Also true if it is empty.
  [[nodiscard]] bool has(std::string_view name) const { return find(name).has_value(); }
  /// Whether any variable's name begins with one of `prefixes`. Walks the environment once.
  [[nodiscard]] bool any_begins_with(std::initializer_list<std::string_view> prefixes) const;

 private:
  [[nodiscard]] std::optional<std::string_view> find(std::string_view name) const;
  const char* const* entries_;
};

/// The text of a file; nothing if it cannot be read.
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;

struct Machine {
  std::string host_name;               ///< as gethostname() says
  std::vector<std::string> addresses;  ///< of its interfaces, as text
  std::int64_t pid = 0;                ///< of the ddrun that was started; 0: unknown
};

/// This one. Does not block: no name is looked up.
[[nodiscard]] Machine this_machine();

/// A ReadFile for real files, at most 16 MiB of each.
[[nodiscard]] std::optional<std::string> read_text_file(const std::string& path);

}  // namespace ddrun::cluster
