// Access to etcd: TLS, users, and endpoints that are not etcd.

#include <algorithm>

#include "by_etcd.hpp"
#include "ddrun/test/ports.hpp"
#include "etcd_cluster.hpp"

using namespace ddrun;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

/// Of a candidate that ends at once: the sentence on the program's stderr.
std::string refusal(const lease::EtcdOptions& etcd, const std::string& user = {}) {
  Candidates candidates;
  Candidate& one = candidates.add("one", by_etcd(etcd, {"job", ttl}, user));
  one.lease->campaign("one:1");
  REQUIRE(candidates.run_until([&] { return one.unusable.has_value(); }));
  CAPTURE(one.log);
  CHECK(one.log.size() == 1);
  CHECK_THAT(*one.unusable, Catch::Matchers::StartsWith("the lease's program does not work: "));
  const std::string ended = " exited with code 1: ";
  const auto at = one.unusable->find(ended);
  REQUIRE(at != std::string::npos);
  return one.unusable->substr(at + ended.size());
}

void check_works(const lease::EtcdOptions& etcd, const std::string& user = {}) {
  Candidates candidates;
  Candidate& one = candidates.add("one", by_etcd(etcd, {"job", ttl}, user));
  one.lease->campaign("one:1");
  REQUIRE(candidates.run_until([&] { return one.is_leader(); }));
  std::optional<Result<void>> resigned;
  // Beyond the time to live: renewal works that way, too.
  candidates.run_for(ttl + 500ms);
  CHECK(one.is_leader());
  one.lease->resign(one.into(resigned));
  REQUIRE(candidates.run_until([&] { return resigned.has_value(); }));
  CHECK(resigned->has_value());
}

/// A certificate authority of openssl, and its certificates.
class Authority {
 public:
  Authority() {
    run({"openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=ddrun test", "-keyout",
         file("ca.key"), "-out", file("ca.pem")});
  }
  [[nodiscard]] std::string file(const std::string& name) const { return directory_.file(name); }
  void sign(const std::string& name, const std::string& alternatives) const {
    run({"openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=" + name, "-keyout", file(name + ".key"),
         "-out", file(name + ".csr")});
    const auto extensions =
        directory_.file(name + ".ext", "subjectAltName=" + alternatives + "\nextendedKeyUsage=serverAuth,clientAuth\n");
    run({"openssl", "x509", "-req", "-days", "2", "-in", file(name + ".csr"), "-CA", file("ca.pem"), "-CAkey",
         file("ca.key"), "-CAcreateserial", "-extfile", extensions, "-out", file(name + ".pem")});
  }

 private:
  static void run(const std::vector<std::string>& argv) {
    const auto done = Run(argv).wait(60s);
    INFO(done.err);
    REQUIRE(done.code() == 0);
  }
  TemporaryDirectory directory_;
};

}  // namespace

TEST_CASE("TLS: with certificates on both sides, and each invalid one is reported") {
  if (Run({"sh", "-c", "command -v openssl"}).wait().code() != 0) skip("openssl not installed");
  const Authority authority, strangers;
  authority.sign("server", "IP:127.0.0.1");
  authority.sign("agent", "DNS:agent.example");
  const EtcdCluster cluster(
      EtcdCluster::Options{1, 0, authority.file("ca.pem"), authority.file("server.pem"), authority.file("server.key")});
  const lease::EtcdOptions etcd{cluster.endpoints(), true, authority.file("ca.pem"), authority.file("agent.pem"),
                                authority.file("agent.key")};
  check_works(etcd);

  auto wrong = etcd;
  wrong.cacert = strangers.file("ca.pem");
  CHECK_THAT(refusal(wrong), test::contains("certificate signed by unknown authority"));
  // A host name that is not in the certificate.
  wrong = etcd;
  wrong.endpoints.replace(0, sizeof "127.0.0.1" - 1, "localhost");
  CHECK_THAT(refusal(wrong), test::contains("certificate is"));
  wrong = etcd;
  wrong.cacert = authority.file("missing.pem");
  CHECK_THAT(refusal(wrong), test::contains(wrong.cacert));
  wrong = etcd;
  wrong.key = authority.file("ca.key");
  CHECK_THAT(refusal(wrong), test::contains("private key does not match"));

  // Without a certificate or TLS the connection is closed without a reason.
  for (const auto& without :
       {lease::EtcdOptions{cluster.endpoints(), true, etcd.cacert}, lease::EtcdOptions{cluster.endpoints()}}) {
    Candidates candidates;
    Candidate& one = candidates.add("one", by_etcd(without));
    CHECK(candidates.run_until([&] { return !one.log.empty(); }));
    CHECK_THAT(one.log[0], test::contains("etcd"));
  }
}

