#include "option_table.hpp"

#include "ddrun/cli/values.hpp"

// Group "ddrun itself": its messages, its settings file, what it does instead of launching.

namespace ddrun::cli {

namespace {

constexpr std::string_view color_words = "auto always never";

/// -v may be given as a number (DDRUN_VERBOSE=2) or a word, or once per step.
Result<void> set_count(int& to, std::string_view value) {
  const auto number = parse_int(value, 0, 9);
  if (number) {
    to = *number;
    return {};
  }
  const auto yes = parse_bool(value);
  if (!yes) return fail(Errc::invalid_argument, "'" + std::string(value) + "' is not a number from 0 to 9");
  to = *yes ? 1 : 0;
  return {};
}

Result<void> set_color(Draft& draft, std::string_view value) {
  const auto word = parse_choice(value, color_words);
  if (!word) return tl::unexpected<Error>(word.error());
  draft.color = *word == "always" ? ColorMode::always : *word == "never" ? ColorMode::never : ColorMode::automatic;
  return {};
}

const char* color_text(ColorMode mode) {
  switch (mode) {
    case ColorMode::always: return "always";
    case ColorMode::never: return "never";
    case ColorMode::automatic: break;
  }
  return "auto";
}

/// torchrun's third handler only concerns an event source that does not exist here; it prints nothing there either.
Result<void> set_event_handler(Draft& draft, std::string_view value) {
  if (value == "dynamic_rendezvous") value = "null";
  return assign(draft.spec.event_log_handler, parse_choice(value, "null console"));
}

constexpr Option launcher_table[] = {
    {.name = "config",
     .metavar = "FILE",
     .kind = Kind::file,
     .help = "Read settings from a TOML file; keys are long options without dashes in front"},
    {.name = "dry-run",
     .kind = Kind::flag,
     .help = "Show what would be started, and start nothing",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.dry_run, parse_bool(v)); },
     .show = [](const Draft& d) { return shown(d.spec.dry_run); }},
    {.name = "verbose",
     .shorts = "v",
     .kind = Kind::count,
     .help = "Say more; twice: say everything",
     .set = [](Draft& d, std::string_view v) { return set_count(d.verbose, v); },
     .show = [](const Draft& d) { return shown(d.verbose); }},
    {.name = "quiet",
     .shorts = "q",
     .kind = Kind::count,
     .help = "Only warnings and errors; twice: only errors",
     .set = [](Draft& d, std::string_view v) { return set_count(d.quiet, v); },
     .show = [](const Draft& d) { return shown(d.quiet); }},
    {.name = "color",
     .metavar = "WHEN",
     .choices = color_words,
     .kind = Kind::choice,
     .help = "Colour ddrun's own lines: auto (on a terminal, unless NO_COLOR is set), always or never",
     .set = set_color,
     .show = [](const Draft& d) { return shown(color_text(d.color)); }},
    {.name = "event-log-handler",
     .metavar = "WHERE",
     .choices = "null console",
     .kind = Kind::choice,
     .pet = true,
     .help = "console: one JSON object per event of a worker's life, on stderr",
     .set = set_event_handler,
     .show = [](const Draft& d) { return shown(d.spec.event_log_handler); }},
    {.name = "print-completion",
     .metavar = "SHELL",
     .choices = "bash zsh fish",
     .kind = Kind::choice,
     .help = "The same as 'ddrun completion SHELL'"},
    {.name = "version", .shorts = "V", .kind = Kind::action, .help = "Show version, commit and what was compiled in"},
    {.name = "help", .shorts = "h", .kind = Kind::action, .help = "Show this help"},
};

}  // namespace

std::span<const Option> launcher_options() { return launcher_table; }

}  // namespace ddrun::cli
