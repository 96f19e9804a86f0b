#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::cli {

// Conversion of option values from and to text. All failures are `invalid_argument` with the accepted forms in the
// message; the caller prepends the option's name.

[[nodiscard]] inline tl::unexpected<Error> bad(std::string message) {
  return fail(Errc::invalid_argument, std::move(message));
}

[[nodiscard]] Result<bool> parse_bool(std::string_view text);
// Whole numbers are parsed as by Python's int(): " 2", "+2" and "1_0" are accepted.
[[nodiscard]] Result<int> parse_int(std::string_view text, int low, int high);
[[nodiscard]] Result<double> parse_positive_number(std::string_view text);
[[nodiscard]] Result<std::uint64_t> parse_seed(std::string_view text);
[[nodiscard]] Result<std::string> parse_non_empty(std::string_view text);
/// One of the blank-separated `choices`.
[[nodiscard]] Result<std::string> parse_choice(std::string_view text, std::string_view choices);
[[nodiscard]] Result<NprocSpec> parse_nproc(std::string_view text);
/// "N" or "MIN:MAX", 0 < MIN <= MAX.
[[nodiscard]] Result<std::pair<int, int>> parse_nnodes(std::string_view text);
/// "3", "0:1,12:3" or "0-3:1".
[[nodiscard]] Result<StreamSelection> parse_streams(std::string_view text);
/// "0,2,8-15", each in [0, highest]; `what` names an element in messages ("a local rank").
[[nodiscard]] Result<std::set<int>> parse_number_set(std::string_view text, int highest, std::string_view what);
/// A comma-separated list; ",," is a literal comma.
[[nodiscard]] Result<std::vector<std::string>> parse_filters(std::string_view text);
/// "k=v,k=v"; surrounding blanks are removed.
[[nodiscard]] Result<std::map<std::string, std::string>> parse_pairs(std::string_view text);
/// "SIGTERM,USR1"; empty for none. Fails for signals that a launcher cannot handle.
[[nodiscard]] Result<std::set<int>> parse_signals(std::string_view text);
[[nodiscard]] Result<StdinSpec> parse_stdin(std::string_view text);
/// "host", "host:port", "[::1]:port".
[[nodiscard]] Result<std::string> parse_endpoint(std::string_view text);
/// A host name or IP address. Text made of digits and dots, or with a colon, must be a valid address.
[[nodiscard]] Result<std::string> parse_host(std::string_view text);
[[nodiscard]] Result<std::pair<std::string, std::string>> parse_assignment(std::string_view text);
/// parse_duration(), up to ten years.
[[nodiscard]] Result<Milliseconds> parse_time(std::string_view text);
/// Greater than zero.
[[nodiscard]] Result<Milliseconds> parse_positive_time(std::string_view text);

[[nodiscard]] std::string number_text(double number);
[[nodiscard]] std::string number_set_text(const std::set<int>& numbers);
[[nodiscard]] std::string streams_text(const StreamSelection& streams);
[[nodiscard]] std::string filters_text(const std::vector<std::string>& filters);
[[nodiscard]] std::string pairs_text(const std::map<std::string, std::string>& pairs);
[[nodiscard]] std::string signals_text(const std::set<int>& signals);

}  // namespace ddrun::cli
