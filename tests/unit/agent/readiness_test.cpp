#include "readiness.hpp"

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::agent;

TEST_CASE("a service is asked more seldom the longer it takes, within bounds") {
  CHECK(probe_pause(Milliseconds{0}, false) == Milliseconds{20});
  CHECK(probe_pause(Milliseconds{0}, true) == Milliseconds{100});
  CHECK(probe_pause(Milliseconds{3'200}, false) == Milliseconds{50});
  CHECK(probe_pause(Milliseconds{3'200}, true) == Milliseconds{100});
  CHECK(probe_pause(Milliseconds{16'000}, false) == Milliseconds{250});
  CHECK(probe_pause(Milliseconds{16'000}, true) == Milliseconds{250});
  for (const bool has_answered : {false, true}) {
    CHECK(probe_pause(std::chrono::hours(24 * 3650), has_answered) == Milliseconds{500});
    Milliseconds before{has_answered ? 100 : 20};
    for (Milliseconds waited{0}; waited < std::chrono::seconds(60); waited += Milliseconds{1}) {
      const Milliseconds pause = probe_pause(waited, has_answered);
      const bool is_in_bounds = before <= pause && pause <= Milliseconds{500};
      if (!is_in_bounds) FAIL(pause.count() << " ms after " << waited.count());
      before = pause;
    }
    CHECK(before == Milliseconds{500});
  }
}

TEST_CASE("a service that starts within seconds is found ready a tenth of a second later at most") {
  for (Milliseconds waited{0}; waited <= std::chrono::seconds(5); waited += Milliseconds{1}) {
    if (probe_pause(waited, false) > Milliseconds{100}) FAIL("after " << waited.count() << " ms");
  }
  // A slow one is not asked much more often than the bounds say.
  int probes = 0;
  for (Milliseconds waited{0}; waited < std::chrono::minutes(30); waited += probe_pause(waited, false)) ++probes;
  CHECK(probes < 4'000);
}

TEST_CASE("a first line of HTTP with a status of 2xx says that a service is ready") {
  for (const char* line : {"HTTP/1.1 200 OK", "HTTP/1.0 200 OK", "HTTP/1.1 204 No Content", "HTTP/1.1 200",
                           "HTTP/1.1 299 ", "HTTP/2 202 Accepted", "HTTP/1.1 200 503"}) {
    CAPTURE(line);
    CHECK(is_ready_answer(line));
  }
  for (const char* line :
       {"HTTP/1.1 503 Service Unavailable", "HTTP/1.1 404 Not Found", "HTTP/1.1 302 Found", "HTTP/1.1 100 Continue",
        "HTTP/1.1 500 200 OK", "HTTP/1.1  200 OK", "HTTP/1.1 OK", "HTTP/1.1 ", "HTTP/1.1", "HTTP/", "HTTP 200 OK",
        "http/1.1 200 OK", " HTTP/1.1 200 OK", "ICY 200 OK", "200 OK", "220 mail ESMTP", " 200", ""}) {
    CAPTURE(line);
    CHECK_FALSE(is_ready_answer(line));
  }
}
