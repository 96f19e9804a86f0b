// `ddrun stacks` and the socket of a running job.
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "../job.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/test/ports.hpp"

using namespace ddrun::test;
using ddrun::UniqueFd;
using std::string_literals::operator""s;

namespace {

constexpr int nobody = 65534;

UniqueFd connect(const std::string& path) {
  UniqueFd connection(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const timeval limit{20, 0};
  (void)::setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) connection.reset();
  return connection;
}

/// Jobs and questions that see no other jobs of this user: /tmp/ddrun-UID is a folder of this test for them, and
/// nothing can be in /run/user/UID.
class Machine {
 public:
  Machine() {
    REQUIRE(::mkdir(jobs_.c_str(), 0700) == 0);
    (void)::mkdir(standard_.c_str(), 0700);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(isolate() ? 0 : 1);
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    if (status != 0) skip("no mount namespace can be made");
  }

  [[nodiscard]] const std::string& jobs() const { return jobs_; }
  [[nodiscard]] std::string socket_of(const Run& run) const {
    return jobs_ + "/" + std::to_string(run.pid()) + ".sock";
  }
  [[nodiscard]] std::size_t sockets() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(jobs_), {}));
  }

  /// `runtime_dir`: XDG_RUNTIME_DIR; empty: as if not set.
  [[nodiscard]] RunOptions options(const std::string& runtime_dir = {}) const {
    RunOptions options;
    options.env = {{"XDG_RUNTIME_DIR", runtime_dir}};
    options.in_child = [this] {
      if (!isolate()) ::_exit(99);
    };
    return options;
  }
  [[nodiscard]] Outcome ask(const Words& words = {}, const std::string& runtime_dir = {}) const {
    Words argv = command({"stacks"});
    argv.insert(argv.end(), words.begin(), words.end());
    return finish(argv, options(runtime_dir));
  }
  /// A job of workers that run until a signal.
  [[nodiscard]] std::unique_ptr<Run> start(const Words& options, Words verbs = {"forever"},
                                           const std::string& runtime_dir = {}) const {
    auto run = std::make_unique<Run>(job(options, verbs), this->options(runtime_dir));
    REQUIRE(wait_until([&] { return bool(connect(socket_of(*run))); }));
    return run;
  }

 private:
  [[nodiscard]] bool isolate() const {
    const bool separate = ::unshare(CLONE_NEWNS) == 0 || as_own_user();
    return separate && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount(jobs_.c_str(), standard_.c_str(), nullptr, MS_BIND, nullptr) == 0 &&
           (::access(runtime_.c_str(), F_OK) != 0 ||
            ::mount("/proc", runtime_.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0);
  }
  [[nodiscard]] static bool as_own_user() {
    const std::string id = std::to_string(::geteuid());
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    write_file("/proc/self/uid_map", id + " " + id + " 1");
    return std::to_string(::geteuid()) == id;
  }

  TemporaryDirectory dir_;
  std::string jobs_ = dir_.file("jobs");
  std::string runtime_ = "/run/user/" + std::to_string(::geteuid());
  std::string standard_ = "/tmp/ddrun-" + std::to_string(::geteuid());
};

void end(Run& run) {
  run.signal(SIGTERM);
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == -SIGTERM);
  CHECK(run.all_gone());
}

/// All that the job sends until it disconnects; "timeout" if it does not.
std::string receive(const UniqueFd& connection) {
  std::string text;
  char buffer[4096];
  ssize_t got;
  while ((got = ::recv(connection.get(), buffer, sizeof buffer, 0)) > 0)
    text.append(buffer, static_cast<std::size_t>(got));
  return got < 0 && errno == EAGAIN ? "timeout" : text;
}

std::string answer_to(const std::string& path, const std::string& request) {
  const UniqueFd connection = connect(path);
  REQUIRE(connection);
  (void)::send(connection.get(), request.data(), request.size(), MSG_NOSIGNAL);
  return receive(connection);
}

pid_t parent_of(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  return ::atoi(stat.substr(stat.rfind(')') + 4).c_str());
}

/// "rank 0 (pid 4711)": 4711.
pid_t pid_in(const std::string& text) { return ::atoi(text.substr(text.find("(pid ") + 5).c_str()); }

}  // namespace

