#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ddrun/test/files.hpp"
#include "ddrun/test/processes.hpp"

namespace ddrun::test {

/// A real etcd cluster on loopback. Skips the test if etcd is not installed.
class EtcdCluster {
 public:
  struct Options {
    int members = 3;
    int quota = 0;                  ///< in bytes; 0: etcd's default
    std::string cacert, cert, key;  ///< for clients, all members alike; https if there is a `cert`
  };
  EtcdCluster();
  explicit EtcdCluster(Options options);
  explicit EtcdCluster(int members);

  /// HOST:PORT,... of the members.
  [[nodiscard]] std::string endpoints() const;
  [[nodiscard]] std::size_t size() const { return members_.size(); }

  void start(std::size_t member);
  void kill(std::size_t member);
  void stop(std::size_t member) const;
  void resume(std::size_t member) const;
  /// Output of `etcdctl` with all endpoints; `user`: "name:password".
  std::string etcdctl(const std::vector<std::string>& words, const std::string& user = {}) const;
  /// False after the timeout.
  [[nodiscard]] bool wait_until_healthy() const;

 private:
  struct Member {
    int client_port = 0, peer_port = 0;
    std::unique_ptr<Run> run;
  };
  Options options_;
  TemporaryDirectory directory_;
  std::vector<Member> members_;
};

}  // namespace ddrun::test
