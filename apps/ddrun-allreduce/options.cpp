#include "options.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>

#include "ddrun/base/text.hpp"
#include "say.hpp"

namespace ddrun::allreduce {

namespace {

constexpr std::uint64_t kElement = sizeof(float);

constexpr const char* kExamples =
    "\nRanks are started by a launcher:\n"
    "  ddrun --nproc-per-node=4 ddrun-allreduce\n"
    "  ddrun --nproc-per-node=8 ddrun-allreduce -b 1K -e 64M -f 4 -J result.json\n"
    "  ddrun --nproc-per-node=2 ddrun-allreduce --backend=tcp -e 1M\n"
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

Result<Options> judge(const Texts& texts, Options options) {
  Result<void> good;
  const auto also = [&good](auto&& next) {
    if (good) good = next();
  };
  also([&] { return read_size("--minbytes", texts.min, kElement, options.min_bytes); });
  if (!texts.max.empty()) {
    also([&] { return read_size("--maxbytes", texts.max, kElement, options.max_bytes.emplace()); });
  }
  also([&] { return read_size("--stepfactor", texts.factor, 2, options.step_factor); });
  if (!texts.step.empty()) {
    also([&] { return read_size("--stepbytes", texts.step, kElement, options.step_bytes); });
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
  if (!texts.corrupt_rank.empty()) {
    also([&] { return read_number("--corrupt-rank", texts.corrupt_rank, 0, kMaxRank, options.corrupt_rank); });
  }
  if (!texts.kill_rank.empty()) {
    also([&] { return read_number("--kill-rank", texts.kill_rank, 0, kMaxRank, options.kill_rank); });
  }
  also([&] { return read_size("--kill-at", texts.kill_at, 0, options.kill_at); });
  int only = 0;
  also([&] { return read_word<int>("--datatype", texts.datatype, {{"float", 0}}, only); });
  also([&] { return read_word<int>("--op", texts.op, {{"sum", 0}}, only); });
  also([&] { return read_word<int>("--ngpus", texts.gpus, {{"1", 0}}, only); });
  if (good && options.max_bytes && *options.max_bytes < options.min_bytes) {
    good = wrong("--maxbytes", concat(*options.max_bytes, " is less than --minbytes, ", options.min_bytes));
  }
  if (!good) return tl::unexpected(good.error());
  return options;
}

}  // namespace

std::vector<std::uint64_t> sizes(const Options& options, std::uint64_t max_bytes) {
  std::vector<std::uint64_t> all;
  for (std::uint64_t size = options.min_bytes; size <= max_bytes;) {
    const std::uint64_t whole = size / kElement * kElement;
    if (all.empty() || all.back() != whole) all.push_back(whole);
    const std::uint64_t next = options.step_bytes != 0 ? size + options.step_bytes : size * options.step_factor;
    if (next <= size || next / 2 > max_bytes) break;  // also where 64 bits do not suffice
    size = next;
  }
  return all;
}

Parsed parse_options(int argc, char** argv) {
  Parsed parsed;
  Texts texts;
  CLI::App app("Sums float arrays over all ranks, checks every element and prints bandwidths.", "ddrun-allreduce");
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
  text("-n,--iters", texts.iterations, "N", "timed sums per size (20, within limits of time)", runs);
  text("-w,--warmup_iters,--warmup-iters", texts.warmup, "N", "untimed sums before them (2)", runs);
  text("-c,--check", texts.check, "0|1", "check every element on every rank (1)", runs);
  text("-J,--json", parsed.options.json_file, "FILE", "also write the results there", runs);
  const std::string how = "How";
  text("--backend", texts.backend, "NAME", "auto, shm or tcp (auto: shm on one machine)", how);
  text("--timeout", texts.timeout, "TIME", "for the start, and for each sum (60s)", how);
  text("-d,--datatype", texts.datatype, "TYPE", "float, the only one", how);
  text("-o,--op", texts.op, "OP", "sum, the only one", how);
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
