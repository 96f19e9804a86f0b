#include "ddrun/base/environment.hpp"

#include <stdlib.h>

#include <string>

#include "ddrun/base/text.hpp"

namespace ddrun {

Environment::Environment(const char* const* entries) {
  for (; entries != nullptr && *entries != nullptr; ++entries) entries_.push_back(*entries);
}

std::optional<std::string_view> Environment::find(std::string_view name) const {
  for (const std::string_view entry : entries_) {
    if (entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name)) {
      return entry.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

std::optional<std::string_view> Environment::get(std::string_view name) const {
  const std::string_view value = trim_typed(find(name).value_or(""));
  return value.empty() ? std::nullopt : std::optional(value);
}

std::string_view entry_name(std::string_view entry) {
  const std::size_t equals = entry.find('=');
  return equals == std::string_view::npos ? std::string_view() : entry.substr(0, equals);
}

std::optional<std::string_view> variable(std::string_view name) {
  const char* value = ::getenv(std::string(name).c_str());
  const std::string_view text = trim_typed(value == nullptr ? "" : value);
  return text.empty() ? std::nullopt : std::optional(text);
}

}  // namespace ddrun
