#include "exchange.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <bit>
#include <climits>
#include <iterator>
#include <thread>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/store/tcp_client.hpp"

namespace ddrun::collectives {

namespace {

std::string key_of(const Group& group, std::string_view topic, int rank) {
  return concat(group.prefix, topic, '/', rank);
}

Error name_missing_ranks(const Group& group, std::string_view topic, Error error) {
  if (error.code != Errc::timeout) return error;
  std::vector<int> missing;
  for (int rank = 0; rank < group.size; ++rank) {
    const std::string key = key_of(group, topic, rank);
    // One short request per rank; the second allows for a busy server.
    const auto there = group.store->check({&key, 1}, Clock::now() + std::chrono::seconds(1));
    if (!there) return error;
    if (!*there) missing.push_back(rank);
  }
  if (!missing.empty()) error.message = describe_missing(missing);
  return error;
}

}  // namespace

std::string describe_missing(const std::vector<int>& ranks) {
  return concat(name_ranks(ranks), " did not come in time");
}

Result<std::vector<std::string>> exchange(const Group& group, std::string_view topic, std::string_view mine,
                                          Deadline deadline) {
  if (group.size == 1) return std::vector<std::string>{std::string(mine)};
  const auto failed = [&](const Error& error) { return tl::unexpected(name_missing_ranks(group, topic, error)); };
  const std::string all_key = concat(group.prefix, topic, "/all");
  if (auto stored = group.store->set(key_of(group, topic, group.rank), mine, deadline); !stored) {
    return failed(stored.error());
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
  if (auto stored = group.store->set(all_key, join(*lines, "\n"), deadline); !stored) return failed(stored.error());
  return lines;
}

Result<void> agree(const Group& group, std::string_view topic, const Result<void>& mine, Deadline deadline) {
  std::string line = "ok";
  if (!mine) line = concat(static_cast<int>(mine.error().code), ' ', mine.error().message);
  std::replace(line.begin(), line.end(), '\n', ' ');
  const auto lines = TRY(exchange(group, topic, line, deadline));
  for (std::size_t rank = 0; rank < lines.size(); ++rank) {
    const std::string& theirs = lines[rank];
    if (theirs == "ok") continue;
    if (rank == static_cast<std::size_t>(group.rank)) return mine;
    const auto blank = theirs.find(' ');
    const auto code = parse_integer(std::string_view(theirs).substr(0, blank), 0, static_cast<int>(Errc::cancelled));
    return fail(code ? static_cast<Errc>(*code) : Errc::protocol,
                concat("rank ", rank, ": ", blank == std::string::npos ? theirs : theirs.substr(blank + 1)));
  }
  return {};
}

namespace {

std::string read_link(const char* path) {
  std::array<char, 256> text{};
  const ssize_t got = readlink(path, text.data(), text.size());
  return got > 0 ? std::string(text.data(), static_cast<std::size_t>(got)) : std::string();
}

std::string usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    // More processors than the set holds: assume the first ones, as many as there are.
    for (unsigned i = 0; i < std::thread::hardware_concurrency() && i < CPU_SETSIZE; ++i) CPU_SET(i, &set);
  }
  std::string digits;
  for (unsigned i = 0; i < CPU_SETSIZE; i += 4) {
    unsigned digit = 0;
    for (unsigned bit = 0; bit < 4; ++bit) digit |= CPU_ISSET(i + bit, &set) ? 1U << bit : 0U;
    digits += "0123456789abcdef"[digit];
  }
  digits.erase(digits.find_last_not_of('0') + 1);
  return digits.empty() ? "1" : digits;
}

unsigned digit_value(char digit) {
  return digit >= 'a' ? static_cast<unsigned>(digit - 'a') + 10U : static_cast<unsigned>(digit - '0');
}

}  // namespace

HostIdentity HostIdentity::of_this_process() {
  HostIdentity self;
  std::array<char, HOST_NAME_MAX + 1> name{};
  gethostname(name.data(), name.size() - 1);
  self.host = name.data();
  if (self.host.empty() || self.host.find(' ') != std::string::npos) self.host = "unknown";
  self.pid = getpid();
  self.processors = usable_processors();
  const std::string boot = read_small_file("/proc/sys/kernel/random/boot_id").value_or("");
  const std::string pids = read_link("/proc/self/ns/pid");
  const std::string users = read_link("/proc/self/ns/user");
  if (!boot.empty() && !pids.empty()) self.memory_domain = concat(boot, ',', pids, ',', users, ',', geteuid());
  return self;
}

std::string HostIdentity::line() const {
  return concat(host, ' ', pid, ' ', processors, ' ', memory_domain.empty() ? "-" : memory_domain);
}

Result<HostIdentity> HostIdentity::parse(const std::string& line) {
  const std::vector<std::string> fields = split(line, ' ');
  HostIdentity identity;
  const auto pid = fields.size() == 4 ? parse_integer(fields[1], 1, INT_MAX) : parse_integer("", 1, 1);
  if (!pid || fields[2].find_first_not_of("0123456789abcdef") != std::string::npos) {
    return fail(Errc::protocol, concat("a rank described itself as '", line, "': are all ranks the same program?"));
  }
  identity.host = fields[0];
  identity.pid = static_cast<int>(*pid);
  identity.processors = fields[2];
  if (fields[3] != "-") identity.memory_domain = fields[3];
  return identity;
}

std::string format_processors(const std::string& digits) {
  std::vector<int> all;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    for (unsigned bit = 0; bit < 4; ++bit) {
      if ((digit_value(digits[i]) >> bit & 1U) != 0) all.push_back(static_cast<int>(4 * i + bit));
    }
  }
  return fold_ranks(std::move(all));
}

int count_processors(const std::vector<HostIdentity>& all) {
  std::string seen;
  int count = 0;
  for (const HostIdentity& one : all) {
    if (seen.size() < one.processors.size()) seen.resize(one.processors.size(), '\0');
    for (std::size_t i = 0; i < one.processors.size(); ++i) {
      seen[i] = static_cast<char>(static_cast<unsigned char>(seen[i]) | digit_value(one.processors[i]));
    }
  }
  for (const char bits : seen) count += std::popcount(static_cast<unsigned char>(bits));
  return count;
}

bool is_oversubscribed(const std::vector<HostIdentity>& all, int rank) {
  std::vector<HostIdentity> here;
  std::copy_if(all.begin(), all.end(), std::back_inserter(here),
               [&](const HostIdentity& one) { return one.host == all[static_cast<std::size_t>(rank)].host; });
  return here.size() > static_cast<std::size_t>(count_processors(here));
}

}  // namespace ddrun::collectives
