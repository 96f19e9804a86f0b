// A worker in C++ that meets the others of its job in ddrun's store:
//
//   ddrun --nproc-per-node=4 ./store-client [TIMEOUT]
//
// Every rank puts a value into the store and reads those of all others, sends a greeting to the next rank and reads the
// one for itself, and waits until all have done so.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ddrun/store/resolve.hpp"

namespace {

// The library reports failures by what it returns: a Result<T> is a T or an Error, whose message says what was tried
// and why it failed.
using ddrun::Deadline;
using ddrun::Errc;
using ddrun::Result;
using ddrun::store::TcpClient;

// ---- Who am I? ddrun puts it into the environment of each worker.

struct Place {
  std::int64_t rank;
  std::int64_t world_size;
  std::string address;  // of the store
  std::uint16_t port;
};

Result<std::string> variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return ddrun::fail(Errc::not_found, name + " is not set: start this program with ddrun");
  return value;
}

Result<std::int64_t> number(const std::string& name, std::int64_t low, std::int64_t high) {
  const auto text = variable(name);
  if (!text) return tl::unexpected(text.error());
  const auto value = ddrun::parse_integer(*text, low, high);
  if (!value) return ddrun::fail(value.error().code, name + ": " + value.error().message);
  return *value;
}

Result<Place> find_place() {
  const auto world_size = number("WORLD_SIZE", 1, 1'000'000);
  if (!world_size) return tl::unexpected(world_size.error());
  const auto rank = number("RANK", 0, *world_size - 1);
  if (!rank) return tl::unexpected(rank.error());
  const auto address = variable("MASTER_ADDR");
  if (!address) return tl::unexpected(address.error());
  const auto port = number("MASTER_PORT", 1, 65535);
  if (!port) return tl::unexpected(port.error());
  return Place{*rank, *world_size, *address, static_cast<std::uint16_t>(*port)};
}

// ---- The work.

// Others in the same job, such as PyTorch, use the same store: begin your keys with a word of your own.
std::string key(const std::string& name, std::int64_t rank) {
  return "store-client/" + name + "/" + std::to_string(rank);
}

/// What all ranks have put into the store, by rank; with a greeting to the next rank on the way.
Result<std::vector<std::string>> exchange(const Place& place, TcpClient& store, Deadline deadline) {
  const auto sent = store.set(key("value", place.rank), std::to_string(place.rank * place.rank), deadline);
  if (!sent) return tl::unexpected(sent.error());

  const std::int64_t next = (place.rank + 1) % place.world_size;
  const auto greeted = store.set(key("mailbox", next), "hello from rank " + std::to_string(place.rank), deadline);
  if (!greeted) return tl::unexpected(greeted.error());

  std::vector<std::string> keys;
  for (std::int64_t rank = 0; rank < place.world_size; ++rank) keys.push_back(key("value", rank));
  return store.multi_get(keys, deadline);  // waits for those that are not there yet
}

/// Waits until all ranks have come here.
Result<void> barrier(const Place& place, TcpClient& store, Deadline deadline) {
  const std::string open = "store-client/all-done";
  const auto count = store.add("store-client/done", 1, deadline);
  if (!count) return tl::unexpected(count.error());
  if (*count == place.world_size) return store.set(open, "", deadline);
  return store.wait({&open, 1}, deadline);
}

Result<void> meet(const Place& place, Deadline deadline) {
  // One deadline for everything: it is a point in time, so it does not grow with the number of steps.
  const auto client = ddrun::store::connect_by_name(place.address, place.port, deadline);
  if (!client) return tl::unexpected(client.error());
  TcpClient& store = **client;

  const auto values = exchange(place, store, deadline);
  if (!values) return tl::unexpected(values.error());
  const auto received = store.get(key("mailbox", place.rank), deadline);
  if (!received) return tl::unexpected(received.error());

  std::string line = "rank " + std::to_string(place.rank) + " of " + std::to_string(place.world_size) + " read";
  for (const auto& value : *values) line += " " + value;
  std::printf("%s, and got '%s'\n", line.c_str(), received->c_str());
  return barrier(place, store, deadline);
}

}  // namespace

int main(int argc, char** argv) {
  const auto timeout = ddrun::parse_duration(argc > 1 ? argv[1] : "30s");
  if (!timeout) {
    std::fprintf(stderr, "store-client: %s\n", timeout.error().message.c_str());
    return 2;
  }
  const auto place = find_place();
  if (!place) {
    std::fprintf(stderr, "store-client: %s\n", place.error().message.c_str());
    return 2;
  }
  if (const auto met = meet(*place, ddrun::Clock::now() + *timeout); !met) {
    // ddrun sees the exit status, stops the other ranks and names this one as the first failure.
    std::fprintf(stderr, "store-client: rank %lld: %s\n", static_cast<long long>(place->rank),
                 met.error().message.c_str());
    return 1;
  }
  return 0;
}
