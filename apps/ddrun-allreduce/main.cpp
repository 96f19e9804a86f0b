// ddrun-allreduce: parse, meet, run the sizes, report.

#include <cstdlib>
#include <optional>

#include "benchmark.hpp"
#include "cases.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/store/store.hpp"
#include "json_report.hpp"
#include "memory_budget.hpp"
#include "options.hpp"
#include "place.hpp"
#include "say.hpp"
#include "status.hpp"
#include "table.hpp"

using namespace ddrun;
using namespace ddrun::allreduce;

namespace {

/// Rank 0 decides, as each rank finds another amount of free memory.
Result<std::uint64_t> agree_on_max_bytes(const Options& options, const Place& place, const collectives::Group& group,
                                         Deadline deadline) {
  if (place.rank != 0) {
    const auto told = group.store->get(group.prefix + "max_bytes", deadline);
    if (!told) return tl::unexpected(told.error());
    const auto value = parse_size(*told);
    if (!value) return fail(Errc::invalid_argument, concat("rank 0: ", *told));
    return *value;
  }
  const auto decided = max_bytes(options, place.local_size);
  if (place.size > 1) {
    const std::string words = decided ? std::to_string(*decided) : decided.error().message;
    if (auto told = group.store->set(group.prefix + "max_bytes", words, deadline); !told) {
      return tl::unexpected(told.error());
    }
  }
  return decided;
}

template <class Value>
std::string name_or_all(const std::vector<Value>& values) {
  return values.size() == 1 ? std::string(name_of(values[0])) : "all";
}

std::string note_of(const Place& place, const collectives::Connected& connected) {
  if (place.alone) return "no launcher: RANK and WORLD_SIZE are not set, so this is a group of one";
  return connected.why;
}

/// Everything after the options; failures are already worded.
Result<int> run(const Options& options, const Place& place) {
  UniqueFd json;
  if (place.rank == 0 && !options.report.json_file.empty()) {
    auto opened = open_report(options.report.json_file);
    if (!opened) return tl::unexpected(opened.error());
    json = std::move(*opened);
  }
  const Deadline start_by = Clock::now() + options.timeout;
  auto meeting = meet(place, start_by);
  if (!meeting) return tl::unexpected(meeting.error());
  const auto last = agree_on_max_bytes(options, place, meeting->group, start_by);
  if (!last) return tl::unexpected(last.error());
  const auto connected = connect(meeting->group, {options.backend, *last, must_agree(options)}, start_by);
  if (!connected) return tl::unexpected(connected.error());
  if (auto suited = suits(options, connected->communicator->name()); !suited) return tl::unexpected(suited.error());

  Setting setting;
  setting.size = place.size;
  setting.backend = connected->communicator->name();
  setting.note = note_of(place, *connected);
  setting.members = connected->members;
  setting.min_bytes = options.min_bytes;
  setting.max_bytes = *last;
  setting.collective = name_or_all(options.collectives);
  setting.type = name_or_all(options.types);
  setting.op = name_or_all(options.ops);
  const bool talks = place.rank == 0;
  if (talks) print(header(setting, options));

  std::vector<Row> rows;
  std::uint64_t wrong_here = 0;
  const auto run_one = [&](const Case& what) -> std::optional<Error> {
    Benchmark benchmark(*connected, options, what);
    for (const std::uint64_t bytes : sizes(options, *last, what, place.size)) {
      auto row = benchmark.run(bytes);
      if (!row) return row.error();
      if (talks) print(line(*row));
      rows.push_back(std::move(*row));
    }
    wrong_here += benchmark.wrong_here();
    return std::nullopt;
  };
  std::optional<Error> ended;
  for (const Case& what : cases(options, place.size)) {
    if (!ended) ended = run_one(what);
  }
  const Summary summary = summarize(std::move(rows), ended ? ended->message : std::string());
  if (talks) {
    print(footer(summary));
    if (json) {
      if (auto written = write_report(json.get(), options.report.json_file, setting, summary); !written) {
        return tl::unexpected(written.error());
      }
    }
  }
  if (ended) return tl::unexpected(*ended);
  // A rank believes its own eyes too: the totals have travelled over what is being tested.
  return summary.wrong == 0 && wrong_here == 0 ? kRight : kFailed;
}

}  // namespace

int main(int argc, char** argv) {
  const Parsed parsed = parse_options(argc, argv);
  if (parsed.exit_code) return *parsed.exit_code;
  if (auto there = collectives::probe(parsed.options.backend); !there) {
    say_error(there.error().message);
    return kCannotRunHere;
  }
  const auto place = place_from([](const char* name) { return std::getenv(name); });
  if (!place) {
    say_error(place.error().message);
    return kUsage;
  }
  const auto result = run(parsed.options, *place);
  if (result) return *result;
  say_error(place->alone ? result.error().message : concat("rank ", place->rank, ": ", result.error().message));
  return result.error().code == Errc::invalid_argument ? kUsage : kFailed;
}
