#include "words_for_hosts.hpp"

#include <algorithm>
#include <array>

#include "ddrun/base/text.hpp"
#include "option_table.hpp"

namespace ddrun::cli {

namespace {

/// Decided here for all hosts, or of no use there.
constexpr std::array<std::string_view, 15> kept_here{
    "dry-run",       "color",        "hosts",       "hostfile", "ssh",        "export", "node-rank",  "standalone",
    "rdzv-endpoint", "rdzv-backend", "secret-file", "insecure", "env-detect", "nnodes", "master-port"};

}  // namespace

std::vector<std::string> words_for_hosts(const Draft& draft, const Settings& settings) {
  std::vector<std::string> words;
  for (const Option* option : all_options()) {
    if (!option->is_setting() || settings.of(*option).source == Source::standard) continue;
    if (std::find(kept_here.begin(), kept_here.end(), option->name) != kept_here.end()) continue;
    for (const std::string& value : option->show(draft)) words.push_back(concat("--", option->name, "=", value));
  }
  words.emplace_back("--");
  words.push_back(draft.spec.program.name);
  words.insert(words.end(), draft.spec.program.args.begin(), draft.spec.program.args.end());
  return words;
}

}  // namespace ddrun::cli
