// What MUNGE's programs are asked, and what is believed of their answers.
#include "munge.hpp"

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "handshake.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;

namespace {

const std::string digits(64, 'd');

/// As unmunge 0.5.15 prints it, of a credential that user 1000 has sealed.
std::string opened(const std::string& payload, const std::string& uid = "1000") {
  return concat("STATUS:          0\nENCODE_HOST:     127.0.0.1\nTTL:             300\nUID:             ", uid,
                "\nGID:             1000\nUID_RESTRICTION: 1000\nLENGTH:          ", payload.size(), "\n\n", payload);
}

helper::Output ended(int code, const std::string& out, const std::string& err = "") { return {Exited{code}, out, err}; }

/// Why an answer is not believed; empty if it is.
std::string why_not(const helper::Output& answer, Errc code) {
  const auto secret = secret_of(answer, "12", 1000);
  if (secret) return {};
  CHECK(secret.error().code == code);
  return secret.error().message;
}

bool says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  UNSCOPED_INFO("'" << part << "' is not in: " << text);
  return false;
}

}  // namespace

TEST_CASE("MUNGE's programs are told who may read, and where munged is if Slurm has one of its own") {
  using Words = std::vector<std::string>;
  CHECK(munge_command({"12", ""}, 1000) == Words{"munge", "--restrict-uid=1000", "--cipher=aes128", "--ttl=300"});
  CHECK(munge_command({"12", "/run/slurm/munge"}, 0) ==
        Words{"munge", "--restrict-uid=0", "--cipher=aes128", "--ttl=300", "--socket=/run/slurm/munge"});
  CHECK(unmunge_command({"12", ""}) == Words{"unmunge", "--numeric"});
  CHECK(unmunge_command({"12", "/run/slurm/munge"}) == Words{"unmunge", "--numeric", "--socket=/run/slurm/munge"});
}

TEST_CASE("what munge prints is a credential, or why there is none") {
  CHECK(credential_of(ended(0, "MUNGE:AwQFAAC:\n")).value_or("") == "MUNGE:AwQFAAC:");
  for (const auto& text :
       {std::string(), std::string("what?\n"), "MUNGE:" + std::string(max_credential, 'A') + ":\n"}) {
    CHECK_FALSE(credential_of(ended(0, text)));
  }
  const auto none =
      credential_of(ended(6, "", "munge: Error: Failed to access \"/run/munge\" (Did you start munged?)\n"));
  REQUIRE_FALSE(none);
  CHECK(none.error().message == "munge: Error: Failed to access \"/run/munge\" (Did you start munged?)");
  CHECK(says(credential_of(ended(3, "")).error().message, "munge: "));
  const auto missing = credential_of(fail(Errc::not_found, "cannot start munge"));
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == Errc::not_found);
}

TEST_CASE("a credential of the same user in the same job has the secret") {
  const auto payload = credential_payload("12", digits);
  for (const int status : {0, 17}) {  // 17: it was opened on this machine before
    const auto secret = secret_of(ended(status, opened(payload)), "12", 1000);
    REQUIRE(secret);
    CHECK(secret->sign({"proof"}) == HmacKey(digits).sign({"proof"}));
  }
}

TEST_CASE("what is said of an agent that cannot know its coordinator by MUNGE") {
  const auto payload = credential_payload("12", digits);
  SECTION("the coordinator is another user's") {
    const std::string said = "unmunge: Error: Unauthorized credential for client UID=1000 GID=1000\n";
    CHECK(says(why_not(ended(18, "", said), Errc::invalid_argument), "another user"));
    CHECK(says(why_not(ended(0, opened(payload, "0")), Errc::invalid_argument),
               "belongs to user 0, and this ddrun to user 1000"));
    // Not what is in the payload.
    CHECK(says(why_not(ended(0, opened("UID: 1000\n\n" + payload, "1001")), Errc::invalid_argument), "user 1001"));
  }
  SECTION("of another job") {
    CHECK(says(why_not(ended(0, opened(credential_payload("13", digits))), Errc::invalid_argument),
               "belongs to Slurm job 13, and this ddrun to job 12"));
  }
  SECTION("it has expired, or comes too early: the clocks may be set, or the next one is fresh") {
    CHECK(says(why_not(ended(15, opened(payload)), Errc::unavailable), "has expired"));
    CHECK(says(why_not(ended(16, opened(payload)), Errc::unavailable), "the clocks of the two machines"));
  }
  SECTION("munged does not run here, or is slow") {
    const std::string said = "unmunge: Error: Failed to access \"/run/munge/munge.socket.2\"\n";
    CHECK(says(why_not(ended(6, "", said), Errc::unavailable), "is munged running? unmunge: Error: Failed to access"));
    CHECK(says(why_not(ended(7, ""), Errc::unavailable), "is munged running?"));
  }
  SECTION("it is of a cluster with another key, or none at all") {
    CHECK(says(why_not(ended(14, "", "unmunge: Error: Invalid credential\n"), Errc::invalid_argument), "same key"));
    CHECK(says(why_not(ended(8, ""), Errc::invalid_argument), "same key"));
    CHECK(says(why_not({Signaled{11}, "", ""}, Errc::invalid_argument), "same key"));
  }
  SECTION("unmunge cannot be started, or does not end") {
    CHECK(secret_of(fail(Errc::not_found, "none"), "12", 1000).error().code == Errc::invalid_argument);
    CHECK(secret_of(fail(Errc::timeout, "slow"), "12", 1000).error().code == Errc::unavailable);
  }
}

TEST_CASE("what is sealed there may be anything of that user's, and is not taken for a coordinator's") {
  const auto payload = credential_payload("12", digits);
  std::vector<std::string> others{"",
                                  "hello",
                                  "ddrun coordinator by MUNGE\n",
                                  payload + "more",
                                  payload + "\n",
                                  credential_payload("12", digits + "0"),
                                  credential_payload("", digits)};
  for (std::size_t size = 0; size < payload.size(); ++size) others.push_back(payload.substr(0, size));
  for (const auto& other : others) {
    CAPTURE(other);
    CHECK(says(why_not(ended(0, opened(other)), Errc::invalid_argument), "not of a ddrun"));
  }
  for (const std::string out :
       {"", "\n\n", "UID: 1000\n", "UID: me\n\n", "GID: 1000\n\n", "UID: -1\n\n", "UID: 99999999999\n\n"}) {
    CAPTURE(out);
    CHECK(says(why_not(ended(0, out + (out.ends_with("\n\n") ? payload : "")), Errc::invalid_argument),
               "not of a ddrun"));
  }
}
