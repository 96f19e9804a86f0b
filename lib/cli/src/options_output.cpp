#include "ddrun/base/text.hpp"
#include "option_table.hpp"

#include "ddrun/cli/values.hpp"

// Group "Output": where the workers' lines go.

namespace ddrun::cli {

namespace {

constexpr std::string_view labels = "auto rank local host none";

Result<void> set_label(Draft& draft, std::string_view value) {
  const auto word = parse_choice(value, labels);
  if (!word) return tl::unexpected<Error>(word.error());
  draft.spec.log.label = *word == "rank"    ? Label::rank
                         : *word == "local" ? Label::local
                         : *word == "host"  ? Label::host
                         : *word == "none"  ? Label::none
                                            : Label::automatic;
  return {};
}

constexpr std::string_view pty_uses = "auto always never";

Result<void> set_pty(Draft& draft, std::string_view value) {
  const auto word = parse_choice(value, pty_uses);
  if (!word) return tl::unexpected<Error>(word.error());
  draft.spec.log.pty = *word == "always" ? PtyUse::always : *word == "never" ? PtyUse::never : PtyUse::automatic;
  return {};
}

const char* pty_text(PtyUse use) {
  switch (use) {
    case PtyUse::always: return "always";
    case PtyUse::never: return "never";
    case PtyUse::automatic: break;
  }
  return "auto";
}

const char* label_text(Label label) {
  switch (label) {
    case Label::rank: return "rank";
    case Label::local: return "local";
    case Label::host: return "host";
    case Label::none: return "none";
    case Label::automatic: break;
  }
  return "auto";
}

Result<void> set_ranks_filter(Draft& draft, std::string_view value) {
  if (value.empty()) {
    draft.spec.log.local_ranks_filter.reset();
    return {};
  }
  return assign(draft.spec.log.local_ranks_filter, parse_number_set(value, 99'999, "a local rank"));
}

Result<void> set_rotation(Draft& draft, std::string_view value) {
  const auto bytes = parse_size(value);
  if (!bytes) return tl::unexpected<Error>(bytes.error());
  if (*bytes != 0 && *bytes < 1024) {
    return fail(Errc::invalid_argument, concat("'", value, "' is too small: give 0 (never) or at least 1K"));
  }
  draft.spec.log.rotate_bytes = *bytes;
  return {};
}

constexpr Option output_table[] = {
    {.name = "redirects",
     .shorts = "r",
     .metavar = "STREAMS",
     .kind = Kind::streams,
     .pet = true,
     .help = "Send workers' output to files only: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank, as in 0:3,12:1",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.log.redirects, parse_streams(v)); },
     .show = [](const Draft& d) { return shown(streams_text(d.spec.log.redirects)); }},
    {.name = "tee",
     .shorts = "t",
     .metavar = "STREAMS",
     .kind = Kind::streams,
     .pet = true,
     .help = "Send workers' output to files and the console; written as for -r",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.log.tee, parse_streams(v)); },
     .show = [](const Draft& d) { return shown(streams_text(d.spec.log.tee)); }},
    {.name = "log-dir",
     .metavar = "DIR",
     .kind = Kind::directory,
     .pet = true,
     .help = "Where log files go, made if missing; /dev/null for no files. Unset: a new directory, if one is needed",
     .set = [](Draft& d, std::string_view v) { return assign_or_reset(d.spec.log.dir, v, parse_non_empty); },
     .show = [](const Draft& d) { return shown(d.spec.log.dir); }},
    {.name = "log-rotate",
     .metavar = "SIZE",
     .kind = Kind::size,
     .help = "Begin a new log file when one would grow over SIZE (64K, 10M, 1G); 0: never",
     .set = set_rotation,
     .show = [](const Draft& d) { return shown(std::to_string(d.spec.log.rotate_bytes)); }},
    {.name = "label",
     .metavar = "WHAT",
     .choices = labels,
     .kind = Kind::choice,
     .help = "What stands before each line on the console: rank, local (rank), host (and rank) or none; auto: the rank "
             "if there is more than one worker",
     .set = set_label,
     .show = [](const Draft& d) { return shown(label_text(d.spec.log.label)); }},
    {.name = "log-line-prefix-template",
     .metavar = "TEXT",
     .kind = Kind::text,
     .pet = true,
     .other_variable = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
     .help = "Own text instead of a label; ${role_name}, ${local_rank}, ${rank} and ${hostname} are replaced",
     .set =
         [](Draft& d, std::string_view v) {
           return assign(d.spec.log.line_prefix_template, Result<std::string>(std::string(v)));
         },
     .show = [](const Draft& d) { return shown(d.spec.log.line_prefix_template); }},
    {.name = "pty",
     .metavar = "WHEN",
     .choices = pty_uses,
     .kind = Kind::choice,
     .help = "Give workers pseudo-terminals instead of pipes: always, never, or auto: if the console is a terminal",
     .set = set_pty,
     .show = [](const Draft& d) { return shown(pty_text(d.spec.log.pty)); }},
    {.name = "timestamps",
     .kind = Kind::flag,
     .help = "Put the time before each line on the console",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.log.timestamps, parse_bool(v)); },
     .show = [](const Draft& d) { return shown(d.spec.log.timestamps); }},
    {.name = "local-ranks-filter",
     .metavar = "RANKS",
     .kind = Kind::numbers,
     .pet = true,
     .help = "Show only these local ranks on the console: 0,8-15. Files are not affected",
     .set = set_ranks_filter,
     .show =
         [](const Draft& d) {
           return d.spec.log.local_ranks_filter ? shown(number_set_text(*d.spec.log.local_ranks_filter)) : Shown{};
         }},
    {.name = "duplicate-stdout-filters",
     .metavar = "TEXTS",
     .kind = Kind::names,
     .pet = true,
     .help = "Copy lines of stdout that contain one of these texts to filtered_stdout.log; comma list, ',,' is a "
             "comma",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.log.duplicate_stdout_filters, parse_filters(v)); },
     .show = [](const Draft& d) { return shown(filters_text(d.spec.log.duplicate_stdout_filters)); }},
    {.name = "duplicate-stderr-filters",
     .metavar = "TEXTS",
     .kind = Kind::names,
     .pet = true,
     .help = "The same for stderr and filtered_stderr.log",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.log.duplicate_stderr_filters, parse_filters(v)); },
     .show = [](const Draft& d) { return shown(filters_text(d.spec.log.duplicate_stderr_filters)); }},
};

}  // namespace

std::span<const Option> output_options() { return output_table; }

}  // namespace ddrun::cli
