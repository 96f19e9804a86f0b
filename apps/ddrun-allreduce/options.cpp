#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "ddrun/base/text.hpp"
#include "say.hpp"

namespace ddrun::allreduce {

namespace {

constexpr const char* kExamples =
    "\nRanks are started by a launcher:\n"
    "  ddrun --nproc-per-node=4 ddrun-allreduce\n"
    "  ddrun --nproc-per-node=8 ddrun-allreduce -b 1K -e 64M -f 4 -J result.json\n"
    "  ddrun --nproc-per-node=2 ddrun-allreduce --backend=tcp -d all -o all -e 1M\n"
    "\nExit status: 0 all right; 1 a wrong element or a lost rank; 2 wrong usage.\n"
    "Manual: man ddrun-allreduce\n";

/// What is read as text, to be judged in our own words.
struct Texts {
  std::string min = "8";
  std::string max;
  std::string factor = "2";
  std::string step;
  std::string iterations;
  std::string warmup = "2";
  std::string check = "1";
  std::string backend = "auto";
  std::string timeout = "60s";
  std::string corrupt_rank;
  std::string kill_rank;
  std::string kill_at = "0";
  std::string collective = "all_reduce";
  std::string root = "0";
  std::string datatype = "float";
  std::string op = "sum";
  std::string gpus = "1";
};

Result<void> wrong(const std::string& option, const std::string& why) {
  return fail(Errc::invalid_argument, concat(option, ": ", why));
}

Result<void> read_size(const std::string& option, const std::string& text, std::uint64_t low, std::uint64_t& to) {
  const auto value = parse_size(text);
  if (!value) return wrong(option, value.error().message);
  if (*value < low) return wrong(option, concat("must be at least ", low, ", not ", text));
  to = *value;
  return {};
}

Result<void> read_number(const std::string& option, const std::string& text, int low, int high, int& to) {
  const auto value = parse_integer(text, low, high);
  if (!value) return wrong(option, value.error().message);
  to = static_cast<int>(*value);
  return {};
}

template <class T>
Result<void> read_word(const std::string& option, const std::string& text, const std::map<std::string, T>& words,
                       T& to) {
  const auto found = words.find(text);
  if (found != words.end()) {
    to = found->second;
    return {};
  }
  std::vector<std::string> names;
  for (const auto& [name, value] : words) names.push_back(name);
  return wrong(option, concat("must be ", join(names, " or "), ", not '", text, "'"));
}

/// A name, or "all".
template <class Value, std::size_t Count>
Result<void> read_names(const std::string& option, const std::string& text, const std::array<Value, Count>& known,
                        std::vector<Value>& to) {
  std::vector<std::string> names;
  for (const Value value : known) {
    if (name_of(value) == text) {
      to = {value};
      return {};
    }
    names.emplace_back(name_of(value));
  }
  if (text == "all") {
    to.assign(known.begin(), known.end());
    return {};
  }
  return wrong(option, concat("must be ", join(names, ", "), " or all, not '", text, "'"));
}

Result<void> read_collectives(const std::string& text, std::vector<collectives::Collective>& to) {
  if (const auto one = collectives::collective_named(text)) {
    to = {*one};
    return {};
  }
  return read_names("--collective", text, collectives::kCollectives, to);
}

template <class Value>
std::string names_of(const std::vector<Value>& values) {
  std::vector<std::string> names;
  for (const Value value : values) names.emplace_back(name_of(value));
  return join(names, ",");
}

Result<Options> judge(const Texts& texts, Options options) {
  Result<void> good;
  const auto also = [&good](auto&& next) {
    if (good) good = next();
  };
  also([&] { return read_collectives(texts.collective, options.collectives); });
  also([&] { return read_names("--datatype", texts.datatype, collectives::kDataTypes, options.types); });
  also([&] { return read_names("--op", texts.op, collectives::kReduceOps, options.ops); });
  // The largest element of those asked for: each of them must fit.
  std::uint64_t element = 1;
  for (const auto type : options.types) element = std::max<std::uint64_t>(element, collectives::size_of(type));
  also([&] { return read_size("--minbytes", texts.min, element, options.min_bytes); });
  if (!texts.max.empty()) {
    also([&] { return read_size("--maxbytes", texts.max, element, options.max_bytes.emplace()); });
  }
  also([&] { return read_size("--stepfactor", texts.factor, 2, options.step_factor); });
  if (!texts.step.empty()) {
    also([&] { return read_size("--stepbytes", texts.step, element, options.step_bytes); });
  }
  if (!texts.iterations.empty()) {
    also([&] { return read_number("--iters", texts.iterations, 1, 1'000'000'000, options.iterations); });
  }
  also([&] { return read_number("--warmup_iters", texts.warmup, 0, 1'000'000'000, options.warmup); });
  int check = 1;
  also([&] { return read_number("--check", texts.check, 0, 1, check); });
  options.check = check != 0;
  using collectives::Backend;
  const std::map<std::string, Backend> backends{
      {"auto", Backend::automatic}, {"shm", Backend::shm}, {"tcp", Backend::tcp}};
  also([&] { return read_word("--backend", texts.backend, backends, options.backend); });
  also([&]() -> Result<void> {
    const auto timeout = parse_duration(texts.timeout);
    if (!timeout) return wrong("--timeout", timeout.error().message);
    if (timeout->count() == 0) return wrong("--timeout", "must be more than 0");
    options.timeout = *timeout;
    return {};
  });
  constexpr int kMaxRank = 1'000'000;
  also([&] { return read_number("--root", texts.root, 0, kMaxRank, options.root); });
  if (!texts.corrupt_rank.empty()) {
    also([&] { return read_number("--corrupt-rank", texts.corrupt_rank, 0, kMaxRank, options.corrupt_rank); });
  }
  if (!texts.kill_rank.empty()) {
    also([&] { return read_number("--kill-rank", texts.kill_rank, 0, kMaxRank, options.kill_rank); });
  }
  also([&] { return read_size("--kill-at", texts.kill_at, 0, options.kill_at); });
  int only = 0;
  also([&] { return read_word<int>("--ngpus", texts.gpus, {{"1", 0}}, only); });
  if (good && options.max_bytes && *options.max_bytes < options.min_bytes) {
    good = wrong("--maxbytes", concat(*options.max_bytes, " is less than --minbytes, ", options.min_bytes));
  }
  if (!good) return tl::unexpected(good.error());
  return options;
}

}  // namespace

std::vector<Case> cases(const Options& options) {
  std::vector<Case> all;
  for (const auto collective : options.collectives) {
    for (const auto type : options.types) {
      for (const auto op : options.ops) {
        all.push_back({collective, type, op, options.root});
        if (!reduces(collective)) break;
      }
      if (collective == collectives::Collective::barrier) break;
    }
  }
  return all;
}

std::vector<std::uint64_t> sizes(const Options& options, std::uint64_t max_bytes, const Case& what, int ranks) {
  if (what.collective == collectives::Collective::barrier) return {0};
  const collectives::Blocks blocks = collectives::blocks_of(what.collective, ranks);
  const std::uint64_t unit = collectives::size_of(what.type) * std::max(blocks.in, blocks.out);
  std::vector<std::uint64_t> all;
  for (std::uint64_t size = options.min_bytes; size <= max_bytes;) {
    const std::uint64_t whole = size / unit * unit;
    if (whole != 0 && (all.empty() || all.back() != whole)) all.push_back(whole);
    const std::uint64_t next = options.step_bytes != 0 ? size + options.step_bytes : size * options.step_factor;
    if (next <= size || next / 2 > max_bytes) break;  // also where 64 bits do not suffice
    size = next;
  }
  return all;
}

std::string must_agree(const Options& options) {
  constexpr std::array kBackends{"auto", "shm", "tcp"};
  return concat("--minbytes=", options.min_bytes, " --stepfactor=", options.step_factor,
                " --stepbytes=", options.step_bytes, " --iters=", options.iterations,
                " --warmup_iters=", options.warmup, " --check=", options.check ? 1 : 0,
                " --collective=", names_of(options.collectives), " --root=", options.root,
                " --datatype=", names_of(options.types), " --op=", names_of(options.ops),
                " --backend=", kBackends[static_cast<std::size_t>(options.backend)]);
}

Parsed parse_options(int argc, char** argv) {
  Parsed parsed;
  Texts texts;
  CLI::App app("Reduces arrays over all ranks, checks every element and prints bandwidths.", "ddrun-allreduce");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_version_flag("--version", "ddrun-allreduce " DDRUN_ALLREDUCE_VERSION);
  app.footer(kExamples);
  const auto text = [&app](const std::string& names, std::string& to, const std::string& type, const std::string& help,
                           const std::string& group) {
    app.add_option(names, to, help)->type_name(type)->group(group);
  };
  const std::string sizes_group = "Sizes (bytes per rank; K, M and G are powers of 1024)";
  text("-b,--minbytes", texts.min, "SIZE", "first size (8)", sizes_group);
  text("-e,--maxbytes", texts.max, "SIZE", "last size (128M, less if memory is short)", sizes_group);
  text("-f,--stepfactor", texts.factor, "N", "each size is N times the one before (2)", sizes_group);
  text("-i,--stepbytes", texts.step, "SIZE", "each size is this much more instead", sizes_group);
  const std::string runs = "Measuring";
  text("-n,--iters", texts.iterations, "N", "timed calls per size (20, within limits of time)", runs);
  text("-w,--warmup_iters,--warmup-iters", texts.warmup, "N", "untimed calls before them (2)", runs);
  text("-c,--check", texts.check, "0|1", "check every element on every rank (1)", runs);
  text("-J,--output_file,--output-file,--json", parsed.options.json_file, "FILE", "also write the results there", runs);
  const std::string how = "How";
  text("--backend", texts.backend, "NAME", "auto, shm or tcp (auto: shm on one machine)", how);
  text("-T,--timeout", texts.timeout, "TIME", "for the start, and for each operation (60s)", how);
  text("--collective", texts.collective, "NAME", "broadcast and so on, or all (all_reduce)", how);
  text("-r,--root", texts.root, "RANK", "of broadcast, reduce, gather and scatter (0)", how);
  text("-d,--datatype", texts.datatype, "TYPE", "half, double, int32 and so on, or all (float)", how);
  text("-o,--op", texts.op, "OP", "sum, prod, max, min, avg or all (sum)", how);
  text("-g,--ngpus", texts.gpus, "N", "1, as every rank is a process of its own", how);
  const std::string tests = "To test a launcher";
  text("--corrupt-rank", texts.corrupt_rank, "RANK", "this rank contributes a wrong element", tests);
  text("--kill-rank", texts.kill_rank, "RANK", "this rank kills itself with SIGKILL", tests);
  text("--kill-at", texts.kill_at, "SIZE", "before the first size as large as this (0)", tests);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const std::string help = app.help();
    std::fwrite(help.data(), 1, help.size(), stdout);
    parsed.exit_code = 0;
    return parsed;
  } catch (const CLI::CallForVersion& version) {
    std::printf("%s\n", version.what());
    parsed.exit_code = 0;
    return parsed;
  } catch (const CLI::ParseError& error) {
    say_error(concat(error.what(), " (try --help)"));
    parsed.exit_code = 2;
    return parsed;
  }
  auto judged = judge(texts, parsed.options);
  if (judged) {
    parsed.options = std::move(*judged);
  } else {
    say_error(concat(judged.error().message, " (try --help)"));
    parsed.exit_code = 2;
  }
  return parsed;
}

}  // namespace ddrun::allreduce
