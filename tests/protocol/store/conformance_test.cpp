// What every store does, whatever it is made of.
#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "ddrun/store/memory_store.hpp"
#include "ddrun/store/prefix_store.hpp"
#include "fixture.hpp"

using namespace ddrun;
using namespace ddrun::store;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

/// One group's meeting place; `member()` is the store as one of its members sees it.
class Meeting {
 public:
  explicit Meeting(const std::string& kind) : prefixed_(kind.starts_with("prefix")) {
    if (kind.ends_with("tcp")) server_ = started();
  }

  Store& member() {
    Store* store = &memory_;
    if (server_) {
      stores_.push_back(connected(server_->port()));
      store = stores_.back().get();
    }
    if (!prefixed_) return *store;
    stores_.push_back(std::make_unique<PrefixStore>("group", *store));
    return *stores_.back();
  }

 private:
  bool prefixed_;
  MemoryStore memory_;
  std::unique_ptr<TcpServer> server_;
  std::vector<std::unique_ptr<Store>> stores_;
};

#define EACH_KIND GENERATE(as<std::string>{}, "memory", "tcp", "prefix over memory", "prefix over tcp")

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
  const auto kind = EACH_KIND;
  CAPTURE(kind);
  Meeting meeting(kind);
  Store& store = meeting.member();
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

TEST_CASE("members see each other's keys") {
  const auto kind = EACH_KIND;
  CAPTURE(kind);
  Meeting meeting(kind);
  Store& one = meeting.member();
  Store& two = meeting.member();
  must(one.set("k", "1", soon()));
  CHECK(must(two.get("k", soon())) == "1");
  CHECK(must(two.num_keys(soon())) == 1);
  CHECK(must(two.delete_key("k", soon())));
  CHECK_FALSE(must(one.delete_key("k", soon())));
  CHECK(must(one.num_keys(soon())) == 0);
}

TEST_CASE("sums are kept as decimal text") {
  const auto kind = EACH_KIND;
  CAPTURE(kind);
  Meeting meeting(kind);
  Store& store = meeting.member();
  CHECK(must(store.add("n", 5, soon())) == 5);
  CHECK(must(store.add("n", -7, soon())) == -2);
  CHECK(must(store.get("n", soon())) == "-2");
  CHECK(must(store.add("zero", 0, soon())) == 0);
  const std::vector<std::string> both = {"n", "zero"};
  CHECK(must(store.check(both, soon())));
}

TEST_CASE("adding to a text fails") {
  const auto kind = EACH_KIND;
  CAPTURE(kind);
  Meeting meeting(kind);
  Store& store = meeting.member();
  must(store.set("t", "text", soon()));
  const auto sum = store.add("t", 1, soon());
  REQUIRE_FALSE(sum);
  CHECK((sum.error().code == Errc::invalid_argument || sum.error().code == Errc::connection_lost));
  CHECK(must(meeting.member().get("t", soon())) == "text");
}

TEST_CASE("compare_set tells what is there afterwards") {
  const auto kind = EACH_KIND;
  CAPTURE(kind);
  Meeting meeting(kind);
  Store& store = meeting.member();
  CHECK(must(store.compare_set("c", "x", "y", soon())) == "x");
  CHECK(must(store.num_keys(soon())) == 0);
  CHECK(must(store.compare_set("c", "", "v1", soon())) == "v1");
  CHECK(must(store.compare_set("c", "v1", "v2", soon())) == "v2");
  CHECK(must(store.compare_set("c", "bad", "v3", soon())) == "v2");
}