TEST_CASE("The only job is asked without a name and any job by PID or run id") {
  const Machine machine;
  const auto run = machine.start({"-n", "3", "--rdzv-id=my-run"});
  const std::string pid = std::to_string(run->pid());
  for (const Words& words : {Words{}, {pid}, {"my-run"}}) {
    const auto outcome = machine.ask(words);
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 0);
    CHECK(outcome.err.empty());
    CHECK(has(outcome.out, "  ranks 0-2: waits for a signal, "));
  }
  const auto some = machine.ask({"--rank=0,2-9"});
  CHECK(some.code() == 0);
  CHECK(has(some.out, "  ranks 0,2: "));
  const auto json = machine.ask({"--json", "--rank=1", pid});
  CHECK(json.code() == 0);
  CHECK(json.out.starts_with("{\n  \"groups\": ["));
  CHECK(count(json.out, "\"rank\": ") == 1);
  CHECK(has(json.out, "\"rank\": 1,"));
  const auto absent = machine.ask({"--rank=7"});
  CHECK(absent.code() == 1);
  CHECK(has(absent.err, "give some of ranks 0-2"));
  const auto other = machine.ask({"other-run"});
  CHECK(other.code() == 125);
  CHECK(has(other.err, "no job of yours has the PID of ddrun or the run id 'other-run'; give one of:\n"));
  CHECK(has(other.err, pid + "  my-run  "));

  struct stat info {};
  REQUIRE(::stat(machine.socket_of(*run).c_str(), &info) == 0);
  CHECK((info.st_mode & 07777U) == 0600);
  end(*run);
  CHECK(machine.sockets() == 0);
  const auto none = machine.ask();
  DDRUN_SHOW(none);
  CHECK(none.code() == 125);
  CHECK(has(none.err, "no job of yours runs on this machine"));
}

TEST_CASE("Of several jobs one has to be named") {
  const Machine machine;
  const auto one = machine.start({"-n", "1", "--rdzv-id=one"});
  const auto two = machine.start({"-n", "1", "--rdzv-id=two"});
  const auto both = machine.ask();
  DDRUN_SHOW(both);
  CHECK(both.code() == 2);
  CHECK(both.out.empty());
  for (const auto& [run, id] : {std::pair(one.get(), "one"), std::pair(two.get(), "two")}) {
    CHECK(has(both.err, std::to_string(run->pid()) + "  " + id + "  "));
    const auto asked = machine.ask({id});
    CHECK(asked.code() == 0);
    CHECK(parent_of(parent_of(pid_in(asked.out))) > 0);
    CHECK(asked.out == machine.ask({std::to_string(run->pid())}).out);
  }
  CHECK(machine.ask({"one"}).out != machine.ask({"two"}).out);
  end(*one);
  CHECK(machine.ask().code() == 0);
  end(*two);
}

TEST_CASE("The head of a job on hosts and the local agent show its ranks and are one job") {
  const Machine machine;
  const auto run = machine.start({"--hosts=localhost:2", "--rdzv-id=my-run"});
  const std::string pid = std::to_string(run->pid());
  const std::string facts = answer_to(machine.socket_of(*run), "{\"question\":\"job\"}\n");
  CAPTURE(facts);
  for (const std::string& fact : {R"("hosts":["localhost"])"s, R"("ranks":[])"s, R"("run_id":"my-run")"s,
                                  R"("program":")"s + DDRUN_TEST_WORKER + "\"", "\"pid\":" + pid}) {
    CHECK(has(facts, fact));
  }
  CHECK(wait_until([&] { return machine.ask().code() == 0; }));
  for (const Words& words : {Words{}, {"my-run"}}) {
    const auto asked = machine.ask(words);
    DDRUN_SHOW(asked);
    CHECK(asked.code() == 0);
    CHECK(asked.err.empty());
    CHECK(has(asked.out, "  ranks 0,1: waits for a signal, "));
  }
  const auto head = machine.ask({pid});
  DDRUN_SHOW(head);
  CHECK(head.code() == 0);
  CHECK(has(head.out, "  ranks 0,1: waits for a signal, "));
  const auto other = machine.ask({"other-run"});
  CHECK(other.code() == 125);
  CHECK(count(other.err, "  my-run  ") == 1);
  CHECK(machine.sockets() == 2);
  end(*run);
  CHECK(machine.sockets() == 0);
}

