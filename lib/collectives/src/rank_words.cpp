#include "rank_words.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::collectives {

namespace {

/// "0,2-4" in the group's numbers; nothing if one of them is none.
std::optional<std::string> renumber(std::string_view list, std::span<const int> ranks) {
  std::vector<int> found;
  const auto last = static_cast<long long>(ranks.size()) - 1;
  for (const std::string& item : split(list, ',')) {
    const std::size_t dash = item.find('-');
    const auto from = parse_integer(std::string_view(item).substr(0, dash), 0, last);
    const auto to = dash == std::string::npos ? from : parse_integer(std::string_view(item).substr(dash + 1), 0, last);
    if (!from || !to) return std::nullopt;
    for (long long rank = *from; rank <= *to; ++rank) found.push_back(ranks[static_cast<std::size_t>(rank)]);
  }
  return fold_ranks(found);
}

}  // namespace

std::string with_ranks(std::string_view words, std::span<const int> ranks) {
  std::string result;
  while (true) {
    const std::size_t at = words.find("rank");
    if (at == std::string_view::npos) break;
    std::size_t begin = at + 4;
    if (begin < words.size() && words[begin] == 's') ++begin;
    const bool follows = begin < words.size() && words[begin] == ' ';
    if (follows) ++begin;
    std::size_t end = follows ? std::min(words.find_first_not_of("0123456789,-", begin), words.size()) : begin;
    while (end > begin && (words[end - 1] == ',' || words[end - 1] == '-')) --end;
    const std::string_view list = words.substr(begin, end - begin);
    result += words.substr(0, begin);
    result += list.empty() ? std::string() : renumber(list, ranks).value_or(std::string(list));
    words.remove_prefix(end);
  }
  result += words;
  return result;
}

Error with_ranks(Error error, std::span<const int> ranks) {
  error.message = with_ranks(error.message, ranks);
  return error;
}

}  // namespace ddrun::collectives
