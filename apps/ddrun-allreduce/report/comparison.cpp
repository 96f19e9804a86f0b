#include "report/comparison.hpp"

#include <algorithm>
#include <charconv>

#include "ddrun/base/text.hpp"
#include "report/pairs_judgement.hpp"
#include "report/units.hpp"

namespace ddrun::allreduce {

namespace {

/// Bytes from which on people think of bandwidth rather than of time.
constexpr std::uint64_t kLarge = 64 << 10;

bool same_row(const Row& one, const Row& other) { return one.bytes == other.bytes && same_case(one.what, other.what); }

const Row* find(const Row& wanted, const std::vector<Row>& rows) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return same_row(row, wanted); });
  return found == rows.end() ? nullptr : &*found;
}

/// The part of the path that people use to tell files apart.
std::string file_of(const Report& old) { return old.name.substr(old.name.rfind('/') + 1); }

Shortfall shortfall(const Row& row, const Placement& placement, const Measurement& before, double tolerance,
                    const std::string& old_name) {
  const Measurement& now = row.*placement.of;
  const double ratio = before.microseconds / now.microseconds;
  const std::string values =
      row.bytes >= kLarge && now.busbw > 0 && before.busbw > 0
          ? concat("busbw ", number_in_words(now.busbw), " GB/s, ", number_in_words(before.busbw), " in ", old_name)
          : concat("time ", time_in_words(now.microseconds), ", ", time_in_words(before.microseconds), " in ",
                   old_name);
  return {concat(in_words(row), ' ', placement.words, ": ", values, ": ", percent_in_words(1 - ratio), " slower, ",
                 percent_in_words(tolerance), " allowed"),
          ratio};
}

}  // namespace

Result<double> parse_tolerance(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  const std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (error != std::errc() || trim(rest) != "%" || value < 0 || value >= 100) {
    return fail(Errc::invalid_argument, concat("must be 0% to less than 100%, for example 10%, not '", text, "'"));
  }
  return value / 100;
}

Result<void> check_comparable(const Report& old, const Report& planned) {
  const int ranks = planned.setting.size;
  const std::vector<Row>& rows = planned.summary.rows;
  const auto refused = [&](const auto&... why) {
    return fail(Errc::invalid_argument, concat("--compare: ", old.name, ' ', why...));
  };
  if (!old.summary.error.empty()) return refused("is of a run that ended early: ", old.summary.error);
  if (old.summary.wrong != 0) return refused("is of a run with ", old.summary.wrong, " wrong elements");
  if (old.setting.size != ranks) return refused("is of ", old.setting.size, " ranks, this run has ", ranks);
  if (!old.setting.buffers.empty() && !planned.setting.buffers.empty() &&
      old.setting.buffers != planned.setting.buffers) {
    return refused("is of ", old.setting.buffers, " buffers, this run has ", planned.setting.buffers,
                   " ones (--buffers)");
  }
  if (planned.summary.pairs) {
    if (!old.summary.pairs) return refused("has no pairs, which are all that this run measures");
    if (old.summary.pairs->bytes == planned.summary.pairs->bytes) return {};
    return refused("is of pairs with ", old.summary.pairs->bytes, " bytes, this run has ", planned.summary.pairs->bytes,
                   " (--maxbytes)");
  }
  const bool common =
      std::any_of(rows.begin(), rows.end(), [&](const Row& row) { return find(row, old.summary.rows) != nullptr; });
  if (!common) {
    return refused("has nothing that this run measures: collective, type, operation, root and size must be the same");
  }
  return {};
}

Comparison compare(const Report& old, const Report& now, double tolerance) {
  Comparison result;
  const std::string name = file_of(old);
  if (old.summary.pairs && now.summary.pairs) {
    compare(*old.summary.pairs, *now.summary.pairs, tolerance, name, result);
  }
  std::size_t missing = 0;
  for (const Row& row : now.summary.rows) {
    const Row* const before = find(row, old.summary.rows);
    for (const Placement& placement : kPlacements) {
      const Measurement& one = row.*placement.of;
      if (!measured(one)) continue;
      if (before == nullptr || !measured(before->*placement.of)) {
        ++missing;
        continue;
      }
      ++result.compared;
      const Measurement& other = before->*placement.of;
      if (one.microseconds * (1 - tolerance) > other.microseconds) {
        ++result.slower;
        result.shortfalls.push_back(shortfall(row, placement, other, tolerance, name));
      }
    }
  }
  std::size_t left = 0;
  for (const Row& row : old.summary.rows) {
    const Row* const after = find(row, now.summary.rows);
    for (const Placement& placement : kPlacements) {
      if (measured(row.*placement.of) && (after == nullptr || !measured(after->*placement.of))) ++left;
    }
  }
  if (missing != 0) result.notes.push_back(concat(missing, " measurements of this run are not in ", name));
  if (left != 0) result.notes.push_back(concat(left, " measurements of ", name, " are not in this run"));
  if (old.setting.backend != now.setting.backend) {
    result.notes.push_back(concat("back end ", now.setting.backend, ", ", old.setting.backend, " in ", name));
  }
  return result;
}

}  // namespace ddrun::allreduce
