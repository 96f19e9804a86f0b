#include "ddrun/bench/options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>

#include "ddrun/base/text.hpp"
#include "ddrun/bench/run.hpp"
#include "reports.hpp"

namespace ddrun::bench {

// ---- all that knows CLI11

namespace {

/// The options of a command line: names, help, and what reads each. Long names may be written with dashes or with
/// underscores, whichever they are listed with. Of an option that is given twice the last one counts.
class OptionTable {
 public:
  /// Judges a text and keeps what it says. An error's message tells what is wrong; parse() puts the name before it.
  using Read = std::function<Result<void>(const std::string& text)>;

  /// What is added from here on stands under `title` in the help.
  void group(std::string title) { group_ = std::move(title); }
  /// `names` as in "-b,--minbytes"; the first long one is that of messages.
  void add(std::string names, std::string type, std::string help, Read read);
  /// One without a value.
  void add_flag(std::string names, std::string help, bool& to);
  /// What concerns several options: called after all of them have been read, in the order of the calls.
  void rule(std::function<Result<void>()> judge) { rules_.push_back(std::move(judge)); }

  /// Reads them all. Returns what to print before the program ends (help, version), or nothing.
  [[nodiscard]] Result<std::optional<std::string>> parse(int argc, char** argv, const std::string& purpose,
                                                         const std::string& footer) const;

 private:
  struct Option {
    std::string names;
    std::string type;
    std::string help;
    std::string group;
    Read read;
    bool* flag = nullptr;
  };
  [[nodiscard]] std::vector<std::string> normalized(int argc, char** argv) const;

  std::string group_;
  std::vector<Option> options_;
  std::vector<std::function<Result<void>()>> rules_;
};

/// Of "-b,--minbytes": "--minbytes".
std::string long_name(const std::string& names) {
  const std::vector<std::string> all = split(names, ',');
  const auto found = std::find_if(all.begin(), all.end(), [](const std::string& one) { return one.starts_with("--"); });
  return found == all.end() ? all.front() : *found;
}

bool same_but_for_dashes(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return x == y || ((x == '-' || x == '_') && (y == '-' || y == '_')); });
}

}  // namespace

void OptionTable::add(std::string names, std::string type, std::string help, Read read) {
  options_.push_back({std::move(names), std::move(type), std::move(help), group_, std::move(read)});
}

void OptionTable::add_flag(std::string names, std::string help, bool& to) {
  options_.push_back({std::move(names), "", std::move(help), group_, {}, &to});
}

std::vector<std::string> OptionTable::normalized(int argc, char** argv) const {
  std::vector<std::string> words(argv + 1, argv + argc);
  for (std::string& word : words) {
    if (!word.starts_with("--")) continue;
    const std::size_t end = std::min(word.find('='), word.size());
    for (const Option& option : options_) {
      for (const std::string& name : split(option.names, ',')) {
        if (same_but_for_dashes(name, std::string_view(word).substr(0, end))) word.replace(0, end, name);
      }
    }
  }
  // As CLI11 wants them when they are no argv.
  std::reverse(words.begin(), words.end());
  return words;
}

Result<std::optional<std::string>> OptionTable::parse(int argc, char** argv, const std::string& purpose,
                                                      const std::string& footer) const {
  CLI::App app(purpose, "ddrun-allreduce");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_version_flag("--version", "ddrun-allreduce " DDRUN_ALLREDUCE_VERSION);
  app.footer(footer);
  std::deque<std::string> texts;
  std::vector<CLI::Option*> known;
  for (const Option& option : options_) {
    if (option.flag != nullptr) {
      known.push_back(app.add_flag(option.names, *option.flag, option.help)->group(option.group));
    } else {
      known.push_back(app.add_option(option.names, texts.emplace_back(), option.help)->type_name(option.type));
      known.back()->group(option.group);
    }
  }
  try {
    app.parse(normalized(argc, argv));
  } catch (const CLI::CallForHelp&) {
    return app.help();
  } catch (const CLI::CallForVersion& version) {
    return concat(version.what(), '\n');
  } catch (const CLI::ParseError& error) {
    return fail(Errc::invalid_argument, error.what());
  }
  for (std::size_t i = 0; i < options_.size(); ++i) {
    if (known[i]->count() == 0 || options_[i].flag != nullptr) continue;
    if (auto read = options_[i].read(known[i]->as<std::string>()); !read) {
      return fail(read.error().code, concat(long_name(options_[i].names), ": ", read.error().message));
    }
  }
  for (const auto& judge : rules_) {
    if (auto good = judge(); !good) return tl::unexpected(good.error());
  }
  return std::nullopt;
}

