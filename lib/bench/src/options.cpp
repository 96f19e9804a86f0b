#include "ddrun/bench/options.hpp"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <span>
#include <utility>

#include "ddrun/argv/argv.hpp"
#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/text.hpp"
#include "reports.hpp"

namespace ddrun::bench {

// ---- the table

namespace {

/// A command line's options: names, help and parsers. The last occurrence of an option counts.
class OptionTable {
 public:
  /// Starts a group of options with this title in the help.
  void group(std::string_view title) { group_ = title; }
  /// `names` such as "-b,--minbytes" (literals); the first long name is used in messages and help. `parse` converts the
  /// text for `to`; its error message is prefixed with the name.
  template <class To, class Parse>
  void add(std::string_view names, std::string_view type, std::string help, To& to, Parse parse) {
    add_row(names, type, std::move(help), [&to, parse](const std::string& text) -> Result<void> {
      to = static_cast<To>(TRY(parse(text)));
      return {};
    });
  }
  void add_flag(std::string_view names, std::string help, bool& to) {
    add(names, "", std::move(help), to, [](const std::string&) { return Result<bool>(true); });
  }
  /// A check across options, run after parsing, in the order of addition.
  void rule(std::function<Result<void>()> check) { rules_.push_back(std::move(check)); }

  /// Returns text to print before exiting (help, version), or none.
  [[nodiscard]] Result<std::optional<std::string>> parse(int argc, char** argv) const;

 private:
  using Read = std::function<Result<void>(const std::string& text)>;
  struct Row {
    std::string_view group;
    argv::Option option;  ///< with the name as listed
    std::string help;
    std::string name;  ///< with dashes
    Read read;
  };
  void add_row(std::string_view names, std::string_view type, std::string help, const Read& read);
  [[nodiscard]] std::string help_text(std::span<const argv::Option> actions) const;

