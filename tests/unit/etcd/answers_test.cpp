// Responses of etcd.

#include "ddrun/test/catch.hpp"
#include "etcd_responses.hpp"

using namespace ddrun;
using namespace ddrun::etcd;

TEST_CASE("answers of etcd 3.4, as it gave them") {
  const auto range = parse_range(
      R"({"header":{"cluster_id":"8196872327171180494","member_id":"7","revision":"9","raft_term":"2"},"kvs":[{"key":"L2RkcnVuL2E=","create_revision":"2","mod_revision":"5","version":"1","value":"bm9kZTA=","lease":"6381215882457171978"}],"count":"1"})");
  REQUIRE(range);
  CHECK(range->revision == 9);
  REQUIRE(range->kvs.size() == 1);
  CHECK(range->kvs[0].key == "/ddrun/a");
  CHECK(range->kvs[0].value == "node0");
  CHECK(range->kvs[0].create_revision == 2);
  CHECK(range->kvs[0].mod_revision == 5);
  CHECK(range->kvs[0].lease == 6381215882457171978);
  CHECK(parse_range(R"({"header":{"revision":"1"}})")->kvs.empty());

  const auto won = parse_txn(
      R"({"header":{"revision":"2"},"succeeded":true,"responses":[{"response_put":{"header":{"revision":"2"}}}]})");
  REQUIRE(won);
  CHECK(won->succeeded);
  CHECK(won->found.revision == 2);
  const auto lost = parse_txn(
      R"({"header":{"revision":"2"},"responses":[{"response_range":{"header":{"revision":"2"},"kvs":[{"key":"YQ==","create_revision":"2"}]}}]})");
  REQUIRE(lost);
  CHECK_FALSE(lost->succeeded);
  CHECK(lost->found.kvs.size() == 1);
  CHECK(lost->found.kvs[0].value.empty());

  const auto granted = parse_grant(R"({"header":{"revision":"1"},"ID":"6381215882457171973","TTL":"5"})");
  REQUIRE(granted);
  CHECK(granted->id == 6381215882457171973);
  CHECK(granted->ttl == 5);
  CHECK(parse_keepalive(R"({"result":{"header":{"revision":"1"},"ID":"12345","TTL":"2"}})") == 2);
  // There is no such lease.
  CHECK(parse_keepalive(R"({"result":{"header":{"revision":"1"},"ID":"12345"}})") == 0);
  // Bounded, so that a time point in nanoseconds does not overflow.
  CHECK(parse_grant(R"({"header":{"revision":"1"},"ID":"1","TTL":"9223372036854775807"})")->ttl == 1'000'000'000);
  CHECK(parse_keepalive(R"({"result":{"header":{"revision":"1"},"TTL":"9223372036854775807"}})") == 1'000'000'000);
  CHECK(parse_keepalive(R"({"result":{"header":{"revision":"1"},"TTL":"-9223372036854775808"}})") == 0);
  CHECK(parse_token(R"({"header":{"revision":"1"},"token":"abc.8"})") == "abc.8");

  CHECK(parse_watch(R"({"result":{"header":{"revision":"2"},"created":true}})")->events.empty());
  const auto update = parse_watch(
      R"({"result":{"header":{"revision":"3"},"events":[{"type":"DELETE","kv":{"key":"YQ==","mod_revision":"3"}},{"kv":{"key":"Yg==","mod_revision":"4","value":"eA=="}}]}})");
  REQUIRE(update);
  REQUIRE(update->events.size() == 2);
  CHECK(update->events[0].deleted);
  CHECK_FALSE(update->events[1].deleted);
  CHECK(update->events[1].kv.value == "x");
  CHECK(parse_watch(R"({"result":{"canceled":true,"compact_revision":"15"}})")->canceled);
  CHECK(parse_watch(R"({"error":{"grpc_code":14,"message":"etcdserver: no leader"}})")->reason ==
        "etcdserver: no leader");

  const auto error = parse_error(
      R"({"error":"etcdserver: requested lease not found","message":"etcdserver: requested lease not found","code":5})");
  REQUIRE(error);
  CHECK(error->code == 5);
  CHECK(error->message == "etcdserver: requested lease not found");
}

TEST_CASE("invalid responses are rejected") {
  for (const auto* text :
       {"", "null", "[]", "1", "\"x\"", "{", "{}", R"({"header":1})", R"({"header":{"revision":"0"}})",
        R"({"header":{"revision":"-5"}})", R"({"header":{"revision":"99999999999999999999"}})",
        R"({"header":{"revision":"9223372036854775807"}})", "<html>", "{\"header\":{\"revision\":\"\xff\"}}"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_range(text));
    CHECK_FALSE(parse_txn(text));
    CHECK_FALSE(parse_grant(text));
    CHECK_FALSE(parse_keepalive(text));
    CHECK_FALSE(parse_token(text));
    CHECK_FALSE(is_ok_response(text));
    CHECK_FALSE(parse_error(text));
    CHECK_FALSE(parse_watch(text));
  }
  CHECK_FALSE(parse_range(R"({"header":{"revision":"1"},"kvs":[{"key":"%"}]})"));
  CHECK_FALSE(parse_range(R"({"header":{"revision":"1"},"kvs":{}})"));
  CHECK_FALSE(parse_range(R"({"header":{"revision":"1"},"kvs":[1]})"));
  CHECK_FALSE(parse_grant(R"({"header":{"revision":"1"},"ID":"0","TTL":"5"})"));
  CHECK_FALSE(parse_token(R"({"token":"a\r\nX: y"})"));
  CHECK_FALSE(parse_watch(R"({"result":{"events":[{}]}})"));
}

TEST_CASE("bytes come back from base64 as they were, and nothing else is one") {
  const std::vector<std::string> texts{"", "a", "ab", "abc", "a b/c%", "\xff\x01\n", std::string(3, '\0'), "%"};
  for (const std::string& text : texts) CHECK(from_base64(to_base64(text)) == text);
  CHECK(to_base64(std::string(2, '\0')) == "AAA=");
  for (const auto* wrong : {"a", "abc", "====", "ab=c", "a===", "ab c", "abcd\n", " abc", "abc-", "abc%"}) {
    CAPTURE(wrong);
    CHECK_FALSE(from_base64(wrong));
  }
}