// ---- the options

namespace {

// What reads the text of an option into a value that outlives the reading.

/// "a, b or c".
std::string one_of(const std::vector<std::string>& names) {
  const std::vector<std::string> first(names.begin(), names.end() - 1);
  return concat(join(first, ", "), " or ", names.back());
}

/// "must be a, b or c, not 'x'".
tl::unexpected<Error> none_of(const std::vector<std::string>& names, const std::string& text) {
  return fail(Errc::invalid_argument, concat("must be ", one_of(names), ", not '", text, "'"));
}

template <class Value>
std::vector<std::string> names_of(std::span<const Value> known) {
  std::vector<std::string> names;
  for (const Value value : known) names.emplace_back(name_of(value));
  return names;
}

/// One of those that have a name_of(); `named` finds it.
template <class Value, class Named>
OptionTable::Read name_into(Value& to, std::type_identity_t<std::span<const Value>> known, Named named) {
  return [&to, known, named](const std::string& text) -> Result<void> {
    const std::optional<Value> one = named(text);
    if (!one) return none_of(names_of(known), text);
    to = *one;
    return {};
  };
}

/// Names with commas between them, each once, or "all".
template <class Value, class Named>
OptionTable::Read names_into(std::vector<Value>& to, std::type_identity_t<std::span<const Value>> known, Named named) {
  return [&to, known, named](const std::string& text) -> Result<void> {
    to.clear();
    for (const std::string& word : split(text, ',')) {
      if (word == "all") {
        to.assign(known.begin(), known.end());
        continue;
      }
      const std::optional<Value> one = named(word);
      if (!one) {
        std::vector<std::string> names = names_of(known);
        names.emplace_back("all");
        return none_of(names, word);
      }
      if (std::find(to.begin(), to.end(), *one) == to.end()) to.push_back(*one);
    }
    return {};
  };
}

OptionTable::Read text_into(std::string& to) {
  return [&to](const std::string& text) -> Result<void> {
    if (text.empty()) return fail(Errc::invalid_argument, "must not be empty");
    to = text;
    return {};
  };
}

/// Bytes, "64K" too.
OptionTable::Read size_into(std::uint64_t& to, std::uint64_t least = 0) {
  return [&to, least](const std::string& text) -> Result<void> {
    const auto value = parse_size(text);
    if (!value) return tl::unexpected(value.error());
    if (*value < least) return fail(Errc::invalid_argument, concat("must be at least ", least, ", not ", text));
    to = *value;
    return {};
  };
}

OptionTable::Read size_into(std::optional<std::uint64_t>& to) {
  return [&to](const std::string& text) { return size_into(to.emplace())(text); };
}

OptionTable::Read number_into(int& to, int low, int high) {
  return [&to, low, high](const std::string& text) -> Result<void> {
    const auto value = parse_integer(text, low, high);
    if (!value) return tl::unexpected(value.error());
    to = static_cast<int>(*value);
    return {};
  };
}

/// 0 or 1.
OptionTable::Read switch_into(bool& to) {
  return [&to](const std::string& text) {
    int number = 0;
    auto read = number_into(number, 0, 1)(text);
    to = number != 0;
    return read;
  };
}

/// More than nothing; "30" is seconds.
OptionTable::Read duration_into(Milliseconds& to) {
  return [&to](const std::string& text) -> Result<void> {
    const auto value = parse_duration(text);
    if (!value) return tl::unexpected(value.error());
    if (value->count() == 0) return fail(Errc::invalid_argument, "must be more than 0");
    to = *value;
    return {};
  };
}

OptionTable::Read duration_into(std::optional<Milliseconds>& to) {
  return [&to](const std::string& text) { return duration_into(to.emplace())(text); };
}

OptionTable::Read picture_into(std::string& to) {
  return [&to](const std::string& text) -> Result<void> {
    if (const auto terminal = terminal_of(text); !terminal) return tl::unexpected(terminal.error());
    to = text;
    return {};
  };
}

/// What `parse` makes of the text.
template <class Value>
OptionTable::Read parsed_into(Value& to, Result<Value> (*parse)(const std::string& text)) {
  return [&to, parse](const std::string& text) -> Result<void> {
    auto value = parse(text);
    if (!value) return tl::unexpected(value.error());
    to = std::move(*value);
    return {};
  };
}

void add_report_options(OptionTable& table, ReportOptions& to) {
  table.group("Reports (FILE may be - for standard output)");
  table.add("-J,--output_file,--json", "FILE", "also write the results there", text_into(to.json_file));
  table.add("--plot", "FILE", "draw them: a name in .svg or .png (gnuplot)", picture_into(to.plot_file));
  table.group("Judging (exit status 3 if it falls short)");
  table.add("--min-busbw", "GB/s[@SIZE]", "needed at the largest size, or at SIZE",
            parsed_into(to.thresholds.min_busbw, parse_min_busbw));
  table.add("--max-latency", "TIME[@SIZE]", "allowed at the smallest size, or at SIZE",
            parsed_into(to.thresholds.max_latency, parse_max_latency));
}

constexpr const char* purpose_text = "Calls collectives of all ranks, checks every element and prints bandwidths.";
constexpr const char* examples_text =
    "\nLong names may be written with dashes or underscores.\n"
    "\nRanks are started by a launcher:\n"
    "  ddrun --nproc-per-node=4 ddrun-allreduce\n"
    "  ddrun --nproc-per-node=8 ddrun-allreduce -b 1K -e 64M -f 4 -J result.json\n"
    "  ddrun --nproc-per-node=2 ddrun-allreduce --backend=tcp -d all -o all -e 1M\n"
    "\nExit status: 0 all right; 1 a wrong element or a lost rank; 2 wrong usage;\n"
    "3 slower than asked for; 4 a call that did not end in time; 77 the back end\n"
    "cannot run on this machine.\n"
    "Manual: man ddrun-allreduce\n";
constexpr int max_number = 1'000'000'000;
constexpr int max_rank = 1'000'000;

Result<void> wrong(const char* option, const std::string& why) {
  return fail(Errc::invalid_argument, concat(option, ": ", why));
}

/// The largest element of those asked for: each of them must fit.
Result<void> judge_sizes(const Options& options) {
  std::uint64_t element = 1;
  for (const auto type : options.types) element = std::max<std::uint64_t>(element, collectives::size_of(type));
  const auto too_small = [&](std::uint64_t size) { return concat("must be at least ", element, ", not ", size); };
  if (options.min_bytes < element) return wrong("--minbytes", too_small(options.min_bytes));
  if (options.max_bytes && *options.max_bytes < element) return wrong("--maxbytes", too_small(*options.max_bytes));
  if (options.step_bytes != 0 && options.step_bytes < element)
    return wrong("--stepbytes", too_small(options.step_bytes));
  if (options.max_bytes && *options.max_bytes < options.min_bytes) {
    return wrong("--maxbytes", concat(*options.max_bytes, " is less than --minbytes, ", options.min_bytes));
  }
  return {};
}

void add_sizes(OptionTable& table, Options& to) {
  table.group("Sizes (bytes; K, M and G are powers of 1024)");
  table.add("-b,--minbytes", "SIZE", "first size (8)", size_into(to.min_bytes));
  table.add("-e,--maxbytes", "SIZE", "last size (128M, less if memory is short)", size_into(to.max_bytes));
  table.add("-f,--stepfactor", "N", "each size is N times the one before (2)", size_into(to.step_factor, 2));
  table.add("-i,--stepbytes", "SIZE", "each size is this much more instead", size_into(to.step_bytes, 1));
  table.rule([&to] { return judge_sizes(to); });
}

void add_calls(OptionTable& table, Options& to) {
  table.group("What (several with commas between them, or all)");
  table.add("--collective", "NAME", "broadcast and so on (all_reduce)",
            names_into(to.collectives, collectives::all_collectives, collectives::collective_named));
  table.add("-d,--datatype", "TYPE", "half, double, int32 and so on (float)",
            names_into(to.types, collectives::all_types, collectives::data_type_named));
  table.add("-o,--op", "OP", "sum, prod, max, min or avg (sum)",
            names_into(to.ops, collectives::all_ops, collectives::reduce_op_named));
  table.add("-r,--root", "RANK", "of broadcast and so on; -1: each in turn (0)",
            number_into(to.root, Options::every_root, max_rank));
}

void add_measuring(OptionTable& table, Options& to) {
  table.group("Measuring");
  table.add("-n,--iters", "N", "timed calls per size (20, within limits of time)",
            number_into(to.iterations, 1, max_number));
  table.add("-w,--warmup_iters", "N", "untimed calls before them (2)", number_into(to.warmup, 0, max_number));
  table.add("-c,--check", "N", "calls whose every element is checked (1)", number_into(to.checks, 0, max_number));
  table.add_flag("--pairs", "every pair of nodes (of ranks on one) instead", to.pairs);
}

OptionTable::Read buffers_into(bool& are_private) {
  return [&are_private](const std::string& text) -> Result<void> {
    if (text != "shared" && text != "private") return none_of({"shared", "private"}, text);
    are_private = text == "private";
    return {};
  };
}

void add_how(OptionTable& table, Options& to, std::optional<Milliseconds>& op_timeout) {
  table.group("How");
  table.add("--backend", "NAME", one_of(names_of(collectives::backends())) + " (auto)",
            name_into(to.backend, collectives::backends(), collectives::backend_named));
  table.add("--buffers", "NAME", "shared (the back end's own) or private (shared)", buffers_into(to.private_buffers));
  table.add("-T,--timeout", "TIME", "for the start (60s)", duration_into(to.timeout));
  table.add("--op-timeout", "TIME", "for each call (as --timeout)", duration_into(op_timeout));
  table.add("--streams", "N", "tcp: connections per pair, 1 to 64 (chosen)", number_into(to.streams, 1, 64));
  table.add("-z,--blocking", "0|1", "nccl: wait for each call before the next (0)", switch_into(to.blocking));
  table.add("-G,--cudagraph", "N", "nccl: put calls into a graph, launch it N times",
            number_into(to.graph_launches, 0, max_number));
  table.rule([&to, &op_timeout]() -> Result<void> {
    to.op_timeout = op_timeout.value_or(to.timeout);
    if (to.backend == collectives::Backend::automatic) return {};  // judged when it is known
    return suits(to, name_of(to.backend));
  });
}

void add_tests(OptionTable& table, Options& to) {
  table.group("To test a launcher");
  table.add("--corrupt-rank", "RANK", "this rank contributes a wrong element",
            number_into(to.corrupt_rank, 0, max_rank));
  table.add("--kill-rank", "RANK", "this rank kills itself with SIGKILL", number_into(to.kill_rank, 0, max_rank));
  table.add("--kill-at", "SIZE", "before the first size as large as this (0)", size_into(to.kill_at));
}

/// A line for each: "shm   yes  memory shared …", "gloo  no   this build has no gloo".
std::string list_of_back_ends() {
  std::string text;
  for (const auto backend : collectives::backends()) {
    std::string name(name_of(backend));
    name.resize(6, ' ');
    const auto there = collectives::probe(backend);
    text += concat(name, there ? "yes  " + *there : "no   " + there.error().message, '\n');
  }
  return text;
}

}  // namespace

