#include "ddrun/base/deadlines.hpp"

#include <chrono>

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace std::chrono_literals;

TEST_CASE("deadlines expire in order of time, each once") {
  enum class Name { first, second, third };
  Deadlines<Name> deadlines;
  const Deadline start{1h};
  CHECK_FALSE(deadlines.next());
  CHECK_FALSE(deadlines.take_expired(start));

  deadlines.arm(Name::third, start + 1s);
  deadlines.arm(Name::first, start + 3s);
  deadlines.arm(Name::second, start + 3s);
  CHECK(deadlines.next() == start + 1s);
  CHECK(deadlines.at(Name::first) == start + 3s);
  CHECK_FALSE(deadlines.take_expired(start + 1s - 1ns));
  CHECK(deadlines.take_expired(start + 1s) == Name::third);
  CHECK_FALSE(deadlines.is_armed(Name::third));
  CHECK_FALSE(deadlines.take_expired(start + 2s));

  // Of equal ones the first name.
  CHECK(deadlines.take_expired(start + 5s) == Name::first);
  CHECK(deadlines.take_expired(start + 5s) == Name::second);
  CHECK_FALSE(deadlines.next());
}

TEST_CASE("a deadline that is armed again moves, and one that is cleared does not expire") {
  enum class Name { moved, cleared };
  Deadlines<Name> deadlines;
  const Deadline start{1h};
  deadlines.arm(Name::moved, start);
  deadlines.arm(Name::cleared, start);
  deadlines.arm(Name::moved, start + 2s);
  deadlines.clear(Name::cleared);
  deadlines.clear(Name::cleared);
  CHECK_FALSE(deadlines.at(Name::cleared));
  CHECK_FALSE(deadlines.take_expired(start + 1s));
  CHECK(deadlines.next() == start + 2s);
  CHECK(deadlines.take_expired(start + 2s) == Name::moved);
}

TEST_CASE("deadlines that have expired are passed in their order, up to one that is armed again for the same instant") {
  enum class Name { once, again };
  Deadlines<Name> deadlines;
  const Deadline start{1h};
  deadlines.arm(Name::again, start);
  deadlines.arm(Name::once, start - 1s);
  std::vector<std::pair<Name, bool>> passed;
  deadlines.expire(start, [&](Name name, bool again) {
    passed.emplace_back(name, again);
    if (name == Name::again) deadlines.arm(name, start);
  });
  CHECK(passed == std::vector<std::pair<Name, bool>>{{Name::once, false}, {Name::again, false}, {Name::again, true}});
}
