#include "report/curves.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "ddrun/base/text.hpp"

namespace ddrun::allreduce {

namespace {

using collectives::Collective;

/// One case of one run, with its rows.
struct Series {
  const Report* report = nullptr;
  std::vector<const Row*> rows;
  /// What it is, in words; those that are the same for all go to the title, the others to the labels.
  std::array<std::string, 5> traits;
};

std::string machines_of(const Setting& setting) {
  std::vector<std::string> hosts;
  for (const auto& member : setting.members) {
    if (std::find(hosts.begin(), hosts.end(), member.host) == hosts.end()) hosts.push_back(member.host);
  }
  if (hosts.empty()) return "";
  return concat(hosts.size() > 1 ? "machines " : "machine ", hosts[0],
                hosts.size() > 1 ? concat(" and ", hosts.size() - 1, " more") : std::string());
}

std::vector<Series> series_of(const Report& report, bool alone) {
  std::vector<Series> all;
  for (const Row& row : report.summary.rows) {
    if (row.bytes == 0) continue;
    auto known = std::find_if(all.begin(), all.end(),
                              [&](const Series& one) { return same_case(one.rows.front()->what, row.what); });
    if (known == all.end()) {
      const std::string file = alone ? std::string() : report.name.substr(report.name.rfind('/') + 1);
      const int ranks = report.setting.size;
      all.push_back({&report,
                     {},
                     {in_words(row.what), concat(ranks, ranks == 1 ? " rank" : " ranks"), machines_of(report.setting),
                      concat("backend ", report.setting.backend), file}});
      known = std::prev(all.end());
    }
    known->rows.push_back(&row);
  }
  for (Series& one : all) {
    std::sort(one.rows.begin(), one.rows.end(), [](const Row* a, const Row* b) { return a->bytes < b->bytes; });
  }
  return all;
}

std::string words_of(const Series& one, const std::vector<std::size_t>& traits) {
  std::vector<std::string> words;
  for (const std::size_t trait : traits) {
    if (!one.traits[trait].empty()) words.push_back(one.traits[trait]);
  }
  return join(words, ", ");
}

}  // namespace

Result<Curves> curves_of(const std::vector<Report>& reports) {
  std::vector<Series> all;
  for (const Report& report : reports) {
    for (Series& one : series_of(report, reports.size() == 1)) all.push_back(std::move(one));
  }
  if (all.empty()) return fail(Errc::invalid_argument, "--plot: there is nothing to draw; a barrier has no sizes");
  if (all.size() > kMostColors) {
    return fail(Errc::invalid_argument,
                concat("--plot: ", all.size(), " curves cannot be told apart, at most ", kMostColors,
                       " can: choose fewer of --collective, --datatype, --op or files"));
  }
  Curves curves;
  curves.bus = std::all_of(reports.begin(), reports.end(), [](const Report& one) { return one.setting.size > 1; });
  std::vector<std::size_t> common;
  std::vector<std::size_t> different;
  for (std::size_t trait = 0; trait < all.front().traits.size(); ++trait) {
    const bool same = std::all_of(all.begin(), all.end(),
                                  [&](const Series& one) { return one.traits[trait] == all.front().traits[trait]; });
    (same ? common : different).push_back(trait);
  }
  curves.title = {"ddrun-allreduce", words_of(all.front(), common)};
  for (const Series& one : all) {
    for (const Placement& placement : kPlacements) {
      Curve curve;
      curve.color = curves.colors.size();
      curve.in_place = placement.of == &Row::in_place;
      for (const Row* row : one.rows) {
        const Measurement& taken = row->*placement.of;
        if (!measured(taken)) continue;
        curve.points.push_back({row->bytes, curves.bus ? taken.busbw : taken.algbw, taken.microseconds});
      }
      if (!curve.points.empty()) curves.curves.push_back(std::move(curve));
    }
    curves.colors.push_back(words_of(one, different));
  }
  return curves;
}

}  // namespace ddrun::allreduce
