#include "ddrun/cluster/hostlist.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::cluster {

namespace {

/// A name is its parts in a row; each part is one of several texts.
struct Parts {
  std::vector<std::vector<std::string>> texts;
  std::size_t last_group = 0;  ///< the last one that was in brackets
};

tl::unexpected<Error> bad(std::string_view text, std::string_view why) {
  return fail(Errc::invalid_argument, concat("'", text, "' is no host list: ", why));
}

bool is_separator(char c) { return c == ',' || c == ' ' || c == '\t' || c == '\n'; }

constexpr std::int64_t highest_number = 999'999'999'999;

/// "001-003" or "7" -> its numbers with their zeros.
Result<void> add_range(std::vector<std::string>& to, std::string_view range, std::string_view whole,
                       std::size_t limit) {
  const std::size_t dash = range.find('-');
  const std::string_view low_text = range.substr(0, dash);
  const auto low = parse_integer(low_text, 0, highest_number);
  const auto high = dash == std::string_view::npos ? low : parse_integer(range.substr(dash + 1), 0, highest_number);
  if (!low || !high) return bad(whole, concat("'", range, "' is neither a number nor a range of numbers"));
  if (*high < *low) return bad(whole, concat("the range ", range, " goes down"));
  if (static_cast<std::uint64_t>(*high - *low) >= limit - std::min(limit, to.size())) {
    return bad(whole, concat("it names more than ", limit, " hosts"));
  }
  for (std::int64_t number = *low; number <= *high; ++number) {
    std::string digits = std::to_string(number);
    if (digits.size() < low_text.size()) digits.insert(0, low_text.size() - digits.size(), '0');
    to.push_back(std::move(digits));
  }
  return {};
}

/// One name, from its first character up to the separator behind it.
Result<Parts> parse_name(std::string_view name, std::string_view whole, std::size_t limit) {
  Parts parts;
  while (!name.empty()) {
    const std::size_t open = name.find('[');
    if (open != 0) {
      parts.texts.push_back({std::string(name.substr(0, open))});
      name.remove_prefix(std::min(open, name.size()));
      continue;
    }
    const std::size_t close = name.find(']');
    std::vector<std::string> numbers;
    for (const std::string& range : split(name.substr(1, close - 1), ',')) {
      if (auto added = add_range(numbers, range, whole, limit); !added) return tl::unexpected<Error>(added.error());
    }
    parts.last_group = parts.texts.size();
    parts.texts.push_back(std::move(numbers));
    name.remove_prefix(close + 1);
  }
  return parts;
}

/// All combinations in Slurm's order, which is that of its node ranks: the last group varies first, then the first one,
/// then the second, and so on.
Result<void> add_names(std::vector<std::string>& to, const Parts& from, std::string_view whole, std::size_t limit) {
  const auto& [parts, last_group] = from;
  std::size_t count = 1;
  for (const auto& part : parts) {
    if (part.size() > limit / count) return bad(whole, concat("it names more than ", limit, " hosts"));
    count *= part.size();
  }
  if (count > limit - std::min(limit, to.size())) return bad(whole, concat("it names more than ", limit, " hosts"));
  std::vector<std::size_t> chosen(parts.size());
  for (std::size_t number = 0; number < count; ++number) {
    chosen[last_group] = number % parts[last_group].size();
    std::size_t rest = number / parts[last_group].size();
    std::string name;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i != last_group) {
        chosen[i] = rest % parts[i].size();
        rest /= parts[i].size();
      }
      name += parts[i][chosen[i]];
    }
    to.push_back(std::move(name));
  }
  return {};
}

/// Where the name at the start of `text` ends; nothing if its brackets do not match.
std::optional<std::size_t> name_end(std::string_view text) {
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[') {
      if (inside) return std::nullopt;
      inside = true;
    } else if (text[i] == ']') {
      if (!inside) return std::nullopt;
      inside = false;
    } else if (!inside && is_separator(text[i])) {
      return i;
    }
  }
  if (inside) return std::nullopt;
  return text.size();
}

}  // namespace

Result<std::vector<std::string>> expand_hostlist(std::string_view text, std::size_t limit) {
  std::vector<std::string> hosts;
  std::string_view rest = text;
  while (!rest.empty()) {
    if (is_separator(rest.front())) {
      rest.remove_prefix(1);
      continue;
    }
    const auto end = name_end(rest);
    if (!end) return bad(text, "its brackets do not match");
    const auto parts = parse_name(rest.substr(0, *end), text, limit);
    if (!parts) return tl::unexpected<Error>(parts.error());
    if (auto added = add_names(hosts, *parts, text, limit); !added) return tl::unexpected<Error>(added.error());
    rest.remove_prefix(*end);
  }
  if (hosts.empty()) return bad(text, "it names no host");
  return hosts;
}

}  // namespace ddrun::cluster
