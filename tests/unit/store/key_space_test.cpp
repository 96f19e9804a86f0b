#include "key_space.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <set>

#include "ddrun/test/catch.hpp"

using namespace ddrun::store;

namespace {

class CountingWaiter final : public Waiter {
 public:
  int calls = 0;

 private:
  void on_keys_exist() override { ++calls; }
};

std::string value(const KeySpace& space, std::string_view key) {
  const auto* found = space.find(key);
  return found != nullptr ? *found : "(none)";
}

}  // namespace

TEST_CASE("add reads numbers as std::stoll does and writes plain ones") {
  KeySpace space;
  CHECK(space.add("n", 5) == 5);
  CHECK(space.add("n", -7) == -2);
  CHECK(value(space, "n") == "-2");
  CHECK(space.add("new", 0) == 0);
  CHECK(value(space, "new") == "0");

  for (const auto& [text, number] : {std::pair{"12ab", 12}, {" \t+7", 7}, {"\n-3 x", -3}, {"007", 7}}) {
    CAPTURE(text);
    space.set("k", text);
    CHECK(space.add("k", 1) == number + 1);
  }
  for (const auto* text : {"", " ", "abc", "+", "-", "+-1", "- 1", "9223372036854775808", "-9223372036854775809"}) {
    CAPTURE(text);
    space.set("k", text);
    CHECK_FALSE(space.add("k", 1).has_value());
    CHECK(value(space, "k") == text);
  }
}

TEST_CASE("sums beyond 64 bits wrap around") {
  KeySpace space;
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  CHECK(space.add("n", most) == most);
  CHECK(space.add("n", 1) == std::numeric_limits<std::int64_t>::min());
  CHECK(value(space, "n") == "-9223372036854775808");
}

TEST_CASE("compare_set stores on a match and on an expected absence only") {
  KeySpace space;
  CHECK(space.compare_set("c", "x", "y") == "x");
  CHECK(value(space, "c") == "(none)");
  CHECK(space.compare_set("c", "", "v1") == "v1");
  CHECK(space.compare_set("c", "", "v2") == "v1");
  CHECK(space.compare_set("c", "v1", "v2") == "v2");
  CHECK(value(space, "c") == "v2");
  space.set("empty", "");
  CHECK(space.compare_set("empty", "", "full") == "full");
}

TEST_CASE("append creates and adds, up to its limit") {
  KeySpace space;
  CHECK(space.append("p", "ab", 4));
  CHECK(space.append("p", "cd", 4));
  CHECK_FALSE(space.append("p", "e", 4));
  CHECK(value(space, "p") == "abcd");
  CHECK_FALSE(space.append("q", "abcde", 4));
  CHECK(value(space, "q") == "(none)");
}

TEST_CASE("every operation that creates a key wakes its waiters") {
  KeySpace space;
  CountingWaiter waiter;
  space.await("k", waiter);
  REQUIRE(waiter.waiting());
  SECTION("set") { space.set("k", ""); }
  SECTION("add") { CHECK(space.add("k", 0) == 0); }
  SECTION("append") { CHECK(space.append("k", "", 10)); }
  SECTION("compare_set") { CHECK(space.compare_set("k", "", "") == ""); }
  CHECK(waiter.calls == 1);
  CHECK_FALSE(waiter.waiting());
}

TEST_CASE("an operation that leaves a key missing wakes no waiter") {
  KeySpace space;
  CountingWaiter waiter;
  space.await("k", waiter);
  CHECK(space.compare_set("k", "x", "y") == "x");
  CHECK_FALSE(space.erase("k"));
  CHECK_FALSE(space.append("k", "abc", 2));
  space.set("kk", "");
  CHECK(waiter.calls == 0);
  space.cancel(waiter);
  CHECK_FALSE(waiter.waiting());
  space.set("k", "");
  CHECK(waiter.calls == 0);
}

TEST_CASE("a waiter is called once when the last of its keys is set") {
  KeySpace space;
  space.set("there", "");
  CountingWaiter waiter;
  for (const auto* key : {"a", "there", "b", "a"}) space.await(key, waiter);
  space.set("a", "");
  space.erase("a");  // the wait for it stays ended
  CHECK(waiter.calls == 0);
  space.set("b", "");
  CHECK(waiter.calls == 1);
  space.set("b", "");
  CHECK(waiter.calls == 1);
}

TEST_CASE("clearing deletes keys and keeps waits") {
  KeySpace space;
  space.set("a", "1");
  CountingWaiter waiter;
  space.await("b", waiter);
  space.clear();
  CHECK(space.size() == 0);
  space.set("b", "");
  CHECK(waiter.calls == 1);
}

// Compares the linked lists with a simple model.
TEST_CASE("any order of waits, cancels and sets wakes exactly the right waiters") {
  std::minstd_rand random(7);
  for (int trial = 0; trial < 50; ++trial) {
    KeySpace space;
    std::vector<std::unique_ptr<CountingWaiter>> waiters;
    std::vector<std::multiset<std::string>> missing(20);
    std::vector<int> expected(20, 0);
    std::set<std::string> existing;
    for (int i = 0; i < 20; ++i) waiters.push_back(std::make_unique<CountingWaiter>());
    for (int step = 0; step < 400; ++step) {
      const auto who = random() % waiters.size();
      const std::string key(1, static_cast<char>('a' + random() % 8));
      switch (random() % 5) {
        case 0:
        case 1:
          space.await(key, *waiters[who]);
          if (!existing.contains(key)) missing[who].insert(key);
          break;
        case 2:
          space.cancel(*waiters[who]);
          missing[who].clear();
          break;
        case 3:
          space.set(key, "x");
          existing.insert(key);
          for (std::size_t i = 0; i < waiters.size(); ++i) {
            if (missing[i].erase(key) > 0 && missing[i].empty()) ++expected[i];
          }
          break;
        default: space.erase(key); existing.erase(key);
      }
      for (std::size_t i = 0; i < waiters.size(); ++i) {
        REQUIRE(waiters[i]->calls == expected[i]);
        REQUIRE(waiters[i]->waiting() == !missing[i].empty());
      }
    }
    for (auto& waiter : waiters) space.cancel(*waiter);
  }
}
