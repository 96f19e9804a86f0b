// A worker in C++ that meets the others of its job in ddrun's store:
//
//   ddrun --nproc-per-node=4 ./store-client [TIMEOUT]
//
// Every rank puts a value into the store and reads those of all others, sends a greeting to the next rank and takes the
// one for itself on a second thread, and waits until everybody has done so.

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>
#include <vector>

#include "ddrun/store/prefix_store.hpp"
#include "ddrun/store/resolve.hpp"

namespace {

// The library reports failures by what it returns: a Result<T> is a T or an Error, whose message says what was tried
// and why it failed.
using ddrun::Deadline;
using ddrun::Errc;
using ddrun::Result;
using ddrun::store::Store;
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

// ---- When another rank fails, ddrun sends SIGTERM to this one. A program that has nothing to put in order needs none
// of this: the signal ends it. This one ends its waits and says so.

class CancelOnSigterm {
 public:
  explicit CancelOnSigterm(TcpClient& client) {
    client_ = &client;
    std::signal(SIGTERM, [](int) { client_.load()->cancel(); });  // cancel() may be called from anywhere
  }
  ~CancelOnSigterm() { std::signal(SIGTERM, SIG_DFL); }
  CancelOnSigterm(const CancelOnSigterm&) = delete;
  CancelOnSigterm& operator=(const CancelOnSigterm&) = delete;

 private:
  static inline std::atomic<TcpClient*> client_{nullptr};
};

// ---- The work.

std::string mailbox(std::int64_t rank) { return "mailbox/" + std::to_string(rank); }

/// What all ranks have put into the store, by rank; with a greeting to the next rank on the way.
Result<std::vector<std::string>> exchange(const Place& place, Store& store, Deadline deadline) {
  const auto key = [](std::int64_t rank) { return "value/" + std::to_string(rank); };

  const auto sent = store.set(key(place.rank), std::to_string(place.rank * place.rank), deadline);
  if (!sent) return tl::unexpected(sent.error());

  const std::int64_t next = (place.rank + 1) % place.world_size;
  const auto greeted = store.queue_push(mailbox(next), "hello from rank " + std::to_string(place.rank), deadline);
  if (!greeted) return tl::unexpected(greeted.error());

  std::vector<std::string> keys;
  for (std::int64_t rank = 0; rank < place.world_size; ++rank) keys.push_back(key(rank));
  return store.multi_get(keys, deadline);  // waits for those that are not there yet
}

Result<void> meet(const Place& place, Deadline deadline) {
  // One deadline for everything: it is a point in time, so it does not grow with the number of steps.
  const auto client = ddrun::store::connect_by_name(place.address, place.port, deadline);
  if (!client) return tl::unexpected(client.error());
  const CancelOnSigterm cancel_on_sigterm(**client);

  // Others in the same job, such as PyTorch, use the same store: keep your keys apart.
  ddrun::store::PrefixStore store("store-client", **client);

  // Threads share one client. This one waits, and keeps nobody else waiting.
  auto greeting = std::async(std::launch::async, [&] { return store.queue_pop(mailbox(place.rank), deadline); });
  const auto values = exchange(place, store, deadline);
  if (!values) (*client)->cancel();  // else the thread would wait until the deadline
  const auto received = greeting.get();
  if (!values) return tl::unexpected(values.error());
  if (!received) return tl::unexpected(received.error());

  std::string line = "rank " + std::to_string(place.rank) + " of " + std::to_string(place.world_size) + " read";
  for (const auto& value : *values) line += " " + value;
  std::printf("%s, and got '%s'\n", line.c_str(), received->c_str());

  // Everybody has read everything when all have come here.
  return store.barrier("done", place.world_size, deadline);
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
