#pragma once

#include <string>
#include <string_view>

#include "option_table.hpp"

namespace ddrun::cli {

/// What is offered for --signals-to-handle; it takes others too.
constexpr std::string_view signal_words = "SIGALRM SIGHUP SIGINT SIGQUIT SIGTERM SIGUSR1 SIGUSR2 SIGWINCH";

/// The first part of an option's help: what fits beside a name in a menu.
[[nodiscard]] std::string short_help(const Option& option);

/// With a backslash before each of `special`.
[[nodiscard]] std::string escaped(std::string_view text, std::string_view special);

/// In single quotes, for a shell in which ' is written as `quote` inside of them.
[[nodiscard]] std::string single_quoted(std::string_view text, std::string_view quote);

/// "--nproc-per-node|-n": every spelling of the options that take a value and of which `wanted` is true.
template <class Predicate>
[[nodiscard]] std::string patterns_of(Predicate wanted) {
  std::string text;
  for (const Option* option : all_options()) {
    if (!option->takes_value() || !wanted(*option)) continue;
    if (!text.empty()) text += '|';
    text += "--" + std::string(option->name);
    for (const char letter : option->shorts) text += std::string("|-") + letter;
    if (option->shorts.find('n') != std::string_view::npos) text += "|-np";
  }
  return text;
}

/// The script for each shell.
[[nodiscard]] std::string bash_completion();
[[nodiscard]] std::string zsh_completion();
[[nodiscard]] std::string fish_completion();

}  // namespace ddrun::cli
