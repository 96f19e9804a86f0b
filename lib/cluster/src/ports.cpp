#include <cstdint>

#include "ddrun/base/text.hpp"
#include "findings.hpp"

namespace ddrun::cluster {

namespace {

constexpr std::uint32_t first_port = 20'000;
constexpr std::uint32_t port_count = 32'768 - first_port;
constexpr int how_many = 3;

/// FNV-1a, with a last mixing step, as only few bits are taken from it.
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
