#include "json_report.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "ddrun/base/text.hpp"

namespace ddrun::allreduce {

namespace {

using nlohmann::ordered_json;

ordered_json to_json(const Measurement& one) {
  return {{"time_us", one.microseconds},
          {"algbw_gbps", one.algbw},
          {"busbw_gbps", one.busbw},
          {"wrong", one.wrong ? ordered_json(*one.wrong) : ordered_json(nullptr)},
          {"iterations", one.iterations},
          {"median_us", one.median},
          {"p99_us", one.p99},
          {"min_us", one.minimum},
          {"samples", one.samples}};
}

}  // namespace

Result<UniqueFd> open_report(const std::string& path) {
  UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!file) return fail_errno(Errc::invalid_argument, concat("--output_file: cannot write ", path), errno);
  return file;
}

Result<void> write_report(int file, const std::string& path, const Setting& setting, const Summary& summary) {
  ordered_json report{{"program", "ddrun-allreduce"},
                      {"version", DDRUN_ALLREDUCE_VERSION},
                      {"collective", setting.collective},
                      {"type", setting.type},
                      {"redop", setting.op},
                      {"backend", setting.backend},
                      {"world_size", setting.size}};
  report["ranks"] = ordered_json::array();
  for (std::size_t rank = 0; rank < setting.members.size(); ++rank) {
    report["ranks"].push_back(
        {{"rank", rank}, {"host", setting.members[rank].host}, {"pid", setting.members[rank].pid}});
  }
  report["results"] = ordered_json::array();
  for (const Row& row : summary.rows) {
    report["results"].push_back({{"size", row.bytes},
                                 {"count", row.count},
                                 {"collective", name_of(row.what.collective)},
                                 {"type", name_of(row.what.type)},
                                 {"redop", reduces(row.what.collective) ? name_of(row.what.op) : "none"},
                                 {"root", has_root(row.what.collective) ? row.what.root : -1},
                                 {"out_of_place", to_json(row.out_of_place)},
                                 {"in_place", to_json(row.in_place)}});
  }
  report["out_of_bounds"] = summary.wrong;
  report["avg_busbw_gbps"] = summary.mean_busbw;
  report["ok"] = summary.wrong == 0 && summary.error.empty();
  if (!summary.error.empty()) report["error"] = summary.error;

  // A host name may be any bytes; the report must be UTF-8.
  const std::string text = report.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  if (!write_all(file, text.data(), text.size()) ||
      // A device or pipe cannot be cut, and need not be.
      (ftruncate(file, static_cast<off_t>(text.size())) != 0 && errno != EINVAL)) {
    return fail_errno(Errc::unavailable, concat("cannot write ", path), errno);
  }
  return {};
}

}  // namespace ddrun::allreduce
