#include "ddrun/rendezvous/hmac.hpp"

#include "ddrun/test/catch.hpp"
#include "ddrun/test/store_wire.hpp"

using namespace ddrun::rendezvous;
using ddrun::test::hex;
using ddrun::test::unhex;

namespace {

std::string hmac(std::string_view key, std::string_view data) { return hex(view(HmacKey(key).sign({data}))); }

}  // namespace

// RFC 4231, section 4: cases 1 to 4, 6 and 7. Keys longer than a block come in the last two.
TEST_CASE("HMAC-SHA256 matches the RFC's test cases") {
  CHECK(hmac(std::string(20, '\x0b'), "Hi There") ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hmac("Jefe", "what do ya want for nothing?") ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hmac(std::string(20, '\xaa'), std::string(50, '\xdd')) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  CHECK(hmac(unhex("0102030405060708090a0b0c0d0e0f10111213141516171819"), std::string(50, '\xcd')) ==
        "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK(hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(hmac(std::string(131, '\xaa'),
             "This is a test using a larger than block-size key and a larger than block-size data. The key needs to be "
             "hashed before being used by the HMAC algorithm.") ==
        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST_CASE("a sum over parts is that over the whole") {
  const HmacKey key("a secret");
  CHECK(key.sign({"one", "", "two and three"}) == key.sign({"onetwo and three"}));
  CHECK(key.sign({}) == key.sign({""}));
  CHECK(key.sign({"one"}) != HmacKey("another secret").sign({"one"}));
}

TEST_CASE("comparison in constant time compares") {
  CHECK(equal_in_constant_time("", ""));
  CHECK(equal_in_constant_time("abc", "abc"));
  CHECK_FALSE(equal_in_constant_time("abc", "abd"));
  CHECK_FALSE(equal_in_constant_time("abc", "ab"));
}
