// Operations of the client on a real server.
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "ddrun/test/store.hpp"

using namespace ddrun;
using namespace ddrun::store;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

/// A store on the loopback; `client()` is another client of it.
class TestStore {
 public:
  TcpClient& client() {
    clients_.push_back(connected(server_->port()));
    return *clients_.back();
  }

 private:
  std::unique_ptr<TcpServer> server_ = started();
  std::vector<std::unique_ptr<TcpClient>> clients_;
};

template <class T>
T must(Result<T> result) {
  if (!result) FAIL(result.error().message);
  return std::move(*result);
}
void must(Result<void> result) {
  if (!result) FAIL(result.error().message);
}

}  // namespace

TEST_CASE("a value comes back as it was set") {
  TestStore test_store;
  TcpClient& store = test_store.client();
  const std::string binary("\0\xff\n\r /", 6);
  for (const auto& value : {std::string(), std::string("hi"), binary, std::string(8 * 1024 * 1024, 'x')}) {
    must(store.set("k", value, soon()));
    CHECK((must(store.get("k", soon())) == value));
  }
  must(store.set(binary, "v", soon()));
  CHECK(must(store.get(binary, soon())) == "v");
  must(store.set("", "empty key", soon()));
  CHECK(must(store.get("", soon())) == "empty key");
}

TEST_CASE("each call of a client has its effect in the store") {
  TestStore test_store;
  TcpClient& one = test_store.client();
  TcpClient& two = test_store.client();
  must(one.set("k", "1", soon()));
  CHECK(must(two.get("k", soon())) == "1");
  CHECK(must(two.delete_key("k", soon())));
  CHECK_FALSE(must(one.delete_key("k", soon())));
  CHECK(must(one.add("n", 5, soon())) == 5);
  CHECK(must(two.add("n", -7, soon())) == -2);
  CHECK(must(one.get("n", soon())) == "-2");
  CHECK(must(one.compare_set("a/c", "x", "y", soon())) == "x");
  CHECK(must(one.compare_set("a/c", "", "v1", soon())) == "v1");
  CHECK(must(one.compare_set("a/c", "bad", "v3", soon())) == "v1");
  CHECK(must(two.num_keys(soon())) == 2);
  auto keys = must(two.list_keys(soon()));
  std::sort(keys.begin(), keys.end());
  CHECK(keys == std::vector<std::string>{"a/c", "n"});
  const auto sum = one.add("a/c", 1, soon());
  REQUIRE_FALSE(sum);
  CHECK((sum.error().code == Errc::invalid_argument || sum.error().code == Errc::connection_lost));
  CHECK(must(two.get("a/c", soon())) == "v1");
}

TEST_CASE("many keys at once keep their order") {
  TestStore test_store;
  TcpClient& store = test_store.client();
  std::vector<std::string> keys;
  std::vector<std::string> values;
  for (int i = 0; i < 3000; ++i) {
    keys.push_back("key" + std::to_string(i));
    values.push_back(std::string(static_cast<std::size_t>(i % 100), static_cast<char>('a' + i % 26)));
  }
  for (std::size_t i = 0; i < keys.size(); ++i) must(store.set(keys[i], values[i], soon()));
  // Another connection may be ahead of the one that set: multi_get waits, so all must be there.
  CHECK((must(test_store.client().multi_get(keys, soon())) == values));
  CHECK(must(store.check(keys, soon())));
  CHECK(must(store.num_keys(soon())) == 3000);
  keys.push_back("missing");
  CHECK_FALSE(must(store.check(keys, soon())));
  CHECK(must(store.multi_get({}, soon())).empty());
  CHECK(must(store.check({}, soon())));
  must(store.wait({}, soon()));
}

TEST_CASE("a get waits until another client sets the key") {
  TestStore test_store;
  TcpClient& waiting = test_store.client();
  TcpClient& setting = test_store.client();
  Result<std::string> got = fail(Errc::cancelled, "not run");
  std::thread thread([&] { got = waiting.get("late", soon()); });
  std::this_thread::sleep_for(2ms);  // either order must work; this one usually waits
  const auto set = setting.set("late", "here", soon());
  thread.join();
  REQUIRE(set);
  CHECK(must(std::move(got)) == "here");
}

TEST_CASE("a wait that times out names the keys and leaves the store usable") {
  TestStore test_store;
  TcpClient& store = test_store.client();
  must(store.set("there", "", soon()));
  const std::vector<std::string> keys = {"there", "never"};
  for (const auto patience : {0ms, 1ms, 30ms}) {
    const auto start = Clock::now();
    const auto waited = store.wait(keys, start + patience);
    REQUIRE_FALSE(waited);
    CHECK(waited.error().code == Errc::timeout);
    CHECK(waited.error().message.find("never") != std::string::npos);
    CHECK(Clock::now() - start >= patience);
  }
  CHECK(must(store.add("n", 1, soon())) == 1);
  CHECK(must(store.get("there", soon())).empty());
}

TEST_CASE("a deadline in the past still finds what is there") {
  TestStore test_store;
  TcpClient& store = test_store.client();
  must(store.set("k", "v", soon()));
  CHECK(must(store.get("k", Deadline{})) == "v");
  CHECK(must(store.add("n", 1, Deadline{})) == 1);
  CHECK_FALSE(store.get("never", Deadline{}));
}

TEST_CASE("limits are errors of the caller") {
  TestStore test_store;
  TcpClient& store = test_store.client();
  const std::string longest_key(max_key_size, 'k');
  must(store.set(longest_key, "v", soon()));
  CHECK(must(store.get(longest_key, soon())) == "v");
  const auto refused = [](const auto& result) {
    REQUIRE_FALSE(result);
    CHECK(result.error().code == Errc::invalid_argument);
    CHECK(result.error().message.find("at most") != std::string::npos);
  };
  const std::string key = longest_key + "k";
  const std::string value(max_value_size + 1, 'v');
  refused(store.set(key, "", soon()));
  refused(store.set("k", value, soon()));
  refused(store.get(key, soon()));
  refused(store.add(key, 1, soon()));
  refused(store.compare_set("k", value, "", soon()));
  refused(store.compare_set("k", "", value, soon()));
  refused(store.delete_key(key, soon()));
  const std::vector<std::string> many(max_keys_per_call + 1, "k");
  refused(store.wait(many, soon()));
  refused(store.check(many, soon()));
  refused(store.multi_get(many, soon()));
  CHECK(must(store.num_keys(soon())) == 1);
}

TEST_CASE("threads that share one client get their own replies") {
  TestStore test_store;
  TcpClient& store = test_store.client();
  std::atomic<int> errors{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      const std::string mine = "thread" + std::to_string(t);
      for (int i = 0; i < 100; ++i) {
        const std::string value = mine + "#" + std::to_string(i);
        if (!store.set(mine, value, soon())) ++errors;
        const auto got = store.get(mine, soon());
        if (!got || *got != value) ++errors;
        if (!store.add("all", 1, soon())) ++errors;
        const auto swapped = store.compare_set(mine, value, "", soon());
        if (!swapped || !swapped->empty()) ++errors;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(errors == 0);
  CHECK(must(store.add("all", 0, soon())) == 600);
}
