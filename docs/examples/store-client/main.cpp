// A worker in C++ that meets the others of its job in ddrun's store:
//
//   ddrun --nproc-per-node=4 ./store-client [TIMEOUT]
//
// Every rank puts a value into the store, reads those of all others, and waits until everybody has done so.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "ddrun/store/prefix_store.hpp"
#include "ddrun/store/resolve.hpp"

namespace {

// Nothing in ddrun's libraries throws what it can return: a Result<T> is a T or an Error, whose message says what was
// tried and why it failed.
using ddrun::Errc;
using ddrun::Result;

/// Who this worker is and where the store listens: ddrun puts it into the environment of each worker.
struct Place {
  long long rank;
  long long world_size;
  std::string address;
  std::uint16_t port;
};

Result<long long> number_from_environment(const char* name, long long low, long long high) {
  const char* text = std::getenv(name);
  if (text == nullptr) {
    return ddrun::fail(Errc::not_found, std::string(name) + " is not set: start this program with ddrun");
  }
  auto number = ddrun::parse_integer(text, low, high);
  if (!number) number.error().message.insert(0, std::string(name) + ": ");
  return number;
}

Result<Place> place_from_environment() {
  const auto world_size = number_from_environment("WORLD_SIZE", 1, 1'000'000);
  if (!world_size) return tl::unexpected(world_size.error());
  const auto rank = number_from_environment("RANK", 0, *world_size - 1);
  if (!rank) return tl::unexpected(rank.error());
  const auto port = number_from_environment("MASTER_PORT", 1, 65535);
  if (!port) return tl::unexpected(port.error());
  const char* address = std::getenv("MASTER_ADDR");
  if (address == nullptr) return ddrun::fail(Errc::not_found, "MASTER_ADDR is not set: start this program with ddrun");
  return Place{*rank, *world_size, address, static_cast<std::uint16_t>(*port)};
}

/// Returns when all ranks have called it with the same name: each adds one, and whoever is last opens the gate.
Result<void> barrier(ddrun::store::Store& store, const std::string& name, const Place& place,
                     ddrun::Deadline deadline) {
  const auto arrived = store.add(name + "/arrived", 1, deadline);
  if (!arrived) return tl::unexpected(arrived.error());
  if (*arrived == place.world_size) return store.set(name + "/open", "", deadline);
  const std::vector<std::string> gate{name + "/open"};
  return store.wait(gate, deadline);
}

Result<void> meet(const Place& place, ddrun::Deadline deadline) {
  // One deadline for everything: a point in time, so that it does not grow with the number of steps.
  const auto client = ddrun::store::connect_by_name(place.address, place.port, deadline);
  if (!client) return tl::unexpected(client.error());

  // Other parts of a worker, such as PyTorch, use the same store: keep your keys apart.
  ddrun::store::PrefixStore store("store-client", **client);

  const auto key = [](long long rank) { return "value/" + std::to_string(rank); };
  const auto sent = store.set(key(place.rank), std::to_string(place.rank * place.rank), deadline);
  if (!sent) return tl::unexpected(sent.error());

  // Waits for those that are not there yet.
  std::vector<std::string> keys;
  for (long long rank = 0; rank < place.world_size; ++rank) keys.push_back(key(rank));
  const auto values = store.multi_get(keys, deadline);
  if (!values) return tl::unexpected(values.error());

  if (const auto met = barrier(store, "all-have-read", place, deadline); !met) return tl::unexpected(met.error());
  // From here on nobody needs the values any more. A job that goes on for days deletes what it has used.
  if (const auto deleted = store.delete_key(key(place.rank), deadline); !deleted) {
    return tl::unexpected(deleted.error());
  }

  std::string line = "rank " + std::to_string(place.rank) + " of " + std::to_string(place.world_size) + " read";
  for (const auto& value : *values) line += " " + value;
  std::puts(line.c_str());
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const auto timeout = ddrun::parse_duration(argc > 1 ? argv[1] : "30s");
  if (!timeout) {
    std::fprintf(stderr, "store-client: %s\n", timeout.error().message.c_str());
    return 2;
  }
  const auto place = place_from_environment();
  if (!place) {
    std::fprintf(stderr, "store-client: %s\n", place.error().message.c_str());
    return 2;
  }
  if (const auto met = meet(*place, ddrun::Clock::now() + *timeout); !met) {
    // ddrun sees the exit status, stops the other ranks and names this one as the first failure.
    std::fprintf(stderr, "store-client: rank %lld: %s\n", place->rank, met.error().message.c_str());
    return 1;
  }
  return 0;
}