std::string buffers_of(const Options& options) { return options.private_buffers ? "private" : "shared"; }

Result<void> suits(const Options& options, std::string_view backend) {
  if (options.streams != 0 && backend != "tcp") {
    return wrong("--streams", concat("is for tcp; ", backend, " makes no connections of its own choice"));
  }
  if (backend == "nccl") return {};
  if (options.blocking) {
    return wrong("--blocking", concat("is for nccl; calls of ", backend, " always block"));
  }
  if (options.graph_launches != 0) {
    return wrong("--cudagraph", concat("is for nccl; ", backend, " runs on processors, which have no graphs"));
  }
  return {};
}

Parsed parse_options(int argc, char** argv) {
  Parsed parsed;
  std::optional<Milliseconds> op_timeout;
  bool list = false;
  OptionTable table;
  add_sizes(table, parsed.options);
  add_calls(table, parsed.options);
  add_measuring(table, parsed.options);
  add_how(table, parsed.options, op_timeout);
  table.add_flag("--list", "show which back ends there are, and why not", list);
  add_report_options(table, parsed.options.report);
  add_tests(table, parsed.options);
  const auto words = table.parse(argc, argv, purpose_text, examples_text);
  if (!words) {
    say_error(concat(words.error().message, " (try --help)"));
    parsed.exit_code = exit_usage;
  } else if (*words) {
    std::fwrite((*words)->data(), 1, (*words)->size(), stdout);
    parsed.exit_code = exit_right;
  } else if (list) {
    const std::string all = list_of_back_ends();
    std::fwrite(all.data(), 1, all.size(), stdout);
    parsed.exit_code = exit_right;
  }
  return parsed;
}

}  // namespace ddrun::bench