TEST_CASE("many keys at once keep their order") {
  const auto kind = EACH_KIND;
  CAPTURE(kind);
  Meeting meeting(kind);
  Store& store = meeting.member();
  std::vector<std::string> keys;
  std::vector<std::string> values;
  for (int i = 0; i < 3000; ++i) {
    keys.push_back("key" + std::to_string(i));
    values.push_back(std::string(static_cast<std::size_t>(i % 100), static_cast<char>('a' + i % 26)));
  }
  must(store.multi_set(keys, values, soon()));
  // Another connection may have overtaken the one that set: multi_get waits, so all must be there.
  CHECK((must(meeting.member().multi_get(keys, soon())) == values));
  CHECK(must(store.check(keys, soon())));
  CHECK(must(store.num_keys(soon())) == 3000);
  keys.push_back("missing");
  CHECK_FALSE(must(store.check(keys, soon())));
  CHECK(must(store.multi_get({}, soon())).empty());
  CHECK(must(store.check({}, soon())));
  must(store.wait({}, soon()));
  must(store.multi_set({}, {}, soon()));
}

TEST_CASE("append adds at the end") {
  const auto kind = EACH_KIND;
  CAPTURE(kind);
  Meeting meeting(kind);
  Store& store = meeting.member();
  must(store.append("p", "ab", soon()));
  must(store.append("p", "", soon()));
  must(store.append("p", "cd", soon()));
  CHECK(must(store.get("p", soon())) == "abcd");
}

TEST_CASE("a get waits for whoever sets the key") {
  const auto kind = EACH_KIND;
  CAPTURE(kind);
  Meeting meeting(kind);
  Store& waiting = meeting.member();
  Store& setting = meeting.member();
  Result<std::string> got = fail(Errc::cancelled, "not run");
  std::thread thread([&] { got = waiting.get("late", soon()); });
  std::this_thread::sleep_for(2ms);  // either order must work; this one usually waits
  const auto set = setting.set("late", "here", soon());
  thread.join();
  REQUIRE(set);
  CHECK(must(std::move(got)) == "here");
}

TEST_CASE("a wait that times out names the keys and leaves the store usable") {
  const auto kind = EACH_KIND;
  CAPTURE(kind);
  Meeting meeting(kind);
  Store& store = meeting.member();
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
  const auto kind = EACH_KIND;
  CAPTURE(kind);
  Meeting meeting(kind);
  Store& store = meeting.member();
  must(store.set("k", "v", soon()));
  CHECK(must(store.get("k", Deadline{})) == "v");
  CHECK(must(store.add("n", 1, Deadline{})) == 1);
  CHECK_FALSE(store.get("never", Deadline{}));
}

TEST_CASE("limits are the same everywhere and are errors of the caller") {
  const auto kind = EACH_KIND;
  CAPTURE(kind);
  Meeting meeting(kind);
  Store& store = meeting.member();
  const bool prefixed = kind.starts_with("prefix");
  const std::string longest_key(max_key_size - (prefixed ? 6 : 0), 'k');
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
  refused(store.append("k", value, soon()));
  refused(store.compare_set("k", value, "", soon()));
  refused(store.compare_set("k", "", value, soon()));
  refused(store.delete_key(key, soon()));
  const std::vector<std::string> many(max_keys_per_call + 1, "k");
  refused(store.wait(many, soon()));
  refused(store.check(many, soon()));
  refused(store.multi_get(many, soon()));
  refused(store.multi_set(many, many, soon()));
  const auto uneven = store.multi_set(std::vector<std::string>{"a"}, {}, soon());
  REQUIRE_FALSE(uneven);
  CHECK(uneven.error().code == Errc::invalid_argument);
  CHECK(must(store.num_keys(soon())) == 1);
}

