#include "ddrun/worker_env/addresses.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <optional>
#include <string_view>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::worker_env {

namespace {

constexpr std::size_t max_list_bytes = 64 * 1024;

/// "${host:trainer}" in a text.
struct Placeholder {
  std::size_t at;
  std::string_view whole, kind, name;
};

/// The next one from `from` on. A shell's "${host:-x}" is none.
std::optional<Placeholder> find_placeholder(std::string_view text, std::size_t from) {
  const auto is_name_char = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; };
  for (std::size_t at = text.find("${", from); at != std::string_view::npos; at = text.find("${", at + 2)) {
    const std::string_view whole = text.substr(at, text.find('}', at) - at + 1);
    const std::size_t colon = whole.find(':');
    if (!whole.ends_with('}') || colon == std::string_view::npos) continue;
    const std::string_view kind = whole.substr(2, colon - 2);
    const std::string_view name = whole.substr(colon + 1, whole.size() - colon - 2);
    const bool is_kind = kind == "host" || kind == "endpoint" || kind == "endpoints" || kind == "each";
    if (!is_kind || name.empty() || name.front() == '-' || !std::ranges::all_of(name, is_name_char)) continue;
    return Placeholder{at, whole, kind, name};
  }
  return std::nullopt;
}

Result<std::vector<std::string>> addresses_of(const Placeholder& found, const std::vector<ProgramAddresses>& all) {
  const auto program = std::ranges::find(all, found.name, &ProgramAddresses::role);
  if (program == all.end()) {
    std::vector<std::string> roles;
    for (const ProgramAddresses& one : all) roles.push_back(one.role);
    return fail(Errc::invalid_argument,
                concat(found.whole, ": no program has this role; give one of ", join(roles, ", ")));
  }
  if (found.kind == "host") return program->hosts;
  if (!program->endpoints.empty()) return program->endpoints;
  return fail(Errc::invalid_argument, concat(found.whole, ": ", found.name, " has no --port; give it one"));
}

/// The text with addresses, once, or with ${each:…} once for each.
Result<std::vector<std::string>> expand(std::string_view text, const std::vector<ProgramAddresses>& all, bool is_word) {
  std::vector<std::string> words{""};
  std::string_view each;
  std::size_t from = 0;
  while (const auto found = find_placeholder(text, from)) {
    auto addresses = TRY(addresses_of(*found, all));
    if (found->kind == "each" && (!is_word || (!each.empty() && each != found->name))) {
      return fail(Errc::invalid_argument,
                  concat(found->whole,
                         " repeats its word of a command, for one program; give ${endpoints:", found->name, "} here"));
    }
    if (found->kind == "each" && each.empty()) {
      each = found->name;
      words.resize(addresses.size(), words.front());
    }
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] += text.substr(from, found->at - from);
      words[i] += found->kind == "each"        ? addresses[i]
                  : found->kind == "endpoints" ? join(addresses, ",")
                                               : addresses.front();
    }
    from = found->at + found->whole.size();
  }
  for (std::string& word : words) word += text.substr(from);
  return words;
}

}  // namespace

Result<void> expand_addresses(ProgramSpec& program, const std::vector<ProgramAddresses>& all) {
  std::vector<std::string> args;
  for (const std::string& arg : program.args) {
    auto words = TRY(expand(arg, all, true));
    args.insert(args.end(), words.begin(), words.end());
  }
  program.args = std::move(args);
  for (auto& [name, value] : program.env) {
    auto words = expand(value, all, false);
    if (!words) return fail(words.error().code, concat("--env ", name, ": ", words.error().message));
    value = std::move(words->front());
  }
  return {};
}

std::vector<std::pair<std::string, std::string>> address_variables(const std::vector<ProgramAddresses>& all) {
  std::vector<std::pair<std::string, std::string>> variables;
  const auto add = [&](std::string name, const std::vector<std::string>& addresses) {
    for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    std::string list = join(addresses, ",");
    if (list.size() > max_list_bytes) say(Level::warning, concat(name, " is not set: it would be too long"));
    else if (!list.empty()) variables.emplace_back(std::move(name), std::move(list));
  };
  for (const ProgramAddresses& program : all) {
    add("ddrun_hosts_" + program.role, program.hosts);
    add("ddrun_endpoints_" + program.role, program.endpoints);
  }
  return variables;
}

}  // namespace ddrun::worker_env
