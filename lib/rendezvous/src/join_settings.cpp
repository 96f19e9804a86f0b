#include "ddrun/rendezvous/join_settings.hpp"

#include <algorithm>

#include "settings_table.hpp"

namespace ddrun::rendezvous {

namespace {

std::string text_of(int number) { return std::to_string(number); }
std::string text_of(Milliseconds duration) { return std::to_string(duration.count()); }
std::string text_of(const std::optional<Milliseconds>& duration) { return duration ? text_of(*duration) : ""; }

}  // namespace

Settings join_settings(const LaunchSpec& spec) {
  Settings settings;
  for (const Setting& setting : settings_table()) {
    settings.emplace_back(setting.key, std::visit([](const auto& value) { return text_of(value); }, setting.of(spec)));
  }
  std::sort(settings.begin(), settings.end());
  return settings;
}

}  // namespace ddrun::rendezvous
