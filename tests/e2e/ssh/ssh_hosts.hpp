#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "../job.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/test/ports.hpp"

namespace ddrun::test {

/// "Hosts" that are reached through a real ssh and a real sshd on the loopback, without root. They are this machine,
/// but what a session there starts carries a mark in its environment, so that a test can see what is left, and descends
/// from the test's sshd, not from ddrun.
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
    run("cut -d' ' -f1,2 " + directory_.file("host.pub") + " | sed 's/^/[127.0.0.1]:* /' >" + directory_.file("known"));
    run("cut -d' ' -f1,2 " + directory_.file("other.pub") + " | sed 's/^/[127.0.0.1]:* /' >" +
        directory_.file("known-wrong"));
    add("one");
    add("two");
  }

  ~SshHosts() {
    for (const pid_t pid : servers_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
  SshHosts(const SshHosts&) = delete;
  SshHosts& operator=(const SshHosts&) = delete;

  /// A host of this name, or hosts of this pattern ("behind*"). `settings` are further lines for its sshd, `client` for
  /// ssh.
  void add(const std::string& name, const std::string& settings = {}, const std::string& client = {}) {
    const bool limits_logins = settings.find("MaxStartups") != std::string::npos;
    const std::string common = "HostKey " + directory_.file("host") + "\nAuthorizedKeysFile " +
                               directory_.file("user.pub") +
                               "\nUsePAM no\nStrictModes no\nPermitRootLogin yes\nPidFile none\n"
                               "PasswordAuthentication no\nLogLevel ERROR\nUseDNS no\n" +
                               settings + (limits_logins ? "" : "\nMaxStartups 200:30:400") +
                               "\nSetEnv HOME=" + directory_.file("home") + " " + mark_ + " " + variables_[name] + "\n";
    // The port is free when it is chosen; another process may bind it first.
    for (int attempt = 0; attempt < 5; ++attempt) {
      const int port = free_port();
      write_file(directory_.file(name + ".sshd"),
                 common + "ListenAddress 127.0.0.1\nPort " + std::to_string(port) + "\n");
      const pid_t pid = start_server(directory_.file(name + ".sshd"));
      bool dead = false;
      const bool up = wait_until([&] { return accepts(port) || (dead = ::waitpid(pid, nullptr, WNOHANG) == pid); });
      if (up && !dead) {
        servers_.push_back(pid);
        ports_[name] = port;
        alias(name, port, client);
        return;
      }
      if (!dead) servers_.push_back(pid);
    }
    FAIL("no sshd comes up: " << read_file(directory_.file("sshd.log")));
  }
  /// A connection to its sshd that does not log in. It counts for MaxStartups until the sshd's LoginGraceTime is over.
  [[nodiscard]] UniqueFd occupy(const std::string& name) const {
    UniqueFd fd;
    // The sshd may still count one of add().
    REQUIRE(wait_until([&] {
      fd.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const sockaddr_in address = loopback(ports_.at(name));
      std::string banner(4, '\0');
      return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
             ::recv(fd.get(), banner.data(), banner.size(), MSG_WAITALL) == 4 && banner == "SSH-";
    }));
    return fd;
  }
  /// A host "bare"; gives back its directory for temporary files, which is empty.
  std::string add_bare() {
    const std::string scratch = directory_.file("scratch");
    std::filesystem::create_directory(scratch);
    set("bare", "TMPDIR=" + scratch);
    add("bare");
    return scratch;
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

  /// The same command with a ddrun that lies where the hosts do not look for it, so that it has to be copied.
  [[nodiscard]] Words unseen(Words argv) const {
    // No shell is asked to read such a name.
    argv[0] = directory_.file("it's/ddrun");
    std::filesystem::create_directory(directory_.file("it's"));
    std::filesystem::copy_file(DDRUN_TEST_DDRUN, argv[0], std::filesystem::copy_options::skip_existing);
    return argv;
  }

 private:
  void alias(const std::string& name, int port, const std::string& client) {
    client_ += "Host " + name + "\n  HostName 127.0.0.1\n  Port " + std::to_string(port) + "\n" + client + "\n";
    write_file(config(), client_ + "Host *\n  User " + user() + "\n  IdentityFile " + directory_.file("user") +
                             "\n  IdentitiesOnly yes\n  UserKnownHostsFile " + directory_.file("known") +
                             "\n  GlobalKnownHostsFile /dev/null\n  LogLevel ERROR\n");
  }
  static sockaddr_in loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    return address;
  }
  static bool accepts(int port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = loopback(port);
    const bool done = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    ::close(fd);
    return done;
  }
  [[nodiscard]] pid_t start_server(const std::string& settings) const {
    const std::string log = directory_.file("sshd.log");
    const pid_t test = ::getpid();
    const pid_t pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != test) ::_exit(1);
      // Not by -E: its sessions would open the file again, perhaps when the directory is being removed.
      const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      ::dup2(file, STDERR_FILENO);
      ::execl("/usr/sbin/sshd", "/usr/sbin/sshd", "-D", "-e", "-f", settings.c_str(), nullptr);
      ::_exit(127);
    }
    return pid;
  }
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
  std::map<std::string, int> ports_;
  std::vector<pid_t> servers_;
};

/// The process of this run that is the given host's ssh; 0 if there is none.
inline pid_t ssh_of(const Run& run, const std::string& host) {
  for (const pid_t pid : run.living()) {
    std::string line = read_file("/proc/" + std::to_string(pid) + "/cmdline");
    std::replace(line.begin(), line.end(), '\0', ' ');
    if (line.starts_with("ssh ") && has(line, " " + host + " exec ")) return pid;
  }
  return 0;
}

/// Runs it to its end; fails the test if anything is left here or on the hosts.
inline Outcome finish_on(const SshHosts& hosts, const Words& argv, RunOptions options = {}) {
  Outcome outcome = finish(argv, std::move(options));
  REQUIRE(hosts.all_gone());
  return outcome;
}

}  // namespace ddrun::test
