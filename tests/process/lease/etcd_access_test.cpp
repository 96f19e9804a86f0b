// Access to etcd: TLS, users, and endpoints that are not etcd.

#include <algorithm>

#include "by_etcd.hpp"
#include "ddrun/test/ports.hpp"
#include "etcd_cluster.hpp"

using namespace ddrun;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

etcd::EtcdOptions of(const std::vector<std::string>& endpoints) {
  etcd::EtcdOptions etcd;
  etcd.endpoints = endpoints;
  return etcd;
}

/// The only message it reports.
std::string refusal(const MakeLease& make) {
  Candidates candidates;
  Candidate& one = candidates.add("one", make);
  one.lease->campaign("one:1");
  REQUIRE(candidates.run_until([&] { return one.unusable.has_value(); }));
  candidates.run_for(300ms);
  CAPTURE(one.log);
  // A slow response may have been reported before.
  CHECK(std::count_if(one.log.begin(), one.log.end(),
                      [](const std::string& line) { return line.starts_with("unusable"); }) == 1);
  CHECK(one.log.back().starts_with("unusable"));
  const std::string ended = " exited with code 1: ";
  const auto at = one.unusable->find(ended);
  REQUIRE(at != std::string::npos);
  CHECK_THAT(*one.unusable, Catch::Matchers::StartsWith("the lease's program does not work: "));
  return one.unusable->substr(at + ended.size());
}
std::string refusal(const etcd::EtcdOptions& etcd) { return refusal(by_etcd(etcd)); }

/// The error of invalid options; for those of the program, the program's own.
std::string option_error(const MakeLease& make) {
  boost::asio::io_context io;
  const auto made = make(io.get_executor(), {});
  if (made) return refusal(make);
  REQUIRE_FALSE(made);
  CHECK(made.error().code == Errc::invalid_argument);
  return made.error().message;
}

void check_works(const etcd::EtcdOptions& etcd) {
  Candidates candidates;
  Candidate& one = candidates.add("one", by_etcd(etcd));
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
      EtcdCluster::Options{1, authority.file("ca.pem"), authority.file("server.pem"), authority.file("server.key")});
  auto etcd = of(cluster.endpoints());
  {
    Candidates candidates;
    Candidate& one = candidates.add("one", by_etcd(etcd));
    REQUIRE(candidates.run_until([&] { return one.has_logged("status: "); }));
    CHECK_THAT(one.log[0], test::contains("https"));
  }
  etcd.tls = true;
  CHECK_THAT(refusal(etcd), test::contains("its certificate is not trusted: "));
  etcd.cacert = authority.file("ca.pem");
  etcd.cert = authority.file("agent.pem");
  etcd.key = authority.file("agent.key");
  check_works(etcd);
  auto wrong = etcd;
  wrong.cacert = strangers.file("ca.pem");
  CHECK_THAT(refusal(wrong), test::contains("its certificate is not trusted: "));
  // A host name that is not in the certificate.
  wrong = etcd;
  const auto port = split(etcd.endpoints[0], ':')[1];
  wrong.endpoints = {"localhost:" + port};
  CHECK_THAT(refusal(wrong), test::contains("its certificate is for another host"));

  // Invalid files are reported at once.
  wrong = etcd;
  wrong.cacert = authority.file("missing.pem");
  CHECK_THAT(option_error(by_etcd(wrong)), test::contains("cannot use " + wrong.cacert + " as cacert: "));
  wrong = etcd;
  wrong.key = authority.file("ca.key");
  CHECK_THAT(option_error(by_etcd(wrong)), test::contains("cannot use " + wrong.key + " as key: "));
  wrong = etcd;
  wrong.key.clear();
  CHECK_THAT(option_error(by_etcd(wrong)), test::contains("give both or none"));
  wrong = etcd;
  wrong.tls = false;
  CHECK_THAT(option_error(by_etcd(wrong)), test::contains("certificates are for etcd with TLS"));
}

