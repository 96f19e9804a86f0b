#include "ddrun/worker_env/parent_environment.hpp"

namespace ddrun::worker_env {

ParentEnvironment::ParentEnvironment(const char* const* entries) {
  for (; entries != nullptr && *entries != nullptr; ++entries) entries_.push_back(*entries);
}

std::optional<std::string_view> ParentEnvironment::get(std::string_view name) const {
  for (const std::string_view entry : entries_) {
    if (entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name)) {
      return entry.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

std::string_view entry_name(std::string_view entry) {
  const std::size_t equals = entry.find('=');
  return equals == std::string_view::npos ? std::string_view() : entry.substr(0, equals);
}

}  // namespace ddrun::worker_env