  std::string_view group_;
  std::deque<Row> rows_;
  std::vector<std::function<Result<void>()>> rules_;
};

constexpr const char* purpose_text = "Calls collectives of all ranks, checks every element and prints bandwidths.\n";
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

}  // namespace

void OptionTable::add_row(std::string_view names, std::string_view type, std::string help, const Read& read) {
  std::string_view letter;
  for (std::size_t at = 0; at < names.size();) {
    const std::size_t end = std::min(names.find(',', at), names.size());
    const std::string_view name = names.substr(at, end - at);
    at = end + 1;
    if (name[1] != '-') {
      letter = name.substr(1);
      continue;
    }
    rows_.push_back({group_, {name.substr(2), letter, type}, help, argv::with_dashes(name.substr(2)), read});
    letter = "";
    help = "the same";
  }
}

std::string OptionTable::help_text(std::span<const argv::Option> actions) const {
  std::string text = concat(purpose_text, "Usage: ddrun-allreduce [options]\n\nOptions:\n", argv::describe(actions));
  std::string_view group;
  for (const Row& row : rows_) {
    if (row.group != group) text += concat('\n', row.group, ":\n");
    group = row.group;
    text += argv::describe(row.option, row.help);
  }
  return text + examples_text;
}

Result<std::optional<std::string>> OptionTable::parse(int argc, char** argv) const {
  std::vector<argv::Option> options{{"help", "h", "", "Print this help", true},
                                    {"version", "", "", "Print the version", true}};
  for (const Row& row : rows_) options.push_back({row.name, row.option.shorts, row.option.metavar});
  const std::vector<std::string> args(argv + 1, argv + argc);
  const auto line = TRY(argv::read({options, argv::Positionals::anywhere, "ddrun-allreduce --help"}, args));
  if (line.action == &options[1]) return "ddrun-allreduce " DDRUN_ALLREDUCE_VERSION "\n";
  if (line.action != nullptr) return help_text(std::span(options).first(2));
  if (!line.positionals.empty())
    return fail(Errc::invalid_argument, concat("unknown word '", line.positionals.front(), "'"));
  for (const argv::OptionValues& given : line.options) {
    const Row& row = rows_[static_cast<std::size_t>(given.option - &options[2])];
    if (auto read = row.read(given.values.back()); !read) {
      return fail(read.error().code, concat("--", row.option.name, ": ", read.error().message));
    }
  }
  for (const auto& check : rules_) TRY(check());
  return std::nullopt;
}

// ---- the options

namespace {

/// "a, b or c".
std::string one_of(const std::vector<std::string>& names) {
  const std::vector<std::string> first(names.begin(), names.end() - 1);
  return concat(join(first, ", "), " or ", names.back());
}

/// "must be a, b or c, not 'x'"
tl::unexpected<Error> invalid_choice(const std::vector<std::string>& names, const std::string& text) {
  return fail(Errc::invalid_argument, concat("must be ", one_of(names), ", not '", text, "'"));
}

template <class Value>
std::vector<std::string> names_of(std::span<const Value> known) {
  std::vector<std::string> names;
  for (const Value value : known) names.emplace_back(name_of(value));
  return names;
}

/// A comma-separated list of values with a name_of(), without duplicates, or "all"; `named` looks up one.
template <class Value>
auto list_of(std::span<const Value> known, std::optional<Value> (*named)(std::string_view)) {
  return [known, named](const std::string& text) -> Result<std::vector<Value>> {
    std::vector<Value> values;
    for (const std::string& word : split(text, ',')) {
      if (word == "all") {
        values.assign(known.begin(), known.end());
        continue;
      }
      const std::optional<Value> one = named(word);
      if (!one) {
        std::vector<std::string> names = names_of(known);
        names.emplace_back("all");
        return invalid_choice(names, word);
      }
      if (std::find(values.begin(), values.end(), *one) == values.end()) values.push_back(*one);
    }
    return values;
  };
}

Result<collectives::Backend> back_end(const std::string& text) {
  if (const auto one = collectives::backend_named(text)) return *one;
  return invalid_choice(names_of(collectives::backends()), text);
}

Result<bool> is_private(const std::string& text) {
  if (text != "shared" && text != "private") return invalid_choice({"shared", "private"}, text);
  return text == "private";
}

Result<std::string> non_empty(const std::string& text) {
  if (text.empty()) return fail(Errc::invalid_argument, "must not be empty");
  return text;
}

/// A size in bytes or with a unit: "64K".
auto size(std::uint64_t least = 0) {
  return [least](const std::string& text) -> Result<std::uint64_t> {
    auto value = parse_size(text);
    if (value && *value < least)
      return fail(Errc::invalid_argument, concat("must be at least ", least, ", not ", text));
    return value;
  };
}

auto number(int low, int high) {
  return [low, high](const std::string& text) { return parse_integer(text, low, high); };
}

Result<long long> single(const std::string& text) {
  const auto count = parse_integer(text, 1, 1'000'000);
  if (!count || *count == 1) return count;
  return fail(Errc::invalid_argument,
              concat("each rank has one; for ", *count, " write: ddrun -n ", *count, " ddrun-allreduce"));
}

/// Greater than 0; a plain number is in seconds.
Result<Milliseconds> duration(const std::string& text) {
  auto value = parse_duration(text);
  if (value && value->count() == 0) return fail(Errc::invalid_argument, "must be more than 0");
  return value;
}

Result<std::string> plot_path(const std::string& text) {
  TRY(terminal_of(text));
  return text;
}

void add_report_options(OptionTable& table, ReportOptions& to) {
  table.group("Reports (FILE may be - for standard output)");
  table.add("-J,--output_file,--json", "FILE", "also write the results there", to.json_file, non_empty);
  table.add("--plot", "FILE", "draw them: a name in .svg or .png (gnuplot)", to.plot_file, plot_path);
  table.group("Judging (exit status 3 if it falls short)");
  table.add("--min-busbw", "GB/s[@SIZE]", "needed at the largest size, or at SIZE", to.thresholds.min_busbw,
            parse_min_busbw);
  table.add("--max-latency", "TIME[@SIZE]", "allowed at the smallest size, or at SIZE", to.thresholds.max_latency,
            parse_max_latency);
}

constexpr int max_number = 1'000'000'000;
constexpr int max_rank = 1'000'000;

Result<void> invalid_option(const char* option, const std::string& why) {
  return fail(Errc::invalid_argument, concat(option, ": ", why));
}

/// Sizes must hold at least one element of every requested type.
Result<void> check_sizes(const Options& options) {
  std::uint64_t element = 1;
  for (const auto type : options.types) element = std::max<std::uint64_t>(element, collectives::size_of(type));
  const auto too_small = [&](std::uint64_t size) { return concat("must be at least ", element, ", not ", size); };
  if (options.min_bytes < element) return invalid_option("--minbytes", too_small(options.min_bytes));
  if (options.max_bytes && *options.max_bytes < element)
    return invalid_option("--maxbytes", too_small(*options.max_bytes));
  if (options.step_bytes != 0 && options.step_bytes < element)
    return invalid_option("--stepbytes", too_small(options.step_bytes));
  if (options.max_bytes && *options.max_bytes < options.min_bytes) {
    return invalid_option("--maxbytes", concat(*options.max_bytes, " is less than --minbytes, ", options.min_bytes));
  }
  return {};
}

void add_sizes(OptionTable& table, Options& to) {
  table.group("Sizes (bytes; K, M and G are powers of 1024)");
  table.add("-b,--minbytes", "SIZE", "first size (8)", to.min_bytes, size());
  table.add("-e,--maxbytes", "SIZE", "last size (128M, less if memory is short)", to.max_bytes, size());
  table.add("-f,--stepfactor", "N", "each size is N times the one before (2)", to.step_factor, size(2));
  table.add("-i,--stepbytes", "SIZE", "each size is this much more instead", to.step_bytes, size(1));
  table.rule([&to] { return check_sizes(to); });
}

void add_calls(OptionTable& table, Options& to) {
  table.group("What (several with commas between them, or all)");
  table.add("--collective", "NAME", "broadcast and so on (all_reduce)", to.collectives,
            list_of<collectives::Collective>(collectives::all_collectives, collectives::collective_named));
  table.add("-d,--datatype", "TYPE", "half, double, int32 and so on (float)", to.types,
            list_of<collectives::DataType>(collectives::all_types, collectives::data_type_named));
  table.add("-o,--op", "OP", "sum, prod, max, min or avg (sum)", to.ops,
            list_of<collectives::ReduceOp>(collectives::all_ops, collectives::reduce_op_named));
  table.add("-r,--root", "RANK", "of broadcast and so on; -1: each in turn (0)", to.root,
            number(Options::every_root, max_rank));
}

void add_measuring(OptionTable& table, Options& to) {
  table.group("Measuring");
  table.add("-n,--iters", "N", "timed calls per size (20, within limits of time)", to.iterations,
            number(1, max_number));
  table.add("-w,--warmup_iters", "N", "untimed calls before them (2)", to.warmup, number(0, max_number));
  table.add("-c,--check", "N", "calls whose every element is checked (1)", to.checks, number(0, max_number));
  table.add_flag("--pairs", "every pair of nodes (of ranks on one) instead", to.pairs);
}

void add_how(OptionTable& table, Options& to, std::optional<Milliseconds>& op_timeout) {
  table.group("How");
  table.add("--backend", "NAME", one_of(names_of(collectives::backends())) + " (auto)", to.backend, back_end);
  table.add("--buffers", "NAME", "shared (the back end's own) or private (shared)", to.private_buffers, is_private);
  table.add("-T,--timeout", "TIME", "for the start (60s)", to.timeout, duration);
  table.add("--op-timeout", "TIME", "for each call (as --timeout)", op_timeout, duration);
  table.add("--streams", "N", "tcp: connections per pair, 1 to 64 (chosen)", to.streams, number(1, 64));
  table.add("-z,--blocking", "0|1", "nccl: wait for each call before the next (0)", to.blocking, number(0, 1));
  table.add("-G,--cudagraph", "N", "nccl: put calls into a graph, launch it N times", to.graph_launches,
            number(0, max_number));
  table.rule([&to, &op_timeout]() -> Result<void> {
    to.op_timeout = op_timeout.value_or(to.timeout);
    if (to.backend == collectives::Backend::automatic) return {};  // checked once the back end is chosen
    return check_backend_options(to, name_of(to.backend));
  });
}

void add_tests(OptionTable& table, Options& to) {
  table.group("To test a launcher");
  table.add("--corrupt-rank", "RANK", "this rank contributes a wrong element", to.corrupt_rank, number(0, max_rank));
  table.add("--kill-rank", "RANK", "this rank kills itself with SIGKILL", to.kill_rank, number(0, max_rank));
  table.add("--kill-at", "SIZE", "before the first size as large as this (0)", to.kill_at, size());
}

/// One line per back end: "shm   yes  memory shared …", "gloo  no   this build has no gloo".
std::string list_of_back_ends() {
  std::string text;
  for (const auto backend : collectives::backends()) {
    std::string name(name_of(backend));
    name.resize(6, ' ');
    const auto available = collectives::probe(backend);
    text += concat(name, available ? "yes  " + *available : "no   " + available.error().message, '\n');
  }
  return text;
}

}  // namespace

std::string buffers_of(const Options& options) { return options.private_buffers ? "private" : "shared"; }

Result<void> check_backend_options(const Options& options, std::string_view backend) {
  if (options.streams != 0 && backend != "tcp") {
    return invalid_option("--streams", concat("is for tcp; ", backend, " makes no connections of its own choice"));
  }
  if (backend == "nccl") return {};
  if (options.blocking) {
    return invalid_option("--blocking", concat("is for nccl; calls of ", backend, " always block"));
  }
  if (options.graph_launches != 0) {
    return invalid_option("--cudagraph", concat("is for nccl; ", backend, " runs on processors, which have no graphs"));
  }
  return {};
}

Parsed parse_options(int argc, char** argv) {
  Parsed parsed;
  std::optional<Milliseconds> op_timeout;
  bool list = false;
  int one = 1;
  OptionTable table;
  add_sizes(table, parsed.options);
  add_calls(table, parsed.options);
  add_measuring(table, parsed.options);
  add_how(table, parsed.options, op_timeout);
  table.add("-g,--ngpus", "1", "GPUs of each rank, as of nccl-tests (1)", one, single);
  table.add("-t,--nthreads", "1", "threads of each rank, as of nccl-tests (1)", one, single);
  table.add_flag("--list", "show which back ends there are, and why not", list);
  add_report_options(table, parsed.options.report);
  add_tests(table, parsed.options);
  const auto output = table.parse(argc, argv);
  if (!output) {
    print_error(output.error().message);
    parsed.exit_code = exit_usage;
  } else if (*output) {
    write_shared(STDOUT_FILENO, **output);
    parsed.exit_code = exit_ok;
  } else if (list) {
    write_shared(STDOUT_FILENO, list_of_back_ends());
    parsed.exit_code = exit_ok;
  }
  return parsed;
}

}  // namespace ddrun::bench