TEST_CASE("users and passwords") {
  const EtcdCluster cluster(1);
  auto etcd = of(cluster.endpoints());
  etcd.user = "agent";
  etcd.password = "right";
  cluster.etcdctl({"user", "add", "root:secret"});
  cluster.etcdctl({"user", "grant-role", "root", "root"});
  cluster.etcdctl({"user", "add", "agent:right"});
  cluster.etcdctl({"role", "add", "jobs"});
  cluster.etcdctl({"role", "grant-permission", "jobs", "--prefix=true", "readwrite", "/ddrun/"});
  cluster.etcdctl({"user", "grant-role", "agent", "jobs"});
  cluster.etcdctl({"user", "add", "stranger:right"});
  cluster.etcdctl({"auth", "enable"});
  check_works(etcd);
  etcd.password = "wrong \"\xff";
  CHECK(refusal(etcd) == "etcd refuses user 'agent': etcdserver: authentication failed, invalid user ID or password");
  etcd.user = "stranger";
  etcd.password = "right";
  CHECK(refusal(etcd) == "etcd does not let user 'stranger' use keys below /ddrun/: etcdserver: permission denied");
  etcd.user.clear();
  CHECK_THAT(refusal(etcd), Catch::Matchers::StartsWith("etcd wants a user and a password"));
}

TEST_CASE("an expired token is renewed") {
  EtcdCluster cluster(1);
  auto etcd = of(cluster.endpoints());
  etcd.user = "root";
  etcd.password = "secret";
  const auto as_root = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "--user=root:secret");
    cluster.etcdctl(words);
  };
  cluster.etcdctl({"user", "add", "root:secret"});
  cluster.etcdctl({"user", "grant-role", "root", "root"});
  cluster.etcdctl({"auth", "enable"});
  Candidates candidates;
  Candidate& one = candidates.add("one", by_etcd(etcd));
  one.lease->campaign("one:1");
  REQUIRE(candidates.run_until([&] { return one.is_leader(); }));
  const auto term = one.leader->term;
  SECTION("it has restarted, and keeps them in memory") {
    cluster.kill(0);
    cluster.start(0);
  }
  SECTION("its users have changed: \"revision of auth store is old\"") { as_root({"user", "add", "other:secret"}); }
  SECTION("it has forgotten them: \"invalid auth token\"") {
    as_root({"auth", "disable"});
    cluster.etcdctl({"auth", "enable"});
  }
  // Detected at the next renewal, or at a new request at the latest.
  std::optional<Result<void>> resigned;
  one.lease->resign(one.into(resigned));
  REQUIRE(candidates.run_until([&] { return resigned.has_value(); }));
  one.lease->campaign("one:2");
  REQUIRE(candidates.run_until([&] { return one.is_leader(); }, 60s));
  CHECK(one.leader->term > term);
  CHECK_FALSE(one.unusable);
}

TEST_CASE("an endpoint that is not etcd, or an unsupported version") {
  // Replies like etcd 2 without API v3, like a web server, or like ssh.
  struct Peer {
    const char* answer;
    const char* error;
  };
  const Peer peer = GENERATE(
      Peer{"HTTP/1.1 404 Not Found\\r\\nContent-Length: 19\\r\\n\\r\\n404 page not found\\n",
           "does not know etcd's API v3: not an etcd, or one before 3.4"},
      Peer{"HTTP/1.1 200 OK\\r\\nContent-Length: 15\\r\\n\\r\\n<html>hi</html>", "does not answer as etcd does"},
      Peer{"HTTP/1.1 403 Forbidden\\r\\nContent-Length: 2\\r\\n\\r\\nno", "answers with HTTP status 403"});
  const int port = free_port();
  const Run server({"python3", "-c",
                    concat(R"(
import socket
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", )",
                           port, R"()); s.listen()
while True:
    c, _ = s.accept()
    c.recv(65536)
    c.sendall(b")",
                           peer.answer, R"(")
    c.close()
)")});
  const auto at = concat("127.0.0.1:", port);
  REQUIRE(wait_until([&] {
    return Run({"bash", "-c", concat("exec 3<>/dev/tcp/127.0.0.1/", port)}).wait().code() == 0;
  }));
  CHECK(refusal(of({at})) == concat("cannot use etcd: ", at, ": ", peer.error));
}

TEST_CASE("invalid options are refused before any request") {
  const auto refused = [](const std::vector<std::string>& endpoints,
                          const lease::LeaseOptions& options = {"job", ttl}) {
    return option_error(by_etcd(of(endpoints), options));
  };
  CHECK_THAT(refused({"h"}, {"", ttl}), test::contains("a job's id has 1 to 512 bytes"));
  CHECK_THAT(refused({"h"}, {"job", 1999ms}), test::contains("2 seconds or more, and whole seconds, not 1.999"));
  CHECK_THAT(refused({"h"}, {"job", 2500ms}), test::contains("whole seconds"));
  for (const auto* wrong : {"h:", "h:0", "h:99999", "http://h:2379", "a b", "h\r\nX: y"}) {
    CHECK_THAT(refused({"h", wrong}), test::contains("is no endpoint of etcd: HOST:PORT"));
  }
}
