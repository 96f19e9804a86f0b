#include "benchmark.hpp"

#include <algorithm>
#include <bit>
#include <fstream>
#include <limits>

#include "ddrun/base/text.hpp"
#include "ddrun/topology/cgroup.hpp"

namespace ddrun::bench {

namespace {

constexpr std::uint64_t default_max = std::uint64_t{128} << 20;
constexpr std::uint64_t default_total = std::uint64_t{2} << 30;

template <class Value>
std::string names_of(const std::vector<Value>& values) {
  std::vector<std::string> names;
  for (const Value value : values) names.emplace_back(name_of(value));
  return join(names, ",");
}

}  // namespace

std::vector<Case> cases(const Options& options, int ranks) {
  if (options.pairs) return {};
  const bool every = options.root == Options::every_root;
  std::vector<Case> all;
  for (const auto collective : options.collectives) {
    const int roots = every && has_root(collective) ? ranks : 1;
    for (const auto type : options.types) {
      for (const auto op : options.ops) {
        for (int i = 0; i < roots; ++i) all.push_back({collective, type, op, every ? i : options.root});
        if (!reduces(collective)) break;
      }
      if (collective == collectives::Collective::barrier) break;
    }
  }
  return all;
}

std::vector<std::uint64_t> sizes(const Options& options, std::uint64_t max_bytes, const Case& spec, int ranks) {
  if (spec.collective == collectives::Collective::barrier) return {0};
  const collectives::Blocks blocks = collectives::blocks_of(spec.collective, ranks);
  const std::uint64_t unit = collectives::size_of(spec.type) * std::max(blocks.in, blocks.out);
  std::vector<std::uint64_t> all;
  for (std::uint64_t size = options.min_bytes; size <= max_bytes;) {
    const std::uint64_t whole = size / unit * unit;
    if (whole != 0 && (all.empty() || all.back() != whole)) all.push_back(whole);
    const std::uint64_t next = options.step_bytes != 0 ? size + options.step_bytes : size * options.step_factor;
    if (next <= size || next / 2 > max_bytes) break;  // also on overflow
    size = next;
  }
  return all;
}

std::vector<Row> planned_rows(const Options& options, std::uint64_t max_bytes, int ranks) {
  std::vector<Row> rows;
  if (options.pairs) return rows;
  for (const Case& spec : cases(options, ranks)) {
    const collectives::Blocks blocks = collectives::blocks_of(spec.collective, ranks);
    for (const std::uint64_t bytes : sizes(options, max_bytes, spec, ranks)) {
      Row row;
      row.spec = spec;
      row.bytes = bytes;
      row.count = bytes / collectives::size_of(spec.type) / std::max(blocks.in, blocks.out);
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

std::string must_agree(const Options& options) {
  return concat("--minbytes=", options.min_bytes,
                " --maxbytes=", options.max_bytes ? std::to_string(*options.max_bytes) : "unset",
                " --stepfactor=", options.step_factor, " --stepbytes=", options.step_bytes,
                " --iters=", options.iterations, " --warmup_iters=", options.warmup, " --check=", options.checks,
                " --collective=", names_of(options.collectives), " --root=", options.root,
                " --datatype=", names_of(options.types), " --op=", names_of(options.ops),
                " --backend=", name_of(options.backend), " --buffers=", buffers_of(options),
                " --pairs=", options.pairs ? 1 : 0, " --streams=", options.streams,
                " --blocking=", options.blocking ? 1 : 0, " --cudagraph=", options.graph_launches);
}

namespace {

/// Free memory of the machine and of the cgroup, in bytes.
std::uint64_t free_memory() {
  std::uint64_t bytes = std::numeric_limits<std::uint64_t>::max();
  std::ifstream info("/proc/meminfo");
  std::string key;
  std::uint64_t kilobytes = 0;
  std::string unit;
  while (info >> key >> kilobytes && std::getline(info, unit)) {
    if (key == "MemAvailable:") bytes = kilobytes << 10U;
  }
  if (const auto limit = topology::memory_limit(); limit && limit->bytes > 0) {
    bytes = std::min(bytes, static_cast<std::uint64_t>(limit->bytes));
  }
  return bytes;
}

}  // namespace

Result<std::uint64_t> max_bytes(const Options& options, int ranks) {
  const std::uint64_t buffers = 2 * static_cast<std::uint64_t>(ranks);
  const std::uint64_t free = free_memory();
  if (options.max_bytes) {
    // The buffers are in GPU memory, which the back end checks.
    if (collectives::works_on_gpus(options.backend)) return *options.max_bytes;
    if (*options.max_bytes > free / buffers) {
      return fail(Errc::invalid_argument,
                  concat("--maxbytes: ", ranks, " ranks with two buffers of ", *options.max_bytes >> 20U,
                         " MiB each do not fit into the ", free >> 20U, " MiB of memory that are free"));
    }
    return *options.max_bytes;
  }
  const std::uint64_t fits = std::min(default_total, free / 2) / buffers;
  return std::max(options.min_bytes, std::min(default_max, std::bit_floor(fits)));
}

}  // namespace ddrun::bench