TEST_CASE("The head of a job on hosts shows the ranks of all of them") {
  const Machine machine;
  const TemporaryDirectory dir;
  const std::string reach = dir.file("reach", "#!/bin/sh\nshift\nexec sh -c \"$1\"\n", 0755);
  const auto run = machine.start({"--ssh=" + reach, "--hosts=one:2,two:2"}, {"print", "up", "forever"});
  REQUIRE(wait_until([&] { return count(run->out(), "up\n") == 4; }));
  const std::string pid = std::to_string(run->pid());
  CHECK(wait_until([&] { return machine.ask({pid}).code() == 0; }));
  const auto asked = machine.ask({pid});
  DDRUN_SHOW(asked);
  CHECK(has(asked.out, "  ranks 0-3 on "));
  const auto some = machine.ask({pid, "--rank=1,2"});
  CHECK(has(some.out, "  ranks 1,2 on "));
  CHECK(has(machine.ask({pid, "--rank=3", "--all-threads"}).out, "\nrank 3 (pid "));
  CHECK(count(machine.ask({pid, "--json"}).out, "\"rank\": ") == 4);
  const auto absent = machine.ask({pid, "--rank=7"});
  CHECK(absent.code() == 1);
  CHECK(has(absent.err, "no such rank runs in this job"));
  end(*run);
}

TEST_CASE("The head of a job on hosts names the host that it waits for") {
  const Machine machine;
  const TemporaryDirectory dir;
  const std::string reach = dir.file("reach", "#!/bin/sh\nexec sleep 1000\n", 0755);
  const auto run = machine.start({"--ssh=" + reach + " -4", "--hosts=far,near"});
  const auto asked = machine.ask();
  DDRUN_SHOW(asked);
  CHECK(asked.code() == 1);
  CHECK(asked.out.empty());
  CHECK(has(asked.err, "no worker runs yet: waiting for host far and 1 more to answer\n"));
  const auto here = machine.start({"-n", "1"});
  CHECK(machine.ask().code() == 2);
  end(*here);
  run->signal(SIGINT);
  const auto outcome = run->wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == -SIGINT);
  CHECK(run->all_gone());
  CHECK(machine.sockets() == 0);
}

TEST_CASE("A job without workers says what it waits for") {
  const Machine machine;
  const TemporaryDirectory dir;
  dir.file("slow.py", "import time\ntime.sleep(1000)\n");
  const std::string endpoint = "--rdzv-endpoint=127.0.0.1:" + std::to_string(free_port());
  const std::string port = "--port=" + std::to_string(free_port());
  using Row = std::pair<Words, std::string>;
  for (const Row& row : std::vector<Row>{
           {{"--before=sleep  1000", "true"}, "error: no worker runs yet: runs --before (sleep  1000, "},
           {{"--preload=slow", dir.file("slow.py")}, "error: no worker runs yet: imports slow (--preload)\n"},
           {{"--nnodes=2", "--insecure", endpoint, "true"},
            "error: no worker runs yet: waiting for 1 more node; 1 of 2 is there\n"},
           {{"--service", "--role=server", "--ready=tcp", port, "sleep", "1000", ":", "-n1", "true"},
            "\n  (waits for server rank 0 to be ready)\n"},
       }) {
    auto options = machine.options();
    options.env.emplace_back("PYTHONPATH", dir.path());
    Run run(command(row.first), options);
    const bool is_said = wait_until([&] {
      const auto asked = machine.ask();
      return has(asked.err, row.second) || has(asked.out, row.second);
    });
    const auto asked = machine.ask();
    DDRUN_SHOW(asked);
    CHECK(is_said);
    CHECK(asked.code() == (asked.out.empty() ? 1 : 0));
    end(run);
  }
}

TEST_CASE("A machine that has no worker yet is noted on the page of the job") {
  const Machine machine;
  const std::string endpoint = "--rdzv-endpoint=127.0.0.1:" + std::to_string(free_port());
  const auto words = [&](const Words& own) {
    Words all{"-n",
              "1",
              "--nnodes=2",
              "--insecure",
              endpoint,
              "--rdzv-id=both-agents",
              "--node-rank=" + std::to_string(own.size())};
    all.insert(all.end(), own.begin(), own.end());
    return all;
  };
  const auto first = machine.start(words({}), {"print", "up", "forever"});
  const auto second = machine.start(words({"--before=sleep 1000"}));
  REQUIRE(first->wait_for_out("up\n"));
  for (const auto& run : {first.get(), second.get()}) {
    const auto asked = machine.ask({std::to_string(run->pid())});
    DDRUN_SHOW(asked);
    CHECK(asked.code() == 0);
    CHECK(has(asked.out, "  rank 0 on "));
    CHECK(has(asked.out, ": runs --before (sleep 1000, "));
  }
  for (const Words& name : {Words{}, {"both-agents"}}) {
    const auto asked = machine.ask(name);  // two agents, one job
    DDRUN_SHOW(asked);
    CHECK(asked.code() == 0);
    CHECK(has(asked.out, "where the ranks of the job are"));
  }
  end(*first);
  (void)second->wait();
}

