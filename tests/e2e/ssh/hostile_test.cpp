// --hosts: what a host may say. A script plays ssh, and what comes from a host that has been taken over.
#include "../job.hpp"

using namespace ddrun::test;

namespace {

/// Says as "evil" that it is there, what `frames` prints, and that it has ended well. Any other host is this machine.
Outcome with_evil_host(const std::string& hosts, const std::string& frames) {
  const TemporaryDirectory dir;
  const std::string reach = dir.file("reach", R"(#!/bin/sh
if [ "$1" = evil ]; then
  id=${2#*i=}
  printf 'ddrun-agent-%s-runs\n' "${id%%;*}"
  printf '\000\000\000\020\377\377\377\377\006{"addresses":[]}'
  )" + frames + R"(
  printf '\000\000\000\001\377\377\377\377\0150'
  while read line; do :; done
else
  exec /bin/sh -c "$2"
fi
)",
                                     0755);
  return finish(
      command({"--ssh=" + reach, "--hosts=" + hosts, "--shutdown-timeout=1s", "--", "sh", "-c", "exec sleep 1000"}));
}

}  // namespace

TEST_CASE("A host cannot end the job in the name of another") {
  // "ended 0" of host 0, of a host that is not there, and a line of host 0.
  for (const std::string frame :
       {R"(printf '\000\000\000\001\000\000\000\000\0150')", R"(printf '\000\000\000\001\000\000\000\011\0150')",
        R"(printf '\000\000\000\005\000\000\000\000\007evil\n')"}) {
    CAPTURE(frame);
    const auto outcome = with_evil_host("good,evil", frame);
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 125);
    CHECK(count(outcome.err, "ddrun: error: lost the connection to host evil: it spoke for another host\n") == 1);
    CHECK_FALSE(has(outcome.out, "evil"));
  }
}
