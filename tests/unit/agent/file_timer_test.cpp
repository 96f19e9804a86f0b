#include "watchdog.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <filesystem>
#include <thread>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun;
using namespace ddrun::agent;
using test::TemporaryDirectory;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string line(pid_t pid, const std::string& scope, double expires, int signal = SIGKILL) {
  return concat(R"({"version": 1, "pid": )", pid, R"(, "scope_id": ")", scope, R"(", "expiration_time": )",
                std::to_string(expires), R"(, "signal": )", signal, "}\n");
}

struct Harness {
  TemporaryDirectory dir;
  boost::asio::io_context io{1};
  std::vector<TimerRequest> expired;
  std::vector<std::string> said;
  FileTimer timer{io.get_executor(), [this](const std::vector<TimerRequest>& late) {
                    expired.insert(expired.end(), late.begin(), late.end());
                  }};
  std::string path = dir.file("fifo");

  Harness() {
    set_message_sink([this](std::string_view text) { said.emplace_back(text); });
    REQUIRE(timer.open(path));
  }
  ~Harness() { set_message_sink({}); }
  Harness(const Harness&) = delete;
  Harness& operator=(const Harness&) = delete;

  void write(const std::string& text) const {
    const UniqueFd fifo(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    REQUIRE(fifo);
    REQUIRE(::write(fifo.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  /// Until `count` have expired.
  void run(std::size_t count) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (expired.size() < count && std::chrono::steady_clock::now() < end) io.run_one_for(std::chrono::seconds(1));
    REQUIRE(expired.size() == count);
  }
};

}  // namespace

TEST_CASE("a timer that is not released in time is reported, not before") {
  Harness h;
  const double due = now() + 0.1;
  h.write(line(::getpid(), "train.py#41", due));
  h.run(1);
  CHECK(now() >= due);
  CHECK(h.expired[0].pid == ::getpid());
  CHECK(h.expired[0].scope == "train.py#41");
  CHECK(h.expired[0].signal == SIGKILL);
  CHECK(h.said.empty());
}

TEST_CASE("a release counts even if it is read after the time") {
  Harness h;
  h.write(line(::getpid(), "released", now() + 0.5));  // long enough for a busy machine to reach the next lines
  h.io.poll();
  h.write(line(::getpid(), "released", -1));
  std::this_thread::sleep_for(std::chrono::milliseconds(550));  // both are ready by then
  h.write(line(::getpid(), "kept", now()));
  h.run(1);
  CHECK(h.expired[0].scope == "kept");
}

TEST_CASE("bad lines are skipped with one warning") {
  Harness h;
  h.write("hello\n\n{}\n" + std::string(3, '\0') + "\n");
  h.io.poll();
  h.write(std::string(50000, 'x'));
  h.io.poll();
  h.write(std::string(50000, '{'));
  h.io.poll();
  h.write("\n" + line(::getpid(), "too late to be skipped", now()));
  h.run(1);
  CHECK(h.expired[0].scope == "too late to be skipped");
  REQUIRE(h.said.size() == 1);
  CHECK(h.said[0].find("was given something that is no timer: ignored") != std::string::npos);
}

TEST_CASE("a process that is gone is not reported") {
  Harness h;
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  h.write(line(child, "ends first", now() + 0.05));
  h.io.poll();
  ::kill(child, SIGKILL);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  h.write(line(child, "too late", now()));
  h.write(line(::getpid(), "lives", now() + 0.1));
  h.run(1);
  CHECK(h.expired[0].scope == "lives");
}

TEST_CASE("the FIFO has mode 0600, replaces an older one and is removed") {
  Harness h;
  struct stat info {};
  REQUIRE(::stat(h.path.c_str(), &info) == 0);
  CHECK(S_ISFIFO(info.st_mode));
  CHECK((info.st_mode & 0777) == 0600);

  Harness other;
  FileTimer second(h.io.get_executor(), [](const std::vector<TimerRequest>&) {});
  REQUIRE(second.open(h.path));
  h.timer.close();  // the FIFO was replaced
  CHECK(std::filesystem::exists(h.path));
  second.close();
  CHECK_FALSE(std::filesystem::exists(h.path));

  h.dir.file("precious", "data");
  const auto refused = h.timer.open(h.dir.file("precious"));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("is no FIFO") != std::string::npos);
  CHECK(test::read_file(h.dir.file("precious")) == "data");
  CHECK_FALSE(h.timer.open(h.dir.file("none/fifo")));
}

TEST_CASE("a FIFO that others have removed is made again for the next attempt") {
  Harness h;
  std::filesystem::remove(h.path);
  REQUIRE(h.timer.renew());
  h.write(line(::getpid(), "late", now() - 1));
  h.run(1);
}

TEST_CASE("the FIFO has the requested path") {
  LaunchSpec spec;
  const auto wanted = [&](std::vector<const char*> entries) {
    entries.push_back(nullptr);
    return timer_file_path(spec, Environment(entries.data()));
  };
  CHECK_FALSE(wanted({}));
  CHECK_FALSE(wanted({"TORCHELASTIC_TIMER_FILE=/x"}));
  CHECK_FALSE(wanted({"TORCHELASTIC_ENABLE_FILE_TIMER=0", "TORCHELASTIC_TIMER_FILE=/x"}));
  CHECK(wanted({"TORCHELASTIC_ENABLE_FILE_TIMER=1", "TORCHELASTIC_TIMER_FILE=/x"}) == "/x");
  const auto fresh = wanted({"TORCHELASTIC_ENABLE_FILE_TIMER=1"});
  REQUIRE(fresh);
  CHECK(fresh->find("/tmp/watchdog_timer_") == 0);
  CHECK(fresh != wanted({"TORCHELASTIC_ENABLE_FILE_TIMER=1"}));
  // A ddrun in a worker of another launcher does not use that launcher's FIFO.
  const auto nested = wanted({"TORCHELASTIC_ENABLE_FILE_TIMER=1", "TORCHELASTIC_TIMER_FILE=/x",
                              "TORCHELASTIC_RUN_ID=none", "TMPDIR=/scratch"});
  REQUIRE(nested);
  CHECK(nested->find("/scratch/watchdog_timer_") == 0);
  spec.first().env = {{"TORCHELASTIC_ENABLE_FILE_TIMER", "1"}};
  CHECK(wanted({}));
}
