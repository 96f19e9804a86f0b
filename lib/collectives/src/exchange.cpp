#include "exchange.hpp"

#include <algorithm>

#include "ddrun/base/text.hpp"
#include "ddrun/store/tcp_client.hpp"

namespace ddrun::collectives {

namespace {

std::string key_of(const Group& group, std::string_view topic, int rank) {
  return concat(group.prefix, topic, '/', rank);
}

Error explain(const Group& group, std::string_view topic, Error error) {
  if (error.code != Errc::timeout) return error;
  std::vector<int> missing;
  for (int rank = 0; rank < group.size; ++rank) {
    const std::string key = key_of(group, topic, rank);
    // What is there is there: one quick question per rank, with a little time for a server that is busy.
    const auto there = group.store->check({&key, 1}, Clock::now() + std::chrono::seconds(1));
    if (!there) return error;
    if (!*there) missing.push_back(rank);
  }
  if (!missing.empty()) error.message = missing_in_words(missing);
  return error;
}

}  // namespace

std::string missing_in_words(const std::vector<int>& ranks) {
  return concat(name_ranks(ranks), " did not come in time");
}

Result<std::vector<std::string>> exchange(const Group& group, std::string_view topic, std::string_view mine,
                                          Deadline deadline) {
  if (group.size == 1) return std::vector<std::string>{std::string(mine)};
  const auto failed = [&](const Error& error) { return tl::unexpected(explain(group, topic, error)); };
  const std::string all_key = concat(group.prefix, topic, "/all");
  if (auto told = group.store->set(key_of(group, topic, group.rank), mine, deadline); !told) {
    return failed(told.error());
  }
  if (group.rank != 0) {
    const auto all = group.store->get(all_key, deadline);
    if (!all) return failed(all.error());
    std::vector<std::string> lines = split(*all, '\n');
    if (lines.size() != static_cast<std::size_t>(group.size)) {
      return fail(Errc::protocol, concat("rank 0 sees ", lines.size(), " ranks, rank ", group.rank, " sees ",
                                         group.size, ": is WORLD_SIZE the same everywhere?"));
    }
    return lines;
  }
  std::vector<std::string> keys;
  for (int rank = 0; rank < group.size; ++rank) keys.push_back(key_of(group, topic, rank));
  auto lines = group.store->multi_get(keys, deadline);
  if (!lines) return failed(lines.error());
  if (auto told = group.store->set(all_key, join(*lines, "\n"), deadline); !told) return failed(told.error());
  return lines;
}

Result<void> agree(const Group& group, std::string_view topic, const Result<void>& mine, Deadline deadline) {
  std::string line = "ok";
  if (!mine) line = concat(static_cast<int>(mine.error().code), ' ', mine.error().message);
  std::replace(line.begin(), line.end(), '\n', ' ');
  const auto lines = exchange(group, topic, line, deadline);
  if (!lines) return tl::unexpected(lines.error());
  for (std::size_t rank = 0; rank < lines->size(); ++rank) {
    const std::string& theirs = (*lines)[rank];
    if (theirs == "ok") continue;
    if (rank == static_cast<std::size_t>(group.rank)) return mine;
    const auto blank = theirs.find(' ');
    const auto code = parse_integer(std::string_view(theirs).substr(0, blank), 0, static_cast<int>(Errc::cancelled));
    return fail(code ? static_cast<Errc>(*code) : Errc::protocol,
                concat("rank ", rank, ": ", blank == std::string::npos ? theirs : theirs.substr(blank + 1)));
  }
  return {};
}

}  // namespace ddrun::collectives
