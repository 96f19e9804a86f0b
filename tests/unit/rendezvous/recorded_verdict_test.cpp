#include "codec.hpp"

#include "ddrun/lease/lease.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;

TEST_CASE("a recorded verdict has the result, and not the details of its cause") {
  for (const auto kind : {VerdictKind::success, VerdictKind::worker_failed, VerdictKind::timed_out,
                          VerdictKind::stopped_by_signal, VerdictKind::launcher_failed, VerdictKind::node_lost}) {
    VerdictMessage verdict{kind, 7, 9, "node3", 3, 17, "rank 17 on node3 exited with code 7", "{}", {}, 2};
    const auto read = parse_verdict(serialize_verdict(verdict));
    REQUIRE(read);
    verdict.cause.clear();
    CHECK(*read == verdict);
  }
}

TEST_CASE("a recorded verdict has a bound, whatever is in it") {
  VerdictMessage verdict;
  for (const char* byte : {"x", "\x01", "\"", "\xff"}) {
    verdict.why.clear();
    for (int i = 0; i < 100'000; ++i) verdict.why += byte;
    verdict.host = verdict.why;
    const std::string text = serialize_verdict(verdict);
    CHECK(text.size() <= lease::max_verdict_bytes);
    CHECK(parse_verdict(text));
  }
}

TEST_CASE("invalid text is not a recorded verdict") {
  const std::string text =
      GENERATE("", "[]", "7", "{}", R"({"verdict":"success"})", R"({"verdict":7,"exit_code":0})",
               R"({"verdict":"unheard of","exit_code":0})", R"({"verdict":"success","exit_code":"0"})");
  CAPTURE(text);
  CHECK_FALSE(parse_verdict(text));
}
