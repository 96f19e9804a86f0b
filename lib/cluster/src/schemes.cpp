#include "schemes.hpp"

#include <algorithm>
#include <cstdint>

#include "ddrun/base/address.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::cluster {

Result<Maybe<int>> number_of(const Environment& variables, std::string_view name, int low, int high) {
  const auto text = variables.get(name);
  if (!text) return Maybe<int>{};
  const auto number = parse_integer(*text, low, high);
  if (!number) {
    return fail(Errc::invalid_argument, concat(name, "=", *text, " is not a whole number from ", low, " to ", high,
                                               "; unset it, or give --env-detect=none"));
  }
  return Maybe<int>({static_cast<int>(*number), std::string(name)});
}

Result<Maybe<int>> first_number_of(const Environment& variables, const std::vector<std::string_view>& names, int low,
                                   int high) {
  for (const std::string_view name : names) {
    auto number = number_of(variables, name, low, high);
    if (!number || *number) return number;
  }
  return Maybe<int>{};
}

Maybe<std::string> text_of(const Environment& variables, std::string_view name) {
  const auto text = variables.get(name);
  if (!text) return std::nullopt;
  return Fact<std::string>{std::string(*text), std::string(name)};
}

Maybe<std::string> first_text_of(const Environment& variables, const std::vector<std::string_view>& names) {
  for (const std::string_view name : names) {
    if (auto text = text_of(variables, name)) return text;
  }
  return std::nullopt;
}

tl::unexpected<Error> contradiction(std::string_view one, std::string_view other, std::string_view way_out) {
  return fail(Errc::invalid_argument, concat(one, " and ", other, " contradict each other; ", way_out));
}

std::optional<int> position_of(const Machine& machine, const std::vector<std::string>& hosts) {
  const auto where = [&](auto same) -> std::optional<int> {
    const auto found = std::find_if(hosts.begin(), hosts.end(), same);
    if (found == hosts.end()) return std::nullopt;
    return static_cast<int>(found - hosts.begin());
  };
  if (const auto at = where([&](const std::string& host) { return host == machine.host_name; })) return at;
  if (const auto at = where([&](const std::string& host) { return names_same_host(host, machine.host_name); })) {
    return at;
  }
  // A machine may have a domain per network; its short name must then be unique in the list.
  const auto shares_short_name = [&](const std::string& host) {
    return short_host_name(host) == short_host_name(machine.host_name);
  };
  const auto at = where(shares_short_name);
  if (at && std::none_of(hosts.begin(), hosts.end(), [&](const std::string& host) {
        return shares_short_name(host) && host != hosts[static_cast<std::size_t>(*at)];
      })) {
    return at;
  }
  return where([&](const std::string& host) {
    return host != "127.0.0.1" && host != "::1" &&
           std::find(machine.addresses.begin(), machine.addresses.end(), host) != machine.addresses.end();
  });
}

std::vector<std::string> unique(const std::vector<std::string>& hosts) {
  std::vector<std::string> result;
  for (const std::string& host : hosts) {
    if (std::find(result.begin(), result.end(), host) == result.end()) result.push_back(host);
  }
  return result;
}

std::string as_job_id(std::string_view text) {
  constexpr std::string_view good = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  std::string id(text.substr(0, 100));
  std::replace_if(
      id.begin(), id.end(), [&](char c) { return good.find(c) == std::string_view::npos; }, '-');
  return id;
}

std::string endpoint_text(const Endpoint& endpoint) { return host_port_text(endpoint.host, endpoint.port); }

std::string short_list(const std::vector<std::string>& words) {
  constexpr std::size_t max_shown = 8;
  if (words.size() <= max_shown) return join(words, ", ");
  const std::vector<std::string> first(words.begin(), words.begin() + max_shown - 1);
  return concat(join(first, ", "), ", ... ", words.back(), " (", words.size(), ")");
}

namespace {

constexpr std::uint32_t first_port = 20'000;
constexpr std::uint32_t port_count = 32'768 - first_port;
constexpr int how_many = 3;

/// FNV-1a with a final mixing step, since only few bits are used.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  hash ^= hash >> 33U;
  hash *= 0xff51afd7ed558ccdU;
  return hash ^ (hash >> 33U);
}

}  // namespace

std::vector<Endpoint> candidates(const std::string& host, std::string_view job) {
  std::vector<Endpoint> endpoints;
  for (std::uint32_t salt = 0; endpoints.size() < how_many; ++salt) {
    const auto port = static_cast<std::uint16_t>(first_port + hash_of(concat(job, "/", salt)) % port_count);
    bool known = false;
    for (const Endpoint& other : endpoints) known = known || other.port == port;
    if (!known) endpoints.push_back({host, port});
  }
  return endpoints;
}

}  // namespace ddrun::cluster