TEST_CASE("The socket of a killed job is noticed and removed") {
  const Machine machine;
  const auto run = machine.start({"-n", "1"});
  const std::string pid = std::to_string(run->pid());
  const pid_t agent = parent_of(pid_in(machine.ask().out));
  CHECK(run->signal(agent, SIGKILL));  // before it notices that the others are gone, and ends in order
  for (const pid_t ours : run->living()) (void)run->signal(ours, SIGKILL);
  (void)run->wait();
  REQUIRE(run->all_gone());
  REQUIRE(machine.sockets() == 1);
  const auto first = machine.ask({pid});
  DDRUN_SHOW(first);
  CHECK(first.code() == 125);
  CHECK(has(first.err, "the job with PID " + pid + " has ended"));
  // It is removed as soon as it is too old to belong to a job that is about to listen.
  CHECK(wait_until([&] {
    CHECK(has(machine.ask().err, "no job of yours"));
    return machine.sockets() == 0;
  }));
}

TEST_CASE("A job has a socket in XDG_RUNTIME_DIR and in the folder in /tmp and is found by either") {
  const Machine machine;
  const TemporaryDirectory dir;
  const std::string folder = dir.file("ddrun");
  const auto run = machine.start({"-v", "-n", "1"}, {"forever"}, dir.path());
  const std::string pid = std::to_string(run->pid());
  const std::string socket = folder + "/" + pid + ".sock";
  CHECK(::access(socket.c_str(), F_OK) == 0);
  CHECK_FALSE(has(run->err(), "no socket"));
  struct stat info {};
  REQUIRE(::stat(folder.c_str(), &info) == 0);
  CHECK((info.st_mode & 07777U) == 0700);
  const auto is_answered = [&](const std::string& runtime_dir) {
    for (const Words& words : {Words{}, {pid}}) {
      const auto asked = machine.ask(words, runtime_dir);
      DDRUN_SHOW(asked);
      CHECK(asked.code() == 0);
      CHECK(asked.err.empty());
    }
  };
  is_answered(dir.path());
  is_answered("");  // as from cron, or by sudo
  const auto listed = machine.ask({"other"}, dir.path());
  CHECK(count(listed.err, pid + "  ") == 1);
  // What a logout does, and a cleaner of /tmp.
  REQUIRE(::rename(socket.c_str(), dir.file("kept").c_str()) == 0);
  is_answered(dir.path());
  REQUIRE(::rename(dir.file("kept").c_str(), socket.c_str()) == 0);
  REQUIRE(::unlink(machine.socket_of(*run).c_str()) == 0);
  is_answered(dir.path());
  end(*run);
  CHECK(::access(socket.c_str(), F_OK) != 0);
}

TEST_CASE("A stopped job with two sockets is reported once") {
  const Machine machine;
  const TemporaryDirectory dir;
  const auto run = machine.start({"-n", "1"}, {"forever"}, dir.path());
  const pid_t agent = parent_of(pid_in(machine.ask().out));
  REQUIRE(run->signal(agent, SIGSTOP));
  const auto asked = machine.ask({}, dir.path());
  DDRUN_SHOW(asked);
  CHECK(has(asked.err, "no answer from the job with PID " + std::to_string(run->pid())));
  REQUIRE(run->signal(agent, SIGCONT));
  end(*run);
}

