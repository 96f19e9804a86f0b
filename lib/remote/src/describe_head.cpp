#include "ddrun/base/text.hpp"
#include "ddrun/remote/head.hpp"

namespace ddrun::remote {

std::string describe_head(const HeadOptions& options) {
  std::string text = concat("would start ddrun on ", counted(static_cast<long long>(options.hosts.size()), "host"),
                            " by ", options.ssh, ", in ", shell_quote(options.job.directory), ":\n");
  for (std::size_t i = 0; i < options.hosts.size(); ++i) {
    text += concat("  node rank ", i, ": ", options.hosts[i].name);
    if (options.hosts[i].slots) text += concat(", ", counted(*options.hosts[i].slots, "slot"));
    if (options.hosts[i].here) text += ", here";
    text += i == 0 && options.hosts.size() > 1 ? ", coordinator\n" : "\n";
  }
  text += "\neach as:\n  ddrun";
  for (const auto& word : options.job.words) text += " " + shell_quote(word);
  text += "\n";
  for (const auto& variable : options.job.variables)
    text += concat("  ", variable.first, "=", shell_quote(variable.second), "\n");
  return text;
}

}  // namespace ddrun::remote
