// --hosts with several of them: one job.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <sstream>

#include "ssh_hosts.hpp"

using namespace ddrun::test;

namespace {

/// Has 64 hexadecimal digits in a row, as the secret of a job is written, other than those of "000102…9899": libstdc++
/// 14 has this table on the stack when it writes a number and is not optimized.
bool has_secret(const std::string& text) {
  std::string table;
  for (int i = 0; i < 100; ++i) table += {static_cast<char>('0' + i / 10), static_cast<char>('0' + i % 10)};
  std::size_t run = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    run = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') ? run + 1 : 0;
    if (run >= 64 && table.find(text.data() + i - 63, 0, 64) == std::string::npos) return true;
  }
  return false;
}

bool is_ddrun(pid_t pid) {
  std::error_code ec;
  return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", ec).filename() == "ddrun";
}

/// Its parent is the sweeper.
bool is_agent(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const std::string parent = stat.substr(stat.rfind(") ") + 4, 20);
  return read_file("/proc/" + std::to_string(std::stoi(parent)) + "/comm") == "job-sweeper\n";
}

/// All that a process has written into. Without pages never touched: a sanitizer's are most of its memory.
std::string writable_memory(pid_t pid) {
  const std::string directory = "/proc/" + std::to_string(pid);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::string all;
  std::istringstream maps(read_file(directory + "/maps"));
  const int memory = ::open((directory + "/mem").c_str(), O_RDONLY | O_CLOEXEC);
  const int pagemap = ::open((directory + "/pagemap").c_str(), O_RDONLY | O_CLOEXEC);
  for (std::string line; memory >= 0 && std::getline(maps, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    char access[5] = "";
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, access) != 3 || access[1] != 'w') continue;
    if (end - begin > (256UL << 20U)) continue;              // what a sanitizer keeps for itself
    std::vector<std::uint64_t> pages((end - begin) / page);  // the uppermost bits: present, swapped out
    const std::size_t bytes = pages.size() * sizeof pages[0];
    REQUIRE(::pread(pagemap, pages.data(), bytes, static_cast<off_t>(begin / page * sizeof pages[0])) ==
            static_cast<ssize_t>(bytes));
    std::string part(page, '\0');
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const bool in_use = pages[i] >> 62U != 0;
      const ssize_t n = in_use ? ::pread(memory, part.data(), page, static_cast<off_t>(begin + i * page)) : 0;
      if (n > 0) all.append(part, 0, static_cast<std::size_t>(n));
      if (n <= 0) all += '\n';
    }
    all += '\n';
  }
  ::close(memory);
  ::close(pagemap);
  return all;
}

}  // namespace

TEST_CASE("Ranks count through all hosts and lines say which host") {
  const SshHosts hosts;
  const auto outcome = finish_on(
      hosts, hosts.shell("one:2,two:3", {}, "echo rank $RANK of $WORLD_SIZE, $LOCAL_RANK on node $GROUP_RANK"));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  for (int rank = 0; rank < 5; ++rank) {
    const int node = rank < 2 ? 0 : 1;
    CHECK(has(outcome.out, ":" + std::to_string(rank) + "] rank " + std::to_string(rank) + " of 5, " +
                               std::to_string(rank - 2 * node) + " on node " + std::to_string(node) + "\n"));
  }
  CHECK(count(outcome.out, "\n") == 5);
  CHECK(outcome.err.empty());
}

TEST_CASE("Workers on all hosts meet in one store") {
  const SshHosts hosts;
  const auto outcome =
      finish_on(hosts, hosts.shell("one,two", {"-n", "2", "--label=none"},
                                   std::string(DDRUN_TEST_DDRUN) + " store set r$RANK here >/dev/null && " +
                                       DDRUN_TEST_DDRUN + " store wait r0 r1 r2 r3 --timeout=20s && echo met"));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(outcome.out == "met\nmet\nmet\nmet\n");
}

