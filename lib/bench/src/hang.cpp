#include "hang.hpp"

#include <algorithm>

#include "ddrun/base/text.hpp"
#include "ddrun/bench/run.hpp"
#include "ddrun/store/tcp_client.hpp"

namespace ddrun::bench {

namespace {

using namespace std::chrono_literals;

constexpr auto store_answers = 1s;

std::string first_key(const collectives::Group& group) { return group.prefix + "hang"; }
std::string verdict_key(const collectives::Group& group) { return group.prefix + "hang/verdict"; }
std::string key_of(const collectives::Group& group, int rank) { return concat(group.prefix, "hang/", rank); }

/// The communicator whose call was begun last is the one that waits.
const collectives::Communicator& waiting(const collectives::Connected& connected) {
  const bool control = connected.control->begun() > connected.communicator->begun();
  return control ? *connected.control : *connected.communicator;
}

Whereabouts here(const collectives::Connected& connected) {
  Whereabouts here;
  here.calls = connected.communicator->calls();
  if (connected.control != connected.communicator) here.calls += connected.control->calls();
  here.last = waiting(connected).last_call();
  return here;
}

std::optional<Whereabouts> parse(const std::string& line) {
  const auto blank = line.find(' ');
  const auto calls = parse_size(std::string_view(line).substr(0, blank));
  if (!calls || blank == std::string::npos) return std::nullopt;
  return Whereabouts{*calls, line.substr(blank + 1)};
}

/// What the ranks have said as soon as all have, or when the time is up.
std::vector<std::optional<Whereabouts>> collect_whereabouts(const collectives::Group& group, Deadline until) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < group.size; ++rank) keys.push_back(key_of(group, rank));
  // Whether all are there shows below.
  static_cast<void>(group.store->wait(keys, until));
  std::vector<std::optional<Whereabouts>> all;
  for (const std::string& key : keys) {
    all.emplace_back();
    const auto there = group.store->check({&key, 1}, Clock::now() + store_answers);
    if (!there || !*there) continue;
    if (const auto line = group.store->get(key, Clock::now() + store_answers)) all.back() = parse(*line);
  }
  return all;
}

std::optional<std::string> explain(const Error& error, const collectives::Group& group, const Whereabouts& mine,
                                   Clock::time_point began, Milliseconds op_timeout) {
  say_error(concat("rank ", group.rank, ": waits in ", mine.last, ", since ", format_duration(Clock::now() - began)));
  const auto alone_says = [&] {
    say_error(concat("rank ", group.rank, ": ", error.message));
    return error.message;
  };
  if (group.store == nullptr) return alone_says();
  const auto patience = std::clamp<Clock::duration>(op_timeout / 10, 2s, 10s);
  const Deadline until = Clock::now() + patience;
  auto told = group.store->set(key_of(group, group.rank), concat(mine.calls, ' ', mine.last), until);
  if (told) told = group.store->set(first_key(group), "1", until);
  const auto all = collect_whereabouts(group, until);
  const auto first = std::find_if(all.begin(), all.end(), [](const auto& one) { return one.has_value(); });
  // A store that does not answer, because its rank hangs too: each rank says what it knows itself.
  if (!told || first == all.end()) return alone_says();
  if (first - all.begin() != group.rank) {
    static_cast<void>(group.store->get(verdict_key(group), until + store_answers));
    return std::nullopt;
  }
  const std::string words =
      who_is_missing(all, concat(error.message, ", though all ranks have come as far as each other"));
  say_error(concat("rank ", group.rank, ": ", words));
  static_cast<void>(group.store->set(verdict_key(group), words, Clock::now() + store_answers));
  return words;
}

}  // namespace

bool is_hang(const Error& error, const collectives::Group& group) {
  if (error.code == Errc::timeout) return true;
  if (error.code != Errc::connection_lost || group.store == nullptr) return false;
  const std::string key = first_key(group);
  const auto there = group.store->check({&key, 1}, Clock::now() + store_answers);
  return there && *there;
}

std::string who_is_missing(const std::vector<std::optional<Whereabouts>>& all, const std::string& otherwise) {
  std::vector<int> silent;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank]) silent.push_back(static_cast<int>(rank));
  }
  if (!silent.empty()) {
    return concat("did not arrive: ", name_ranks(silent), silent.size() == 1 ? " says nothing" : " say nothing");
  }
  std::uint64_t most = 0;
  for (const auto& one : all) most = std::max(most, one->calls);
  std::vector<std::string> words;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank]->calls < most) words.push_back(concat("rank ", rank, " has come no further than ", all[rank]->last));
  }
  return words.empty() ? otherwise : concat("did not arrive: ", join(words, "; "));
}

std::optional<std::string> explain_hang(const Error& error, const collectives::Group& group,
                                        const collectives::Connected& connected, Milliseconds op_timeout) {
  return explain(error, group, here(connected), waiting(connected).begun(), op_timeout);
}

bool is_others_hang(const Error& error, Deadline start_by) {
  return error.code == Errc::timeout && Clock::now() < start_by;
}

std::optional<std::string> explain_hang_at_start(const Error& error, const collectives::Group& group,
                                                 Clock::time_point began, Milliseconds op_timeout) {
  return explain(error, group, {0, "the start"}, began, op_timeout);
}

}  // namespace ddrun::bench
