#pragma once

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "../job.hpp"

namespace ddrun::test {

/// "Hosts" that are reached through a real ssh and a real sshd, without a port and without root: each connection runs
/// its own `sshd -i` as ssh's ProxyCommand. They are this machine, but what a session there starts carries a mark in
/// its environment, so that a test can see what is left.
class SshHosts {
 public:
  SshHosts() {
    for (const char* program : {"/usr/bin/ssh", "/usr/bin/ssh-keygen", "/usr/sbin/sshd"}) {
      if (::access(program, X_OK) != 0) skip(std::string(program) + " is missing: scripts/setup --tests installs it");
    }
    if (::geteuid() == 0) ::mkdir("/run/sshd", 0755);  // where root's sshd wants it; packages make it at boot
    mark_ = "DDRUN_TEST_HOST=" + std::filesystem::path(directory_.path()).filename().string();
    std::filesystem::create_directory(directory_.file("home"));  // the user's own may be slow, or say something
    for (const char* key : {"host", "user", "other"}) {
      run("ssh-keygen -q -t ed25519 -N '' -f " + directory_.file(key));
    }
    run("cut -d' ' -f1,2 " + directory_.file("host.pub") + " | sed 's/^/* /' >" + directory_.file("known"));
    run("cut -d' ' -f1,2 " + directory_.file("other.pub") + " | sed 's/^/* /' >" + directory_.file("known-wrong"));
    add("one");
    add("two");
  }

  /// A host of this name. `settings` are further lines for its sshd, `before` is put in front of the command that
  /// starts it, `client` are further lines for ssh.
  void add(const std::string& name, const std::string& settings = {}, const std::string& before = {},
           const std::string& client = {}) {
    write_file(directory_.file(name + ".sshd"),
               "HostKey " + directory_.file("host") + "\nAuthorizedKeysFile " + directory_.file("user.pub") +
                   "\nUsePAM no\nStrictModes no\nPermitRootLogin yes\nPidFile none\n"
                   "PasswordAuthentication no\nLogLevel ERROR\n" +
                   settings + "\nSetEnv HOME=" + directory_.file("home") + " " + mark_ + " " + variables_[name] + "\n");
    client_ += "Host " + name + "\n  ProxyCommand " + before + " /usr/sbin/sshd -i -f " +
               directory_.file(name + ".sshd") + " 2>>" + directory_.file("sshd.log") + "\n" + client + "\n";
    write_file(config(), client_ + "Host *\n  User " + user() + "\n  IdentityFile " + directory_.file("user") +
                             "\n  IdentitiesOnly yes\n  UserKnownHostsFile " + directory_.file("known") +
                             "\n  GlobalKnownHostsFile /dev/null\n  LogLevel ERROR\n");
  }
  /// A variable in that host's sessions; before add().
  void set(const std::string& name, const std::string& variable) { variables_[name] += " " + variable; }

  [[nodiscard]] std::string config() const { return directory_.file("config"); }
  [[nodiscard]] const TemporaryDirectory& directory() const { return directory_; }
  [[nodiscard]] std::string file(const std::string& name) const { return directory_.file(name); }

  /// "ddrun --ssh=… --hosts=… options… -- worker verbs…"
  [[nodiscard]] Words job(const std::string& hosts, const Words& options, const Words& verbs) const {
    return test::job(with(hosts, options), verbs);
  }
  /// "ddrun --ssh=… --hosts=… options… -- sh -c script"
  [[nodiscard]] Words shell(const std::string& hosts, const Words& options, const std::string& script) const {
    Words words = with(hosts, options);
    words.insert(words.end(), {"--", "sh", "-c", script});
    return command(words);
  }

  /// Living processes that a session on a host has started.
  [[nodiscard]] std::vector<pid_t> living() const { return processes_with(mark_); }
  [[nodiscard]] bool all_gone() const {
    return wait_until([this] { return living().empty(); });
  }
  /// Copies of ddrun that lie around.
  [[nodiscard]] static std::size_t copies_in(const std::string& directory) {
    std::size_t found = 0;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (entry.path().filename().string().starts_with("ddrun.")) ++found;
    }
    return found;
  }

  /// ddrun where the hosts do not look for it, so that it has to be copied.
  [[nodiscard]] std::string unseen_ddrun() const {
    // No shell is asked to read such a name.
    const std::string path = directory_.file("it's/ddrun");
    std::filesystem::create_directory(directory_.file("it's"));
    std::filesystem::copy_file(DDRUN_TEST_DDRUN, path);
    return path;
  }

 private:
  [[nodiscard]] Words with(const std::string& hosts, const Words& options) const {
    Words words{"--ssh=ssh -F " + config(), "--hosts=" + hosts};
    words.insert(words.end(), options.begin(), options.end());
    return words;
  }
  static std::string user() {
    const passwd* entry = ::getpwuid(::geteuid());
    return entry != nullptr ? entry->pw_name : "root";
  }
  static void run(const std::string& line) {
    INFO(line);
    REQUIRE(std::system(line.c_str()) == 0);
  }

  TemporaryDirectory directory_;
  std::string mark_;
  std::string client_;
  std::map<std::string, std::string> variables_;
};

/// Runs it to its end; fails the test if anything is left here or on the hosts.
inline Outcome finish_on(const SshHosts& hosts, const Words& argv, RunOptions options = {}) {
  Outcome outcome = finish(argv, std::move(options));
  REQUIRE(hosts.all_gone());
  return outcome;
}

}  // namespace ddrun::test
