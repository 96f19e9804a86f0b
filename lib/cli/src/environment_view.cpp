#include "ddrun/cli/environment_view.hpp"

namespace ddrun::cli {

std::optional<std::string_view> EnvironmentView::get(std::string_view name) const {
  for (const char* const* entry = entries_; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.size() > name.size() && text[name.size()] == '=' && text.starts_with(name)) {
      const std::string_view value = text.substr(name.size() + 1);
      if (value.empty()) return std::nullopt;
      return value;
    }
  }
  return std::nullopt;
}

}  // namespace ddrun::cli
