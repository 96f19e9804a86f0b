#include "ddrun/cluster/hosts.hpp"

#include <string>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::cluster;

namespace {

/// "a*4 b*0"; an error as message in angle brackets.
std::string shown(const Result<std::vector<Host>>& hosts) {
  if (!hosts) return concat("<", hosts.error().message, ">");
  std::vector<std::string> words;
  for (const Host& host : *hosts) words.push_back(concat(host.name, "*", host.slots));
  return join(words, " ");
}
std::string listed(std::string_view text) { return shown(parse_hosts(text)); }
std::string filed(std::string_view text) { return shown(parse_hostfile(text, "hosts")); }

}  // namespace

TEST_CASE("a list of hosts names each with its slots") {
  CHECK(listed("a") == "a*0");
  CHECK(listed("a,b:4,c") == "a*0 b*4 c*0");
  CHECK(listed(" a , b ") == "a*0 b*0");
  CHECK(listed("user@a.example.org:2") == "user@a.example.org*2");
  CHECK(listed("10.0.0.1:8,10.0.0.2") == "10.0.0.1*8 10.0.0.2*0");
  CHECK(listed("[fd00::1]:4,[fd00::2],fd00::3,fe80::1%eth0") == "fd00::1*4 fd00::2*0 fd00::3*0 fe80::1%eth0*0");
  CHECK(listed("me@[fd00::1]:4") == "me@fd00::1*4");
  CHECK(listed("gpu[08-10,12]:2,x") == "gpu08*2 gpu09*2 gpu10*2 gpu12*2 x*0");
}

TEST_CASE("hosts that are named again add up") {
  CHECK(listed("a,b,a") == "a*2 b*0");
  CHECK(listed("a,a,a") == "a*3");
  CHECK(listed("a:2,a:3") == "a*5");
  CHECK(listed("a,a:3") == "a*4");
  CHECK(filed("a\nb slots=2\na\nb slots=2\n") == "a*2 b*4");
  CHECK(listed("a:60000,a:60000") == "<a would have 120000 slots, more than 100000>");
}

TEST_CASE("what is no list of hosts is refused with the reason") {
  CHECK(listed("") == "<no host is named; write for example a,b:4,c>");
  CHECK(listed("a,,b") == "<'a,,b' has an empty place between its commas>");
  CHECK(listed("a,") == "<'a,' has an empty place between its commas>");
  CHECK(listed(":4") == "<':4' names no host>");
  CHECK(listed("a:") == "<'' behind a is not a number of slots from 1 to 100000>");
  CHECK(listed("a:0") == "<'0' behind a is not a number of slots from 1 to 100000>");
  CHECK(listed("a:x") == "<'x' behind a is not a number of slots from 1 to 100000>");
  CHECK(listed("[fd00::1") == "<'[fd00::1': the bracket of the address is not closed>");
  CHECK(listed("[fd00::1]4") == "<'[fd00::1]4': only :SLOTS may follow the bracket>");
  CHECK(listed("[a]:4") == "<'[a]:4' has no IPv6 address in brackets>");
  CHECK(listed("-oProxyCommand=x") == "<'-oProxyCommand=x': a host's name does not begin with '-'>");
  CHECK(listed("me@-x") == "<'me@-x' is not USER@HOST>");
  CHECK(listed("@a") == "<'@a' is not USER@HOST>");
  CHECK(listed("a;rm") == "<'a;rm' is not the name or address of a host>");
  CHECK(listed("a b") == "<'a b' is not the name or address of a host>");
  CHECK(listed("a[1-3") == "<'a[1-3' is no host list: its brackets do not match>");
}

TEST_CASE("both forms of host files are understood") {
  CHECK(filed("\xef\xbb\xbf"
              "a slots=2\r\n\r\n# c\r\nb:3 \r\n") == "a*2 b*3");
  CHECK(filed("# cluster\n\na slots=4 max-slots=8\r\n  b   slots = 2 # the old one\nc max_slots=1\n") == "a*4 b*2 c*0");
  CHECK(filed("a:4\nb:2\nc\n") == "a*4 b*2 c*0");
  CHECK(filed("me@a slots=2\n[fd00::1]:3\nfd00::2 slots=1") == "me@a*2 fd00::1*3 fd00::2*1");
  CHECK(filed("n[01-02] slots=2\n") == "n01*2 n02*2");
}

TEST_CASE("host files of batch systems are parsed") {
  CHECK(filed("n1.cluster\nn1.cluster\nn2.cluster\nn2.cluster\n") == "n1.cluster*2 n2.cluster*2");  // PBS, LSF
  CHECK(filed("n1\nn2\n") == "n1*0 n2*0");
  CHECK(filed("n1 4 all.q@n1 UNDEFINED\nn2 2 all.q@n2 0,0:0,1\n") == "n1*4 n2*2");  // SGE
  CHECK(filed("n1 4 all.q@n1 <NULL>\nn1 2 other.q@n1 <NULL>\n") == "n1*6");
  CHECK(filed("n1 0 all.q@n1 UNDEFINED\n") == "<hosts:1: '0' behind n1 is not a number of slots from 1 to 100000>");
}

TEST_CASE("errors of host files name the line") {
  CHECK(filed("") == "<hosts: no host is named in it>");
  CHECK(filed("# nothing\n\n") == "<hosts: no host is named in it>");
  CHECK(filed("a\nb slots=x\n") == "<hosts:2: 'x' behind b slots is not a number of slots from 1 to 100000>");
  CHECK(filed("a b\n") == "<hosts:1: 'b' behind a is not understood; one host on each line>");
  CHECK(filed("a:4 slots=2\n") == "<hosts:1: the slots of a are given twice on one line>");
  CHECK(filed("a slots=8 max-slots=4\n") == "<hosts:1: a has slots=8, more than its max-slots=4>");
  CHECK(filed("a color=red\n") == "<hosts:1: 'color' is not understood; known are slots=N and max-slots=N>");
  CHECK(filed("a user=me\n") ==
        "<hosts:1: 'user' is not understood; known are slots=N and max-slots=N; write USER@HOST>");
  CHECK(filed("\n\n-x slots=1\n") == "<hosts:3: '-x': a host's name does not begin with '-'>");
}

TEST_CASE("a number of workers beside the hosts' own numbers is compared with them") {
  const auto compared = [](const std::string& hosts, int count) { return compare_count(*parse_hosts(hosts), count); };
  CHECK(compared("a,b", 8).empty());
  CHECK(compared("a:8,b:8", 8).empty());
  CHECK(compared("a:8,b", 8).empty());
  CHECK(compared("a:8", 8).empty());
  CHECK(compared("a:4,b:4", 8) ==
        "--nproc-per-node=8 starts 8 workers on each of 2 hosts, 16 in all, not the 4 of a; without it the hosts' own "
        "numbers count, 8 in all");
  CHECK(compared("a:2,b:4", 2) ==
        "--nproc-per-node=2 starts 2 workers on each of 2 hosts, 4 in all, not the 4 of b; without it the hosts' own "
        "numbers count, 6 in all");
  CHECK(compared("a:4", 1) ==
        "--nproc-per-node=1 starts 1 worker on a, not the 4 of a; without it the hosts' own "
        "numbers count, 4 in all");
}