TEST_CASE("A folder that cannot be used is named at the question, and by a job that has no other") {
  const Machine machine;
  const TemporaryDirectory dir;
  REQUIRE(::chmod(machine.jobs().c_str(), 0755) == 0);
  for (const bool has_other : {true, false}) {
    Run run(job({"-n", "2"}, {"await", dir.file(has_other ? "one" : "two")}),
            machine.options(has_other ? dir.path() : ""));
    const std::string pid = std::to_string(run.pid());
    if (has_other) CHECK(wait_until([&] { return ::access(dir.file("ddrun/" + pid + ".sock").c_str(), F_OK) == 0; }));
    else CHECK(run.wait_for_err("ddrun: warning: 'ddrun stacks' cannot ask this job: /tmp/ddrun-"));
    const auto asked = machine.ask({pid});
    DDRUN_SHOW(asked);
    CHECK(asked.code() == 125);
    CHECK(has(asked.err, "no job of yours is found on this machine; its socket may be hidden: /tmp/ddrun-"));
    CHECK(has(asked.err, "is open to others (chmod 700)"));
    if (has_other) CHECK(machine.ask({}, dir.path()).code() == 0);
    write_file(dir.file(has_other ? "one" : "two"), "");
    const auto outcome = run.wait();
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 0);
    CHECK(outcome.err.empty() == has_other);
    CHECK(run.all_gone());
  }
  CHECK(machine.sockets() == 0);
}

