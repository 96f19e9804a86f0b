#include "etcd_cluster.hpp"

#include <signal.h>

#include <stdexcept>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/ports.hpp"

namespace ddrun::test {

namespace {

bool there_is(const std::string& program) { return Run({"sh", "-c", "command -v " + program}).wait().code() == 0; }

}  // namespace

EtcdCluster::EtcdCluster() : EtcdCluster(Options()) {}

EtcdCluster::EtcdCluster(int members) : EtcdCluster(Options{members, 0, "", "", ""}) {}

EtcdCluster::EtcdCluster(Options options) : options_(std::move(options)) {
  for (const auto* program : {"etcd", "etcdctl"}) {
    if (!there_is(program)) skip(concat(program, " not installed: run scripts/setup --tests"));
  }
  for (int i = 0; i < options_.members; ++i) members_.push_back({free_port(), free_port(), nullptr});
  for (std::size_t i = 0; i < members_.size(); ++i) start(i);
  if (!wait_until_healthy()) throw std::runtime_error("etcd does not come up: " + read_file(directory_.file("0.log")));
}

std::string EtcdCluster::endpoints() const {
  std::vector<std::string> all;
  for (const auto& member : members_) all.push_back(concat("127.0.0.1:", member.client_port));
  return join(all, ",");
}

void EtcdCluster::start(std::size_t member) {
  std::vector<std::string> peers;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    peers.push_back(concat("m", i, "=http://127.0.0.1:", members_[i].peer_port));
  }
  const auto& at = members_[member];
  const bool tls = !options_.cert.empty();
  const auto client = concat(tls ? "https" : "http", "://127.0.0.1:", at.client_port);
  const auto peer = concat("http://127.0.0.1:", at.peer_port);
  std::vector<std::string> argv{"etcd",
                                "--name",
                                concat("m", member),
                                "--data-dir",
                                directory_.file(concat("m", member)),
                                "--listen-client-urls",
                                client,
                                "--advertise-client-urls",
                                client,
                                "--listen-peer-urls",
                                peer,
                                "--initial-advertise-peer-urls",
                                peer,
                                "--initial-cluster",
                                join(peers, ","),
                                "--unsafe-no-fsync",
                                "--logger",
                                "zap",
                                "--log-outputs",
                                directory_.file(concat(member, ".log")),
                                "--heartbeat-interval",
                                "100",
                                "--election-timeout",
                                "1000"};
  if (options_.quota != 0) argv.push_back(concat("--quota-backend-bytes=", options_.quota));
  if (tls) {
    for (const auto& word : {std::string("--cert-file"), options_.cert, std::string("--key-file"), options_.key,
                             std::string("--client-cert-auth"), std::string("--trusted-ca-file"), options_.cacert}) {
      argv.push_back(word);
    }
  }
  members_[member].run = std::make_unique<Run>(argv);
}

void EtcdCluster::kill(std::size_t member) { members_[member].run.reset(); }
void EtcdCluster::stop(std::size_t member) const {
  const Run& run = *members_[member].run;
  run.signal(SIGSTOP);
  wait_until([&] {
    const auto stat = read_process_stat(run.pid());
    return !stat || stat->state == 'T';
  });
}

void EtcdCluster::resume(std::size_t member) const { members_[member].run->signal(SIGCONT); }

std::string EtcdCluster::etcdctl(const std::vector<std::string>& words, const std::string& user) const {
  std::vector<std::string> argv{"etcdctl", "--command-timeout=20s", "--endpoints", endpoints()};
  if (!options_.cert.empty()) {
    for (const auto& word : {std::string("--cacert"), options_.cacert, std::string("--cert"), options_.cert,
                             std::string("--key"), options_.key}) {
      argv.push_back(word);
    }
  }
  if (!user.empty()) {
    argv.emplace_back("--user");
    argv.push_back(user);
  }
  argv.insert(argv.end(), words.begin(), words.end());
  Run::Options options;
  options.env = {{"ETCDCTL_API", "3"}};
  return Run(argv, options).wait().out;
}

bool EtcdCluster::wait_until_healthy() const {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (!members_[i].run) continue;
    const auto endpoint = concat("127.0.0.1:", members_[i].client_port);
    std::vector<std::string> argv{"etcdctl", "--command-timeout=2s", "--dial-timeout=2s", "--endpoints", endpoint};
    if (!options_.cert.empty()) {
      for (const auto& word : {std::string("--cacert"), options_.cacert, std::string("--cert"), options_.cert,
                               std::string("--key"), options_.key}) {
        argv.push_back(word);
      }
    }
    argv.insert(argv.end(), {"endpoint", "status"});
    Run::Options options;
    options.env = {{"ETCDCTL_API", "3"}};
    if (!wait_until([&] { return Run(argv, options).wait().code() == 0; }, std::chrono::seconds(60))) return false;
  }
  // A linearizable read: a majority has agreed.
  return wait_until(
      [&] {
        return etcdctl({"get", "there-is-no-such-key"}).empty() &&
               etcdctl({"endpoint", "status", "-w", "fields"}).find("\"Leader\"") != std::string::npos;
      },
      std::chrono::seconds(60));
}

}  // namespace ddrun::test