TEST_CASE("ranks meet in a barrier of adds and a wait again and again") {
  const auto kind = EACH_KIND;
  CAPTURE(kind);
  Meeting meeting(kind);
  constexpr int ranks = 8;
  constexpr int barriers = 20;
  std::atomic<int> inside{0};
  std::atomic<int> errors{0};
  std::vector<Store*> members;
  for (int rank = 0; rank < ranks; ++rank) members.push_back(&meeting.member());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Store& store = *members[static_cast<std::size_t>(rank)];
      for (int i = 1; i <= barriers; ++i) {
        ++inside;
        const auto name = "barrier" + std::to_string(i);
        const auto count = store.add(name, 1, soon());
        if (count && *count == ranks) {
          if (!store.set(name + "/open", "1", soon())) ++errors;
        }
        const std::vector<std::string> key = {name + "/open"};
        if (!count || !store.wait(key, soon())) ++errors;
        if (inside < i * ranks) ++errors;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(errors == 0);
  CHECK(must(meeting.member().num_keys(soon())) == 2 * barriers);
}

TEST_CASE("keys are listed by the name they were set with") {
  const auto kind = EACH_KIND;
  CAPTURE(kind);
  Meeting meeting(kind);
  Store& store = meeting.member();
  CHECK(must(store.list_keys(soon())).empty());
  must(store.set("b", "1", soon()));
  must(store.set("a/c", "2", soon()));
  must(store.queue_push("queue", "x", soon()));
  auto keys = must(meeting.member().list_keys(soon()));
  std::sort(keys.begin(), keys.end());
  CHECK(keys == std::vector<std::string>{"a/c", "b"});
}

TEST_CASE("each element of a queue goes to one consumer, in order") {
  const auto kind = EACH_KIND;
  CAPTURE(kind);
  Meeting meeting(kind);
  Store& producer = meeting.member();
  constexpr int consumers = 4, each = 25;
  std::mutex mutex;
  std::vector<std::string> got;
  std::vector<std::thread> threads;
  for (int i = 0; i < consumers; ++i) {
    threads.emplace_back([&, &store = meeting.member()] {
      for (int n = 0; n < each; ++n) {
        auto element = store.queue_pop("q", soon());
        const std::lock_guard lock(mutex);
        got.push_back(element ? *element : element.error().message);
      }
    });
  }
  std::vector<std::string> sent;
  for (int n = 0; n < consumers * each; ++n) {
    sent.push_back("element " + std::to_string(n));
    must(producer.queue_push("q", sent.back(), soon()));
  }
  for (auto& thread : threads) thread.join();
  std::sort(got.begin(), got.end());
  std::sort(sent.begin(), sent.end());
  CHECK(got == sent);
  CHECK(must(producer.queue_length("q", soon())) == 0);

  must(producer.queue_push("q", "first", soon()));
  must(producer.queue_push("q", "second", soon()));
  CHECK(must(producer.queue_length("q", soon())) == 2);
  CHECK(must(producer.queue_pop("q", {})) == "first");
  CHECK(must(producer.queue_pop("q", {})) == "second");
  const auto none = producer.queue_pop("q", Clock::now() + 20ms);
  REQUIRE_FALSE(none);
  CHECK(none.error().code == Errc::timeout);
}

TEST_CASE("a barrier lets its members go together") {
  const auto kind = EACH_KIND;
  CAPTURE(kind);
  Meeting meeting(kind);
  constexpr int members = 5;
  std::atomic<int> arrived{0}, early{0}, failed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < members; ++i) {
    threads.emplace_back([&, &store = meeting.member()] {
      ++arrived;
      if (!store.barrier("b", members, soon())) ++failed;
      if (arrived != members) ++early;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(failed == 0);
  CHECK(early == 0);
  const auto alone = meeting.member().barrier("another", 2, Clock::now() + 20ms);
  REQUIRE_FALSE(alone);
  CHECK(alone.error().code == Errc::timeout);
  CHECK(alone.error().message.find("another") != std::string::npos);
  must(meeting.member().barrier("another", 2, soon()));
}

TEST_CASE("one store shared by many threads mixes up nobody's answers") {
  const auto kind = EACH_KIND;
  CAPTURE(kind);
  Meeting meeting(kind);
  Store& store = meeting.member();
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

TEST_CASE("nested prefixes act from the outside in") {
  MemoryStore memory;
  PrefixStore inner("in", memory);
  PrefixStore outer("pfx", inner);
  must(outer.set("k", "v", soon()));
  CHECK(must(memory.get("in/pfx/k", soon())) == "v");
  CHECK(must(inner.get("pfx/k", soon())) == "v");
}
