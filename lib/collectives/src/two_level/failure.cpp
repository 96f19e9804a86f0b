#include "two_level/failure.hpp"

#include <ctime>

#include "call_words.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/store/store.hpp"
#include "exchange.hpp"

namespace ddrun::collectives {

namespace {

using namespace std::chrono_literals;

/// Deadlines of ranks that began together are this close to each other, on a machine with too much to do.
constexpr auto kTogether = 1s;

void pause() {
  const timespec time{0, 5'000'000};
  nanosleep(&time, nullptr);
}

/// Where a rank that has failed says what it was called for.
std::string key_of(const Group& group, std::uint64_t call_number, int rank) {
  return concat(group.prefix, "failed/", call_number, '/', rank);
}

bool is_there(const Group& group, const std::string& key) {
  return group.store->check({&key, 1}, Clock::now() + 1s).value_or(false);
}

/// What `mine` really is, as far as those that have failed in the same call can tell.
Error compare_with_others(Error mine, const Group& group, const Call& call, std::uint64_t call_number) {
  store::Store& store = *group.store;
  const Deadline until = Clock::now() + kTogether;
  std::vector<int> missing;
  for (int rank = 0; rank < group.size; ++rank) missing.push_back(rank);
  while (true) {
    std::vector<int> still;
    for (const int rank : missing) {
      const std::string their_key = key_of(group, call_number, rank);
      const auto there = store.check({&their_key, 1}, until);
      if (!there) return mine;
      if (!*there) {
        still.push_back(rank);
        continue;
      }
      const auto said = store.get(their_key, until);
      if (!said) return mine;
      const std::size_t blank = said->find(' ');
      const auto kind = parse_integer(std::string_view(*said).substr(0, blank), 0, 0xffff'ffffLL);
      const auto count = parse_integer(std::string_view(*said).substr(blank + 1), 0, INT64_MAX);
      if (!kind || !count) return mine;
      if (static_cast<std::uint32_t>(*kind) != kind_of(call) || static_cast<std::uint64_t>(*count) != call.count) {
        return different_calls(rank, static_cast<std::uint32_t>(*kind), static_cast<std::uint64_t>(*count), group.rank,
                               call)
            .value();
      }
    }
    missing = std::move(still);
    if (missing.empty() || Clock::now() >= until) break;
    pause();
  }
  // They may have failed and left before: then that is the cause, and known.
  if (mine.code == Errc::timeout && !missing.empty()) mine.message = missing_in_words(missing);
  return mine;
}

}  // namespace

Error first_cause(Error mine, const Group& group, TwoLevelTeam& team, const Call& call, std::uint64_t call_number,
                  bool certain, const std::function<void()>& hang_up) {
  if (auto known = team.kept()) return *known;
  const std::string key = group.prefix + "failed";
  const std::string differing = concat(group.prefix, "differing/", call_number);
  // Without an answer the rank with the store is gone, or as good as that.
  const bool told =
      group.store
          ->set(key_of(group, call_number, group.rank), concat(kind_of(call), ' ', call.count), Clock::now() + 1s)
          .has_value() &&
      group.store->num_keys(Clock::now() + 1s).has_value();
  if (told && !certain && !is_there(group, key)) {
    bool calls_differ = mine.code == Errc::invalid_argument;
    if (calls_differ) {
      // Whoever waits for this rank shall fail as well, and know why it was hung up on.
      static_cast<void>(group.store->set(differing, "1", Clock::now() + 1s));
      hang_up();
    } else {
      calls_differ = is_there(group, differing);
    }
    if (calls_differ || mine.code == Errc::timeout) {
      mine = compare_with_others(std::move(mine), group, call, call_number);
    }
  }
  const std::string words = concat(static_cast<int>(mine.code), ' ', mine.message);
  if (told) {
    if (const auto first = group.store->compare_set(key, "", words, Clock::now() + 2s)) {
      const auto blank = first->find(' ');
      const auto code = parse_integer(std::string_view(*first).substr(0, blank), 0, static_cast<int>(Errc::cancelled));
      if (code && blank != std::string::npos) mine = Error{static_cast<Errc>(*code), first->substr(blank + 1)};
    }
  }
  if (certain) hang_up();  // whoever waits for this rank finds the reason now
  return team.keep(mine);
}

}  // namespace ddrun::collectives
