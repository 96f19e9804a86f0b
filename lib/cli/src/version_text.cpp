#include <algorithm>
#include <nlohmann/json.hpp>

#include "ddrun/base/text.hpp"
#include "texts.hpp"

namespace ddrun::cli {

std::string version_text(const VersionInfo& version) {
  std::string text = concat("ddrun ", version.version);
  if (!version.commit.empty()) text += concat(" (commit ", version.commit, ")");
  text += '\n';
  std::size_t widest = 0;
  for (const auto& [name, value] : version.features) widest = std::max(widest, name.size());
  for (const auto& [name, value] : version.features) {
    text += concat("  ", name, std::string(widest - name.size() + 2, ' '), value, "\n");
  }
  return text;
}

std::string version_json(const VersionInfo& version) {
  nlohmann::ordered_json json;
  json["version"] = version.version;
  json["commit"] = version.commit;
  json["features"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : version.features) json["features"][name] = value;
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace ddrun::cli