TEST_CASE("users and passwords") {
  const EtcdCluster cluster(1);
  const lease::EtcdOptions etcd{cluster.endpoints()};
  cluster.etcdctl({"user", "add", "root:secret"});
  cluster.etcdctl({"user", "grant-role", "root", "root"});
  cluster.etcdctl({"user", "add", "agent:right \"$'"});
  cluster.etcdctl({"role", "add", "jobs"});
  cluster.etcdctl({"role", "grant-permission", "jobs", "--prefix=true", "readwrite", "/ddrun/"});
  cluster.etcdctl({"user", "grant-role", "agent", "jobs"});
  cluster.etcdctl({"user", "add", "stranger:right"});
  cluster.etcdctl({"auth", "enable"});
  check_works(etcd, "agent:right \"$'");
  CHECK(refusal(etcd, "agent:wrong") ==
        "cannot use etcd: etcdserver: authentication failed, invalid user ID or password");
  CHECK(refusal(etcd, "stranger:right") == "cannot use etcd: etcdserver: permission denied");
  CHECK(refusal(etcd) == "cannot use etcd: etcdserver: user name is empty");
  CHECK(refusal(etcd, "agent") == "the user of etcd needs a password: give NAME:PASSWORD");
}

TEST_CASE("a user who may read and not write follows, and is told why it cannot lead") {
  const EtcdCluster cluster(1);
  const lease::EtcdOptions etcd{cluster.endpoints()};
  cluster.etcdctl({"user", "add", "root:secret"});
  cluster.etcdctl({"user", "grant-role", "root", "root"});
  cluster.etcdctl({"user", "add", "reader:right"});
  cluster.etcdctl({"role", "add", "reads"});
  cluster.etcdctl({"role", "grant-permission", "reads", "--prefix=true", "read", "/ddrun/"});
  cluster.etcdctl({"user", "grant-role", "reader", "reads"});
  cluster.etcdctl({"auth", "enable"});
  CHECK(refusal(etcd, "reader:right") == "cannot use etcd: etcdserver: permission denied");

  Candidates candidates;
  Candidate& leader = candidates.add("leader", by_etcd(etcd, {"job", ttl}, "root:secret"));
  leader.lease->campaign("leader:1");
  Candidate& reader = candidates.add("reader", by_etcd(etcd, {"job", ttl}, "reader:right"));
  REQUIRE(candidates.run_until([&] { return reader.follows("leader:1"); }));
  // It works; what comes now is no reason to give up.
  reader.lease->campaign("reader:1");
  leader.crash();
  REQUIRE(candidates.run_until([&] { return reader.has_logged("etcdserver: permission denied"); }));
  candidates.run_for(2 * ttl);
  CHECK_FALSE(reader.has_logged("etcd answers again"));
}

TEST_CASE("an endpoint that is not etcd is reported, and asked again") {
  const int port = free_port();
  const Run server({"python3", "-m", "http.server", "--bind", "127.0.0.1", std::to_string(port)});
  const auto at = concat("127.0.0.1:", port);
  REQUIRE(wait_until([&] {
    return Run({"bash", "-c", concat("exec 3<>/dev/tcp/127.0.0.1/", port)}).wait().code() == 0;
  }));
  Candidates candidates;
  Candidate& one = candidates.add("one", by_etcd({at}));
  one.lease->campaign("one:1");
  CHECK(candidates.run_until([&] { return one.has_logged(concat("status: etcd cannot be asked: ", at, ": ")); }));
  candidates.run_for(2 * ttl);
  CHECK(one.log.size() == 1);
}

TEST_CASE("endpoints of etcd get a port and a scheme") {
  const auto urls = [](const std::string& endpoints, bool tls) { return lease::etcd_command({endpoints, tls})[4]; };
  CHECK(urls("a,b:1,[::1],::1", false) == "a:2379,b:1,[::1]:2379,[::1]:2379");
  CHECK(urls("a:1,https://b:1,http://c", true) == "https://a:1,https://b:1,http://c");
}