TEST_CASE("A reply that is too long or too deep is refused") {
  const Machine machine;
  const std::string opening = "{\"stacks\":";
  std::string wide = opening + "[";
  for (int i = 0; i < 3'000'000; ++i) wide += "[],";
  const std::string strings = opening + R"(["[[[[[[[[[[[[[[[[[[[[\"[[[[[[[[[[[[[[[[[["]})";
  for (const auto& [reply, error] : std::vector<std::pair<std::string, std::string>>{
           {opening + std::string(3'000'000, '['), "its answer is too long"},
           {wide + "[]]}", "its answer is too long"},
           {opening + "\"" + std::string(40U << 20U, 'x') + "\"}", "its answer is too long"},
           {opening + "[1,", "it ended, or broke off its answer"},
           {strings, ""}}) {
    const pid_t fake = ::fork();
    if (fake == 0) {
      const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      const std::string path = machine.jobs() + "/" + std::to_string(::getpid()) + ".sock";
      path.copy(address.sun_path, sizeof address.sun_path - 1);
      if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) ::_exit(1);
      if (::listen(listener.get(), 8) != 0) ::_exit(1);
      for (;;) {
        const UniqueFd client(::accept(listener.get(), nullptr, nullptr));
        char request[4096];
        const ssize_t size = ::recv(client.get(), request, sizeof request, 0);
        const bool asks_job =
            has(std::string(request, static_cast<std::size_t>(std::max<ssize_t>(size, 0))), "\"job\"");
        const std::string line = (asks_job ? std::string("{\"run_id\":\"x\"}") : reply) + "\n";
        for (std::size_t at = 0; at < line.size();) {
          const ssize_t sent = ::send(client.get(), line.data() + at, line.size() - at, MSG_NOSIGNAL);
          if (sent <= 0) break;
          at += static_cast<std::size_t>(sent);
        }
      }
    }
    const std::string pid = std::to_string(fake);
    CHECK(wait_until([&] { return ::access((machine.jobs() + "/" + pid + ".sock").c_str(), F_OK) == 0; }));
    const auto asked = machine.ask({pid, "--json"});
    INFO(asked.err);
    CHECK(asked.code() == (error.empty() ? 0 : 125));
    CHECK(has(asked.err, error));
    (void)::kill(fake, SIGKILL);
    (void)::waitpid(fake, nullptr, 0);
  }
}

TEST_CASE("Twenty clients at once are all answered") {
  const Machine machine;
  const auto run = machine.start({"-n", "2"});
  std::vector<std::unique_ptr<Run>> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(std::make_unique<Run>(command({"stacks"}), machine.options()));
  for (const auto& client : clients) {
    const auto outcome = client->wait();
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 0);
    CHECK(has(outcome.out, "  ranks 0,1: waits for a signal, "));
  }
  end(*run);
}

TEST_CASE("Wrong requests get an error and silent clients are disconnected") {
  const Machine machine;
  const auto run = machine.start({"-n", "1"});
  const std::string path = machine.socket_of(*run);
  for (const std::string& request :
       {"hello\n"s, "\n"s, "\0\0\n"s, "{}\n"s, "[1]\n"s, std::string(4000, '[') + "\n", std::string(100'000, 'x'),
        R"({"question":7})"s + "\n", R"({"question":"stacks","ranks":[1]})"s + "\n",
        R"({"question":"stacks","ranks":"0-99999999999"})"s + "\n", R"({"question":"stacks","format":"xml"})"s + "\n",
        "{\"question\":\"\xff\xfe\"}\n"s}) {
    CAPTURE(request.substr(0, 50));
    CHECK(answer_to(path, request).starts_with("{\"error\":\""));
  }
  CHECK(has(answer_to(path, "{\"question\":\"job\"}\nmore"), "\"pid\":" + std::to_string(run->pid())));
  // A client may leave at any time.
  for (int i = 0; i < 20; ++i) {
    const UniqueFd hasty = connect(path);
    (void)::send(hasty.get(), "{\"question\":\"stacks\"}\n", static_cast<std::size_t>(i), MSG_NOSIGNAL);
  }
  // They take all places for five seconds; the next one waits so long.
  std::array<UniqueFd, 8> silent;
  for (UniqueFd& client : silent) {
    client = connect(path);
    (void)::send(client.get(), "{\"quest", 8, MSG_NOSIGNAL);
  }
  const auto asked = machine.ask();
  DDRUN_SHOW(asked);
  CHECK(asked.code() == 0);
  for (const UniqueFd& client : silent) CHECK(receive(client).empty());
  end(*run);
}

TEST_CASE("Another user gets no answer") {
  if (::geteuid() != 0) skip("only root can become another user");
  const Machine machine;
  const auto run = machine.start({"-n", "1"});
  const std::string path = machine.socket_of(*run);
  const auto as_nobody = [&] {
    const pid_t child = ::fork();
    if (child == 0) {
      if (::setgid(nobody) != 0 || ::setuid(nobody) != 0) ::_exit(9);
      const UniqueFd connection = connect(path);
      if (!connection) ::_exit(1);
      (void)::send(connection.get(), "{\"question\":\"job\"}\n", 19, MSG_NOSIGNAL);
      ::_exit(receive(connection).empty() ? 2 : 3);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return WEXITSTATUS(status);
  };
  CHECK(as_nobody() == 1);
  for (const std::string& open : {machine.jobs() + "/..", machine.jobs(), path}) {
    REQUIRE(::chmod(open.c_str(), 0777) == 0);
  }
  if (as_nobody() == 1) skip("another user cannot reach the temporary folder");
  CHECK(as_nobody() == 2);
  REQUIRE(::chmod(machine.jobs().c_str(), 0700) == 0);
  CHECK(machine.ask().code() == 0);
  end(*run);
}

TEST_CASE("A suspended job answers and a stopped agent is reported") {
  const Machine machine;
  const auto run = machine.start({"-n", "1"});
  const pid_t worker = pid_in(machine.ask().out);
  run->signal(SIGTSTP);
  REQUIRE(wait_until([&] { return is_stopped(run->pid()) && is_stopped(worker); }));
  CHECK(machine.ask().code() == 0);
  run->signal(SIGCONT);
  const pid_t agent = parent_of(worker);
  REQUIRE(run->signal(agent, SIGSTOP));
  const auto asked = machine.ask();
  DDRUN_SHOW(asked);
  CHECK(asked.code() == 125);
  CHECK(has(asked.err,
            "no answer from the job with PID " + std::to_string(run->pid()) + ": it does not answer; SIGCONT"));
  REQUIRE(run->signal(agent, SIGCONT));
  end(*run);
}

TEST_CASE("Workers do not inherit the socket and a full disk is reported") {
  const Machine machine;
  const auto run =
      machine.start({"-n", "1", "--max-restarts=1"}, {"attempt", "0", "exit", "3", ";", "print", "up", "forever"});
  REQUIRE(run->wait_for_out("up\n"));
  const std::string fds = "/proc/" + std::to_string(pid_in(machine.ask().out)) + "/fd";
  int descriptors = 0;
  for (const auto& entry : std::filesystem::directory_iterator(fds)) {
    ++descriptors;
    CHECK_FALSE(has(std::filesystem::read_symlink(entry.path()).string(), "socket:"));
  }
  CHECK(descriptors >= 3);
  auto options = machine.options();
  options.in_child = [inner = options.in_child] {
    inner();
    (void)::dup2(::open("/dev/full", O_WRONLY), STDOUT_FILENO);
  };
  const auto full = finish(command({"stacks"}), options);
  CHECK(full.code() == 125);
  CHECK(has(full.err, "cannot write to the standard output"));
  end(*run);
}
