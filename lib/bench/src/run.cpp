#include "ddrun/bench/run.hpp"

#include <sys/utsname.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "benchmark.hpp"
#include "ddrun/bench/options.hpp"
#include "ddrun/bench/rank_env.hpp"
#include "ddrun/collectives/checker.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/reduction.hpp"
#include "ddrun/store/tcp_client.hpp"
#include "ddrun/topology/cpus.hpp"
#include "pairs.hpp"
#include "reports.hpp"
#include "results.hpp"

namespace ddrun::bench {

namespace {

/// The value after "key:" in a file of such lines, of the first match; empty if none.
std::string value_in(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (colon != std::string::npos && trim(std::string_view(line).substr(0, colon)) == key) {
      return std::string(trim(std::string_view(line).substr(colon + 1)));
    }
  }
  return {};
}

std::string machine() {
  utsname names{};
  uname(&names);
  std::string model = value_in("/proc/cpuinfo", "model name");
  if (model.empty()) model = names.machine;
  std::string processors;
  if (const auto allowed = topology::allowed_cpus()) {
    const topology::CpuLayout layout = topology::read_cpu_layout(*allowed);
    processors = concat(", processors ", allowed->to_string(), " (", layout.cores.size(), " cores, ",
                        layout.nodes.size(), " NUMA nodes)");
  }
  return concat(names.nodename, ", ", model, processors, ", ", value_in("/proc/meminfo", "MemTotal"), " memory, ",
                names.sysname, ' ', names.release);
}

std::string library(std::string_view backend) {
  const auto known = collectives::backend_named(backend);
  const auto found = known ? collectives::probe(*known) : collectives::probe(collectives::Backend::automatic);
  if (backend != "shm" && backend != "tcp" && found) return *found;
  return concat("ddrun " DDRUN_ALLREDUCE_VERSION ", loops for ", name_of(collectives::usable_paths().back()));
}

std::string clock() {
  timespec step{};
  clock_getres(CLOCK_MONOTONIC, &step);
  return concat("steady, in steps of ", static_cast<long long>(step.tv_sec) * 1'000'000'000 + step.tv_nsec, " ns");
}

std::string date() {
  const time_t now = time(nullptr);
  tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

/// "ranks 0-3 on a processors 0-7, ranks 4-7 on b processors 0-7", in the order of the first rank of each.
std::string topology_of(const std::vector<collectives::Member>& members) {
  std::vector<std::pair<std::string, std::vector<int>>> hosts;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    const std::string host = concat(members[rank].host, " processors ", members[rank].processors);
    auto found = std::find_if(hosts.begin(), hosts.end(), [&](const auto& one) { return one.first == host; });
    if (found == hosts.end()) found = hosts.insert(hosts.end(), {host, {}});
    found->second.push_back(static_cast<int>(rank));
  }
  std::vector<std::string> text;
  for (const auto& [host, ranks] : hosts) {
    text.push_back(concat(name_ranks(ranks), " on ", host));
  }
  return join(text, ", ");
}

/// Machine (host, processor, memory, kernel), library of the back end, ranks by host, clock, and date in UTC.
std::vector<Fact> facts_of(const collectives::Connected& connected) {
  return {{"machine", machine()},
          {"library", library(connected.communicator->name())},
          {"topology", topology_of(connected.members)},
          {"clock", clock()},
          {"date", date()}};
}

/// The most severe status of all ranks (exit_ok < exit_too_slow < exit_failed), so that all exit alike and launchers
/// report the same whichever exits first. Blocks until all ranks have called. Never less severe than `status`: the
/// result was reduced by the transport under test.
Result<int> agree_on_status(collectives::Communicator& control, int status, Milliseconds timeout) {
  static constexpr std::array by_gravity{exit_ok, exit_too_slow, exit_failed};
  const auto own =
      static_cast<std::uint64_t>(std::find(by_gravity.begin(), by_gravity.end(), status) - by_gravity.begin());
  std::uint64_t gravest = own;
  TRY(reduce_all(control, std::span(&gravest, 1), collectives::DataType::uint64, collectives::ReduceOp::max,
                 Clock::now() + timeout));
  return by_gravity[std::clamp<std::uint64_t>(gravest, own, by_gravity.size() - 1)];
}

/// The report's content known before the run, for checks.
Report planned(const Options& options, std::uint64_t last, int ranks) {
  Report report;
  report.setting.size = ranks;
  report.summary.rows = planned_rows(options, last, ranks);
  if (options.pairs) report.summary.pairs.emplace();
  return report;
}

/// Rank 0 decides for all, as ranks may see different amounts of free memory and only rank 0 checks the thresholds. Its
/// error ends all ranks.
Result<std::uint64_t> agree_on_max_bytes(const Options& options, const RankEnv& env, const collectives::Group& group,
                                         const Reports& reports, Deadline deadline) {
  if (env.rank != 0) {
    const auto stored = TRY(group.store->get(group.prefix + "max_bytes", deadline));
    const auto value = parse_size(stored);
    if (!value) return fail(Errc::invalid_argument, concat("rank 0: ", stored));
    return *value;
  }
  auto decided = max_bytes(options, env.local_size);
  if (decided) {
    const auto checked = reports.check(planned(options, *decided, env.size));
    if (!checked) decided = tl::unexpected(checked.error());
  }
  if (env.size > 1) {
    const std::string text = decided ? std::to_string(*decided) : decided.error().message;
    TRY(group.store->set(group.prefix + "max_bytes", text, deadline));
  }
  return decided;
}

template <class Value, std::size_t Count>
std::string names_or_all(const std::vector<Value>& values, const std::array<Value, Count>& known) {
  if (values.size() == known.size()) return "all";
  std::vector<std::string> names;
  for (const Value value : values) names.emplace_back(name_of(value));
  return join(names, ",");
}

std::string note_of(const RankEnv& env, const collectives::Connected& connected) {
  if (env.is_singleton) return "no launcher: RANK and WORLD_SIZE are not set, so this is a group of one";
  return connected.why;
}

Setting setting_of(const Options& options, const RankEnv& env, const collectives::Connected& connected,
                   std::uint64_t last) {
  Setting setting;
  setting.size = env.size;
  setting.backend = connected.communicator->name();
  setting.note = note_of(env, connected);
  setting.details = connected.communicator->details();
  setting.buffers = buffers_of(options);
  setting.members = connected.members;
  setting.facts = facts_of(connected);
  setting.min_bytes = options.min_bytes;
  setting.max_bytes = last;
  setting.collective = names_or_all(options.collectives, collectives::all_collectives);
  setting.type = names_or_all(options.types, collectives::all_types);
  setting.op = names_or_all(options.ops, collectives::all_ops);
  return setting;
}

/// Fails if no requested case can run, with the reason of the first.
Result<void> check_runnable(const collectives::Communicator& communicator, const std::vector<Case>& all,
                            const Options& options, std::uint64_t last) {
  if (options.pairs) return {};
  for (const Case& spec : all) {
    if (has_root(spec.collective) && spec.root >= communicator.size()) {
      return fail(Errc::invalid_argument, concat("--root: there is no rank ", spec.root));
    }
  }
  std::string first_reason;
  for (const Case& spec : all) {
    for (const bool in_place : {false, true}) {
      std::string reason = communicator.unsupported_reason(spec.collective, spec.type, spec.op, in_place);
      if (reason.empty() && sizes(options, last, spec, communicator.size()).empty()) {
        reason = concat("--maxbytes: ", last, " bytes have no element of ", name_of(spec.type), " for each of ",
                        communicator.size(), " ranks");
      }
      if (reason.empty()) return {};
      if (first_reason.empty()) first_reason = std::move(reason);
    }
  }
  return fail(Errc::invalid_argument, first_reason);
}

class BenchmarkRun {
 public:
  /// `table`: descriptor of rank 0's table.
  BenchmarkRun(const collectives::Connected& connected, const Buffers& buffers, const Options& options,
               std::uint64_t last, int local_rank, int table)
      : connected_(connected),
        buffers_(buffers),
        options_(options),
        last_(last),
        local_rank_(local_rank),
        table_(table) {}

  [[nodiscard]] Result<void> run(const std::vector<Case>& all) {
    if (options_.pairs) {
      auto measured = TRY(measure_pairs(connected_, buffers_, options_, local_rank_));
      show(table_of(measured));
      pairs_ = std::move(measured);
    }
    std::optional<collectives::Collective> shown;
    for (const Case& spec : all) {
      if (shown != spec.collective) show(heading(spec.collective));
      shown = spec.collective;
      TRY(run(spec));
    }
    return {};
  }

  /// To be called once, at the end; `error`: why the run ended early.
  [[nodiscard]] Summary summary(std::string error) {
    Summary summary = summarize(std::move(rows_), std::move(error));
    if (pairs_) summary.wrong += pairs_->wrong;
    summary.pairs = std::move(pairs_);
    return summary;
  }
  [[nodiscard]] std::uint64_t local_wrong() const { return local_wrong_; }

 private:
  void show(const std::string& lines) const {
    if (connected_.communicator->rank() == 0) print(table_, lines);
  }
  [[nodiscard]] Result<void> run(const Case& spec) {
    Benchmark benchmark(connected_, buffers_, options_, spec);
    const auto all = sizes(options_, last_, spec, connected_.communicator->size());
    for (const std::uint64_t bytes : all) {
      auto row = benchmark.run(bytes);
      local_wrong_ = previous_wrong_ + benchmark.local_wrong();
      if (!row) return tl::unexpected(row.error());
      show(line(*row));
      rows_.push_back(std::move(*row));
    }
    previous_wrong_ = local_wrong_;
    show(remarks(spec, rows_, all.empty()));
    return {};
  }

  const collectives::Connected& connected_;
  const Buffers& buffers_;
  const Options& options_;
  std::uint64_t last_;
  int local_rank_;
  int table_;
  std::optional<Pairs> pairs_;
  std::vector<Row> rows_;
  std::uint64_t previous_wrong_ = 0;
  std::uint64_t local_wrong_ = 0;
};

/// Whether a call failed by a deadline, on this rank or on a peer that has exited since; ranks set a key in the store
/// for that. Blocks for a few seconds at most. The rank that serves the store waits for the others' requests.
bool is_timeout(const Error& error, const Rendezvous& rdzv) {
  const collectives::Group& group = rdzv.group;
  if (group.store == nullptr || (error.code != Errc::timeout && error.code != Errc::connection_lost)) {
    return error.code == Errc::timeout;
  }
  const auto rank_key = [&](int rank) { return concat(group.prefix, "timed_out/", rank); };
  const std::string any = group.prefix + "timed_out";
  const auto soon = [] { return Clock::now() + std::chrono::seconds(1); };
  if (error.code == Errc::connection_lost) {
    const auto known = group.store->check({&any, 1}, soon());
    if (!known || !*known) return false;
  }
  std::vector<std::string> keys;
  for (int rank = 0; rank < group.size; ++rank) keys.push_back(rank_key(rank));
  // Errors are ignored: the store's rank may be the one that hangs.
  static_cast<void>(group.store->set(any, "1", soon()));
  static_cast<void>(group.store->set(rank_key(group.rank), "1", soon()));
  if (rdzv.server) static_cast<void>(group.store->wait(keys, soon()));
  return true;
}

void print_timeout(int rank, const std::string& where, const Error& error) {
  print_error(concat("rank ", rank, ": timeout in ", where, ": ", error.message));
}

/// The communicator with the latest call is the one that blocks.
std::string last_call(const collectives::Connected& connected) {
  const bool control = connected.control->begin_time() > connected.communicator->begin_time();
  return (control ? connected.control : connected.communicator)->last_call();
}

/// Prints rank 0's summary and writes its files. Returns the status.
int finish(Reports& reports, const Report& report, int status) {
  const std::vector<Violation> violations = reports.violations_of(report);
  print(reports.table_stream(), footer(report.summary) + lines_of(violations));
  if (status == exit_ok && !violations.empty()) status = exit_too_slow;
  if (auto written = reports.write(report, violations); !written) {
    print_error(written.error().message);
    status = exit_failed;
  }
  print_worst_violation(violations);
  return status;
}

}  // namespace

Result<int> run(const Options& options, const RankEnv& env) {
  Reports reports;
  if (env.rank == 0) reports = TRY(Reports::open(options.report));
  const Deadline start_by = Clock::now() + options.timeout;
  auto rdzv = TRY(rendezvous(env, start_by));
  const auto last = TRY(agree_on_max_bytes(options, env, rdzv.group, reports, start_by));
  const std::uint64_t room = last + collectives::Checker::guard_bytes;
  collectives::CommunicatorOptions wanted;
  wanted.backend = options.backend;
  wanted.buffer_bytes = Buffers::back_end_bytes(options, room);
  wanted.must_agree = must_agree(options);
  wanted.tcp_streams = options.streams;
  wanted.nccl_blocking = options.blocking;
  wanted.nccl_graph_launches = options.graph_launches;
  const auto connected = connect(rdzv.group, wanted, start_by);
  if (!connected) {
    // An early timeout comes from a peer's call after the start, not from connecting.
    if (connected.error().code != Errc::timeout || Clock::now() >= start_by) return tl::unexpected(connected.error());
    print_timeout(env.rank, "the start", connected.error());
    return exit_timeout;
  }
  collectives::Communicator& communicator = *connected->communicator;
  TRY(check_backend_options(options, communicator.name()));
  Buffers buffers;
  TRY(buffers.provide(communicator, options, room));
  const std::vector<Case> all = cases(options, env.size);
  TRY(check_runnable(communicator, all, options, last));

  const bool is_reporter = env.rank == 0;
  Setting setting;
  if (is_reporter) {
    setting = setting_of(options, env, *connected, last);
    print(reports.table_stream(), header(setting, options));
  }
  BenchmarkRun benchmark_run(*connected, buffers, options, last, env.local_rank, reports.table_stream());
  const auto ended = benchmark_run.run(all);
  const bool timed_out = !ended && is_timeout(ended.error(), rdzv);
  if (timed_out) print_timeout(env.rank, last_call(*connected), ended.error());
  const Report report{std::move(setting), benchmark_run.summary(ended ? std::string() : ended.error().message)};
  // Also use the local count: the global one was reduced by the transport under test.
  int status = report.summary.wrong == 0 && benchmark_run.local_wrong() == 0 ? exit_ok : exit_failed;
  if (is_reporter) status = finish(reports, report, status);
  if (timed_out) return exit_timeout;
  TRY(ended);
  // Rank 0 may be late, as it writes its files first.
  return agree_on_status(*connected->control, status, options.op_timeout + Reports::drawing_time);
}

}  // namespace ddrun::bench