TEST_CASE("A worker that fails on one host ends the job on all") {
  const SshHosts hosts;
  const auto outcome = finish_on(hosts, hosts.job("one,two", {"-n", "2"}, {"rank", "3", "exit", "7", ";", "forever"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 7);
  CHECK(has(outcome.err, "rank 3"));
  CHECK(has(outcome.err, "exited with code 7"));
}

TEST_CASE("A host that is lost ends a job that needs all") {
  const SshHosts hosts;
  for (const std::string lost : {"one", "two"}) {
    CAPTURE(lost);
    Run run(hosts.job("one,two", {"-n", "2"}, {"print", "up", "forever"}));
    REQUIRE(wait_until([&] { return count(run.out(), "up\n") == 4; }));
    const pid_t ssh = ssh_of(run, lost);
    REQUIRE(ssh != 0);
    REQUIRE(run.signal(ssh, SIGKILL));
    const auto outcome = run.wait();
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 125);
    CHECK(has(outcome.err, "lost the connection to host " + lost));
    CHECK(run.all_gone());
    CHECK(hosts.all_gone());
  }
}

TEST_CASE("A job goes on with the hosts that are left if they are enough") {
  const SshHosts hosts;
  Run run(hosts.job("one,two", {"--nnodes=1:2", "--max-restarts=1", "--label=none"},
                    {"attempt", "0", "print", "up", "forever", ";", "print", "again"}));
  REQUIRE(wait_until([&] { return count(run.out(), "up\n") == 2; }));
  const pid_t ssh = ssh_of(run, "two");
  REQUIRE(ssh != 0);
  REQUIRE(run.signal(ssh, SIGKILL));
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.err, "lost the connection to host two: ssh killed by SIGKILL; the job goes on without it"));
  CHECK(count(outcome.out, "again\n") == 1);
  CHECK(run.all_gone());
  CHECK(hosts.all_gone());
}

TEST_CASE("Signals end the job on all hosts") {
  const SshHosts hosts;
  for (const int signal : {SIGINT, SIGKILL}) {
    CAPTURE(signal);
    Run run(hosts.job("one,two", {"-n", "2"}, {"stray", "forever", ";", "print", "up", "forever"}));
    REQUIRE(wait_until([&] { return count(run.out(), "up\n") == 4; }));
    run.signal(signal);
    const auto outcome = run.wait();
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == -signal);
    CHECK(run.all_gone());
    CHECK(hosts.all_gone());
  }
}

TEST_CASE("The secret of the job is on no command line and in no environment") {
  const SshHosts hosts;
  CHECK(has_secret("x" + std::string(64, 'a')));
  CHECK(has_secret("0001020304050607" + std::string(64, '0')));  // also beside what is no secret
  Run run(hosts.job("one,two", {"-v", "-v"}, {"print", "up", "forever"}));
  REQUIRE(wait_until([&] { return count(run.out(), "up\n") == 2; }));
  auto all = run.living();
  const auto there = hosts.living();
  CHECK(there.size() >= 10);
  all.insert(all.end(), there.begin(), there.end());
  for (const pid_t pid : all) {
    const std::string directory = "/proc/" + std::to_string(pid);
    CHECK_FALSE(has_secret(read_file(directory + "/cmdline")));
    CHECK_FALSE(has_secret(read_file(directory + "/environ")));
  }
  run.signal(SIGTERM);
  const auto outcome = run.wait();
  CHECK_FALSE(has_secret(outcome.out + outcome.err));
  CHECK(hosts.all_gone());
}

// AddressSanitizer's own memory takes a minute to read.
TEST_CASE("Once the job runs nobody remembers the secret", "[full]") {
  const SshHosts hosts;
  Run run(hosts.job("one,two", {}, {"print", "up", "forever"}));
  REQUIRE(wait_until([&] { return count(run.out(), "up\n") == 2; }));
  const auto there = hosts.living();
  std::vector<pid_t> agents;
  std::vector<pid_t> others;
  for (const pid_t pid : run.living()) {
    if (is_ddrun(pid))
      (std::count(there.begin(), there.end(), pid) == 0 || !is_agent(pid) ? others : agents).push_back(pid);
  }
  for (const pid_t pid : there) {
    if (is_ddrun(pid) &&
        std::count(agents.begin(), agents.end(), pid) + std::count(others.begin(), others.end(), pid) == 0)
      (is_agent(pid) ? agents : others).push_back(pid);
  }
  REQUIRE(agents.size() == 2);
  CHECK(others.size() == 9);  // three here; on each host what talks to us, guard and sweeper
  const std::string known(64, 'a');
  CAPTURE(known);
  CHECK(has_secret(writable_memory(::getpid())));
  others.insert(others.end(), agents.begin(), agents.end());
  for (const pid_t pid : others) {
    CAPTURE(read_file("/proc/" + std::to_string(pid) + "/comm"), pid);
    const std::string memory = writable_memory(pid);
    CHECK(memory.size() > 10'000);
    CHECK_FALSE(has_secret(memory));
  }
  run.signal(SIGTERM);
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == -SIGTERM);
  CHECK(run.all_gone());
  CHECK(hosts.all_gone());
}
