#include <algorithm>

#include "ddrun/rendezvous/find_coordinator.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;

namespace {

using Addresses = std::vector<std::string>;
const Addresses loopback = {"127.0.0.1", "::1"};

LocalEndpoint chosen(const RendezvousSpec& spec) {
  auto place = choose_local_endpoint(spec);
  if (!place) FAIL(place.error().message);
  return *place;
}

RendezvousSpec at(const std::string& endpoint) {
  RendezvousSpec spec;
  spec.endpoint = endpoint;
  return spec;
}

bool is_uuid(const std::string& text) {
  return text.size() == 36 && text[8] == '-' && text[14] == '4' &&
         text.find_first_not_of("0123456789abcdef-") == std::string::npos;
}

}  // namespace

TEST_CASE("without options the workers use loopback at a free port") {
  const LocalEndpoint place = chosen({});
  CHECK(place.advertised == "127.0.0.1");
  CHECK(place.listen_on == loopback);
  CHECK(place.port == 0);
  CHECK(is_uuid(place.run_id));
  CHECK(chosen({}).run_id != place.run_id);
}

TEST_CASE("a name that the user gave to the job is kept") {
  RendezvousSpec spec;
  spec.id = "night run";
  CHECK(chosen(spec).run_id == "night run");
  spec.backend = "c10d";
  CHECK(chosen(spec).run_id == "night run");
  // --standalone overrides the rest of the command line.
  spec.standalone = true;
  CHECK(is_uuid(chosen(spec).run_id));
}

TEST_CASE("a static endpoint decides host and port") {
  CHECK(chosen(at("127.0.0.1:29500")).port == 29500);
  CHECK(chosen(at("127.0.0.1:29500")).listen_on == loopback);
  CHECK(chosen(at("127.0.0.1:0")).port == 0);
  CHECK(chosen(at("127.0.0.1:65535")).port == 65535);
  // Other agents could use this endpoint, and must know the job's id.
  CHECK(chosen(at("127.0.0.1:29500")).run_id == "none");

  const LocalEndpoint other = chosen(at("127.1.2.3:29500"));
  CHECK(other.advertised == "127.1.2.3");
  CHECK(other.listen_on == Addresses{"127.1.2.3", "127.0.0.1", "::1"});

  const LocalEndpoint far = chosen(at("10.1.2.3:29500"));
  CHECK(far.advertised == "10.1.2.3");
  CHECK(far.listen_on == Addresses{"10.1.2.3", "127.0.0.1", "::1"});
}

TEST_CASE("localhost stays localhost and any other name means this machine") {
  CHECK(chosen(at("localhost:29500")).advertised == "localhost");
  CHECK(chosen(at("localhost:29500")).listen_on == loopback);
  CHECK(chosen(at("node7.example:29500")).advertised == "127.0.0.1");
  CHECK(chosen(at("node7.example:29500")).listen_on == loopback);
  CHECK(chosen(at("node7.example:29500")).port == 29500);
}

TEST_CASE("IPv6 endpoints stand in brackets") {
  const LocalEndpoint place = chosen(at("[::1]:29500"));
  CHECK(place.advertised == "::1");
  CHECK(place.listen_on == Addresses{"::1", "127.0.0.1"});
  CHECK(place.port == 29500);
  CHECK(chosen(at("[fd00::5]:7")).advertised == "fd00::5");
  CHECK(chosen(at("[fd00::5]:7")).listen_on.front() == "fd00::5");
}

TEST_CASE("no wildcard address is listened on") {
  RendezvousSpec spec;
  SECTION("as a static endpoint") { spec.endpoint = GENERATE("0.0.0.0:29500", "[::]:29500"); }
  SECTION("as the local address") { spec.local_addr = GENERATE("0.0.0.0", "::"); }
  SECTION("as the master address") {
    spec.master_addr = "0.0.0.0";
    spec.master_port = 29500;
  }
  const LocalEndpoint place = chosen(spec);
  CHECK(place.advertised == "127.0.0.1");
  CHECK(place.listen_on == loopback);
}

TEST_CASE("master address and port mean the same as a static endpoint") {
  RendezvousSpec spec;
  spec.master_port = 4000;
  CHECK(chosen(spec).advertised == "127.0.0.1");
  CHECK(chosen(spec).port == 4000);
  CHECK(chosen(spec).run_id == "none");
  spec.master_addr = "localhost";
  CHECK(chosen(spec).advertised == "localhost");
  // The endpoint is the newer spelling.
  spec.endpoint = "127.0.0.1:5000";
  CHECK(chosen(spec).port == 5000);
}

TEST_CASE("standalone and c10d choose a free port whatever the endpoint is") {
  RendezvousSpec spec = at("10.1.2.3:29500");
  SECTION("standalone") { spec.standalone = true; }
  SECTION("c10d") { spec.backend = "c10d"; }
  const LocalEndpoint place = chosen(spec);
  CHECK(place.advertised == "127.0.0.1");
  CHECK(place.listen_on == loopback);
  CHECK(place.port == 0);
  // With c10d other agents could use the endpoint, and the job.
  if (spec.standalone) CHECK(is_uuid(place.run_id));
  else CHECK(place.run_id == "none");
}

TEST_CASE("the local address is advertised if no endpoint is named") {
  RendezvousSpec spec;
  spec.local_addr = "10.1.2.3";
  CHECK(chosen(spec).advertised == "10.1.2.3");
  CHECK(chosen(spec).listen_on.front() == "10.1.2.3");
  spec.endpoint = "127.0.0.1:29500";
  CHECK(chosen(spec).advertised == "127.0.0.1");
}

TEST_CASE("an invalid endpoint is refused with a reason") {
  const std::string endpoint = GENERATE("127.0.0.1", "localhost:", "localhost:x", "localhost:65536", "localhost:-1",
                                        "localhost:29500x", "[::1]", "::1", "[::1]29500", "[::1");
  CAPTURE(endpoint);
  const auto place = choose_local_endpoint(at(endpoint));
  REQUIRE_FALSE(place);
  CHECK(place.error().code == Errc::invalid_argument);
  CHECK(place.error().message.find(endpoint) != std::string::npos);
  CHECK(place.error().message.find("port") != std::string::npos);
}
