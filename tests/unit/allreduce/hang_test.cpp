#include "measure/hang.hpp"

#include "ddrun/test/catch.hpp"

using namespace ddrun::allreduce;

namespace {

using All = std::vector<std::optional<Whereabouts>>;
const Whereabouts kAhead{9, "all_reduce of 4 float, sum, call 9"};
const Whereabouts kBehind{7, "barrier, call 7"};

}  // namespace

TEST_CASE("those who say nothing are missing, not those who wait for them in an earlier call") {
  CHECK(who_is_missing(All{kAhead, std::nullopt, kBehind}, "") == "did not arrive: rank 1 says nothing");
  CHECK(who_is_missing(All{std::nullopt, kAhead, std::nullopt, std::nullopt}, "") ==
        "did not arrive: ranks 0,2,3 say nothing");
}

TEST_CASE("where all say something, those who are behind are missing") {
  CHECK(who_is_missing(All{kAhead, kBehind, kAhead}, "") ==
        "did not arrive: rank 1 has come no further than barrier, call 7");
  CHECK(who_is_missing(All{kAhead, kAhead}, "nobody") == "nobody");
}
