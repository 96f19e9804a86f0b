#include "ddrun/cluster/hosts.hpp"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::cluster;

namespace {

/// Joined with blanks; an error as message in angle brackets.
std::string expanded(std::string_view text, std::size_t limit = max_hosts) {
  const auto hosts = expand_hostlist(text, limit);
  return hosts ? join(*hosts, " ") : concat("<", hosts.error().message, ">");
}

/// Host lists for which scontrol and ddrun must agree.
const std::vector<std::string> samples = {"a",
                                          "a,b,c",
                                          "a[1-3]",
                                          "a[001-003,7],b2",
                                          "n[08-11]",
                                          "n[8-11]",
                                          "n[098-102]",
                                          "gpu[1,3,5-7]",
                                          "r[1-2]n[1-2]",
                                          "r[1-2]c[0-1]n[01-03]",
                                          "a[1-2]b[1-3]c[1-2]d[1-2]",
                                          "a[1-2]b[5]c[1-2]",
                                          "a[1-2]b[1-2]c[5]",
                                          "n[01-1]",
                                          "n[1-010]",
                                          "node-a[1-2],node-b[10-12]",
                                          "a[0-0]",
                                          "dgx-07,dgx-09",
                                          "b,a,b",
                                          "n[3,1-2]"};

}  // namespace

TEST_CASE("host lists are expanded in their order") {
  CHECK(expanded("a") == "a");
  CHECK(expanded("a[001-003,7],b2") == "a001 a002 a003 a7 b2");
  CHECK(expanded("n[08-11]") == "n08 n09 n10 n11");
  CHECK(expanded("n[8-11]") == "n8 n9 n10 n11");
  CHECK(expanded("r[1-2]n[1-2]") == "r1n1 r1n2 r2n1 r2n2");
  CHECK(expanded("r[1-2]c[1-2]n[1-2]") == "r1c1n1 r1c1n2 r2c1n1 r2c1n2 r1c2n1 r1c2n2 r2c2n1 r2c2n2");
  CHECK(expanded("r[1-2]n[1-2].ib,x") == "r1n1.ib r1n2.ib r2n1.ib r2n2.ib x");
  CHECK(expanded("b,a,b") == "b a b");
  CHECK(expanded("[1-2]") == "1 2");
  CHECK(expanded("a, b\tc\n") == "a b c");
  CHECK(expanded("a,,b,") == "a b");
}

TEST_CASE("what is no host list is refused with the reason") {
  CHECK(expanded("") == "<'' is no host list: it names no host>");
  CHECK(expanded(",") == "<',' is no host list: it names no host>");
  CHECK(expanded("a[1-2") == "<'a[1-2' is no host list: its brackets do not match>");
  CHECK(expanded("a1-2]") == "<'a1-2]' is no host list: its brackets do not match>");
  CHECK(expanded("a[[1]]") == "<'a[[1]]' is no host list: its brackets do not match>");
  CHECK(expanded("a[]") == "<'a[]' is no host list: '' is neither a number nor a range of numbers>");
  CHECK(expanded("a[1-]") == "<'a[1-]' is no host list: '1-' is neither a number nor a range of numbers>");
  CHECK(expanded("a[x]") == "<'a[x]' is no host list: 'x' is neither a number nor a range of numbers>");
  CHECK(expanded("a[3-1]") == "<'a[3-1]' is no host list: the range 3-1 goes down>");
}

TEST_CASE("a host list cannot fill the memory") {
  CHECK(expanded("a[1-10]", 10) == "a1 a2 a3 a4 a5 a6 a7 a8 a9 a10");
  CHECK(expanded("a[1-10],b", 10) == "<'a[1-10],b' is no host list: it names more than 10 hosts>");
  CHECK(expanded("a[1-11]", 10) == "<'a[1-11]' is no host list: it names more than 10 hosts>");
  CHECK(expanded("a[1-4]b[1-4]", 10) == "<'a[1-4]b[1-4]' is no host list: it names more than 10 hosts>");
  for (const std::string text :
       {"a[0-999999999999]", "a[1-60000]b[1-60000]c[1-60000]d[1-60000]e[1-60000]", "a[1-60000],b[1-60000]"}) {
    const auto hosts = expand_hostlist(text);
    REQUIRE_FALSE(hosts);
    CHECK(hosts.error().message.find("more than 65536 hosts") != std::string::npos);
  }
}

TEST_CASE("host lists are expanded as scontrol does") {
  if (::system("command -v scontrol >/dev/null 2>&1") != 0) {
    ddrun::test::skip("scontrol (Debian: slurm-client) is not installed");
  }
  // scontrol needs a configuration file.
  const std::string conf = concat("/tmp/ddrun-scontrol-", ::getpid(), ".conf");
  FILE* file = ::fopen(conf.c_str(), "w");
  REQUIRE(file != nullptr);
  ::fputs("ClusterName=none\nSlurmctldHost=none\nNodeName=none\nPartitionName=none Nodes=none\n", file);
  ::fclose(file);
  REQUIRE(::setenv("SLURM_CONF", conf.c_str(), 1) == 0);
  for (const std::string& sample : samples) {
    CAPTURE(sample);
    FILE* pipe = ::popen(concat("scontrol show hostnames '", sample, "'").c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::string said;
    for (int c = ::fgetc(pipe); c != EOF; c = ::fgetc(pipe)) said += c == '\n' ? ' ' : static_cast<char>(c);
    CHECK(::pclose(pipe) == 0);
    CHECK(said == expanded(sample) + " ");
  }
  ::unlink(conf.c_str());
}
