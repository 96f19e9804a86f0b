// Log files: redirects, tees, filtered copies, attempts, full disks.

#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <filesystem>
#include <map>
#include <thread>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/test/files.hpp"
#include "output_harness.hpp"

using namespace ddrun;
using namespace ddrun::logs;
using namespace ddrun::test;
namespace fs = std::filesystem;

TEST_CASE("a stream that is only redirected is written by the worker itself") {
  TemporaryDirectory dir;
  OutputHarness h(2, [&](OutputOptions& options) {
    options.log.dir = dir.path();
    options.programs[0].streams.redirects.by_local_rank[1] = Streams::both;
  });
  h.start();
  CHECK(h.output->descriptors_per_worker(1) == 0);
  CHECK(h.output->descriptors_per_worker(0) == 2);
  CHECK(h.output->stdout_log(0).empty());
  CHECK_FALSE(h.output->console_shows_stderr(1));
  CHECK((::fcntl(h.workers[1].out.get(), F_GETFL) & O_APPEND) != 0);
  put(h.workers[1].out, "to the file");
  put(h.workers[1].err, "one\ntwo\nthree\n");
  put(h.workers[0].out, "shown\n");
  CHECK(h.tail(1, 2) == std::vector<std::string>{"two", "three"});
  CHECK(h.end());
  CHECK(read_file(h.output->stdout_log(1)) == "to the file");
  CHECK(h.shown_out == "[10] shown\n");
  CHECK(h.shown_err.empty());
  CHECK(fs::is_directory(fs::path(h.output->error_file(0)).parent_path()));
}

TEST_CASE("a tee files the exact bytes and shows lines with the label") {
  TemporaryDirectory dir;
  OutputHarness h(1, [&](OutputOptions& options) {
    options.log.dir = dir.path();
    options.programs[0].streams.tee.all_ranks = Streams::both;
    options.log.label = Label::torchrun;
    options.programs[0].role = "trainer";
  });
  h.start();
  CHECK(h.output->descriptors_per_worker(0) == 4);
  put(h.workers[0].out, std::string_view("a\r\n\0b", 5));
  put(h.workers[0].err, "e\n");
  // The bytes of a worker that has exited are on disk before ddrun reports its exit.
  h.output->drain(0);
  CHECK(read_file(h.output->stdout_log(0)) == std::string("a\r\n\0b", 5));
  CHECK(read_file(h.output->stderr_log(0)) == "e\n");
  CHECK(h.end());
  CHECK(h.shown_out == std::string("[trainer0]:a\r\n[trainer0]:\0b\n", 28));
  CHECK(h.shown_err == "[trainer0]:e\n");
  CHECK(h.output->losses().file_bytes == 0);
}

TEST_CASE("filters copy whole lines with their prefix to one file for all workers") {
  TemporaryDirectory dir;
  OutputHarness h(2, [&](OutputOptions& options) {
    options.log.dir = dir.path();
    options.programs[0].streams.tee.all_ranks = Streams::out;
    options.log.duplicate_stdout_filters = {"loss", "acc"};
  });
  h.start();
  put(h.workers[0].out, "step 1\nlo");
  h.output->drain(0);
  put(h.workers[1].out, "acc 0.5\n");
  h.output->drain(1);
  put(h.workers[0].out, "ss 3\nthe last loss");
  CHECK(h.end());
  CHECK(read_file(h.output->attempt_dir() + "/filtered_stdout.log") ==
        "[11] acc 0.5\n[10] loss 3\n[10] the last loss\n");
}

TEST_CASE("filters hold no more than 64 KiB of an unfinished line") {
  TemporaryDirectory dir;
  OutputHarness h(2, [&](OutputOptions& options) {
    options.log.dir = dir.path();
    options.log.duplicate_stdout_filters = {"loss"};
  });
  h.start();
  const std::string filtered = h.output->attempt_dir() + "/filtered_stdout.log";
  const std::string half(32 << 10, 'x');
  for (const std::string& part : {half, "loss" + half, half, half, half}) {
    put(h.workers[0].out, part);
    h.output->drain(0);
  }
  CHECK((read_file(filtered) == "[10] " + half + "loss" + half + "\n"));
  put(h.workers[0].out, "the last loss");
  CHECK(h.end());
  CHECK(read_file(filtered).ends_with("loss" + half + "\n[10] " + half + "the last loss\n"));
}

TEST_CASE("every attempt keeps its logs and the tail is that of the present one") {
  TemporaryDirectory dir;
  OutputHarness h(1, [&](OutputOptions& options) {
    options.log.dir = dir.path();
    options.programs[0].streams.tee.all_ranks = Streams::both;
  });
  std::vector<std::string> logs;
  for (int attempt = 0; attempt < 3; ++attempt) {
    h.start(attempt);
    CHECK(h.tail(0, 3).empty());
    put(h.workers[0].err, "attempt " + std::to_string(attempt) + "\n");
    CHECK(h.end());
    CHECK(h.tail(0, 3) == std::vector<std::string>{"attempt " + std::to_string(attempt)});
    logs.push_back(h.output->stderr_log(0));
  }
  for (int attempt = 0; attempt < 3; ++attempt) {
    const std::string log = logs[static_cast<std::size_t>(attempt)];
    CHECK(log.find("/attempt_" + std::to_string(attempt) + "/0/stderr.log") != std::string::npos);
    CHECK(read_file(log) == "attempt " + std::to_string(attempt) + "\n");
  }
}

TEST_CASE("a restart makes log directories again, and without them it shows what was redirected") {
  TemporaryDirectory dir;
  std::vector<std::string> said;
  set_message_sink([&](std::string_view line) { said.emplace_back(line); });
  const std::string logs = dir.file("deep/logs");
  OutputHarness h(2, [&](OutputOptions& options) {
    options.log.dir = logs;
    options.programs[0].streams.redirects.by_local_rank[0] = Streams::both;
    options.programs[0].streams.tee.by_local_rank[1] = Streams::out;
    options.log.duplicate_stdout_filters = {"loss"};
  });
  h.start();
  const std::string run = fs::path(h.output->attempt_dir()).parent_path();
  CHECK(h.end());
  fs::remove_all(dir.file("deep"));
  h.start(1);
  CHECK((fs::status(run).permissions() & fs::perms::mask) == fs::perms::owner_all);
  put(h.workers[0].out, "loss 1\n");
  CHECK(h.end());
  CHECK(read_file(h.output->stdout_log(0)) == "loss 1\n");
  CHECK(read_file(h.output->attempt_dir() + "/filtered_stdout.log").ends_with("loss 1\n"));
  CHECK(said.empty());

  fs::remove_all(logs);
  write_file(logs, "no directory");
  h.start(2);
  put(h.workers[0].out, "redirected\n");
  put(h.workers[0].err, "last words\n");
  put(h.workers[1].out, "teed\n");
  CHECK(h.tail(0, 1) == std::vector<std::string>{"last words"});
  CHECK(h.output->stdout_log(0).empty());
  CHECK(h.output->error_file(0).empty());
  CHECK(h.end());
  CHECK(h.shown_out.find("[10] redirected\n") != std::string::npos);
  CHECK(h.shown_out.find("[11] teed\n") != std::string::npos);
  CHECK(h.output->losses().file_bytes == 0);
  REQUIRE(said.size() == 1);
  CHECK(said[0].ends_with("/attempt_2: Not a directory; attempt 2 has no log files, and all output is shown\n"));

  fs::remove(logs);
  h.start(3);
  CHECK(fs::is_directory(fs::path(h.output->error_file(1)).parent_path()));
  CHECK(h.end());
  set_message_sink({});
}

TEST_CASE("a log directory that is removed before a rotation is made again") {
  TemporaryDirectory dir;
  OutputHarness h(1, [&](OutputOptions& options) {
    options.log.dir = dir.file("logs");
    options.programs[0].streams.tee.all_ranks = Streams::out;
    options.log.rotate_bytes = 1024;
  });
  h.start();
  put(h.workers[0].out, std::string(1000, 'x') + "\n");
  h.output->drain(0);
  fs::remove_all(dir.file("logs"));
  put(h.workers[0].out, std::string(999, 'y') + "\n");
  CHECK(h.end());
  CHECK(read_file(h.output->stdout_log(0)) == std::string(999, 'y') + "\n");
  CHECK(h.output->losses().file_bytes == 0);
}

TEST_CASE("the private directory of error files is made again, but never one of another user taken") {
  OutputHarness h(1);
  h.start();
  const std::string root = h.output->root();
  CHECK(h.end());
  fs::remove(root);
  h.start(1);
  CHECK(fs::is_directory(root));
  CHECK(h.end());
  fs::remove(root);
  fs::create_directory_symlink("/tmp", root);
  std::vector<std::string> said;
  set_message_sink([&](std::string_view line) { said.emplace_back(line); });
  h.start(2);
  set_message_sink({});
  CHECK(h.output->error_file(0).empty());
  CHECK(said.size() == 1);
  CHECK(h.end());
  fs::remove(root);
}

TEST_CASE("rotation of a redirected stream goes through ddrun and keeps every byte") {
  TemporaryDirectory dir;
  OutputHarness h(1, [&](OutputOptions& options) {
    options.log.dir = dir.path();
    options.programs[0].streams.redirects.all_ranks = Streams::out;
    options.log.rotate_bytes = 10'000;
  });
  h.start();
  std::string all;
  for (int i = 0; i < 5000; ++i) all += "line " + std::to_string(i) + "\n";
  std::thread writer([&] {
    push(h.workers[0].out, all);
    h.workers[0].out.reset();
  });
  const std::string log = h.output->stdout_log(0);
  const auto kept = [&] {
    std::string text;
    for (int i = 1; fs::exists(log + "." + std::to_string(i)); ++i) text += read_file(log + "." + std::to_string(i));
    return text + read_file(log);
  };
  CHECK(h.run_until([&] { return kept().size() >= all.size(); }));
  writer.join();
  CHECK(h.end());
  CHECK(kept() == all);
  CHECK(fs::exists(log + ".4"));
  CHECK(h.shown_out.empty());
}

TEST_CASE("a process outside of the job that holds a pipe open is not waited for") {
  OutputHarness h(2);
  h.start();
  const UniqueFd survivor = duplicate(h.workers[0].out.get()).value();
  put(h.workers[0].out, "unfinished");
  SECTION("with everything shown that was written so far") {
    CHECK(h.end());
    CHECK(h.shown_out == "[10] unfinished\n");
  }
  SECTION("also while the console takes nothing") {
    std::string all = "unfinished\n";
    while (all.size() < 2'000'000) all += "a line of some length for a console that is full\n";
    std::thread writer([&] { push(survivor, all); });
    h.read_consoles = false;
    CHECK(h.run_until([&] { return !h.output->is_flushed(); }));
    h.read_consoles = true;
    CHECK(h.run_until([&] { return h.shown_out.size() > all.size(); }));
    writer.join();
    CHECK(h.end());
  }
  CHECK(::write(survivor.get(), "x", 1) == -1);  // the reading end is closed
}

TEST_CASE("descriptors that others use are not counted as needed by the output") {
  OutputHarness h(2);
  REQUIRE(h.output->prepare());
  REQUIRE(h.output->begin_attempt(0, h.ranks));
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit small{128, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &small);
  std::vector<UniqueFd> of_others;
  while (auto copy = duplicate(STDIN_FILENO)) of_others.push_back(std::move(*copy));
  const auto streams = h.output->open_streams(0);
  ::setrlimit(RLIMIT_NOFILE, &before);
  REQUIRE_FALSE(streams);
  INFO(streams.error().message);
  CHECK(streams.error().message.find("all 128 open files that are allowed are in use; raise the limit with "
                                     "`ulimit -n 256`") != std::string::npos);
}

TEST_CASE("too few descriptors are reported with how many are needed") {
  OutputHarness h(100);
  REQUIRE(h.output->prepare());
  REQUIRE(h.output->begin_attempt(0, h.ranks));
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit small{64, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &small);
  Result<ChildStreams> streams{};
  for (int i = 0; i < 100 && streams; ++i) {
    streams = h.output->open_streams(i);
    if (streams) h.workers.push_back(std::move(*streams));
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
  REQUIRE_FALSE(streams);
  CHECK(streams.error().code == Errc::unavailable);
  INFO(streams.error().message);
  CHECK(streams.error().message.find("output of 100 workers needs about 264 open files, and only 64 are allowed; "
                                     "raise the limit with `ulimit -n 264`") != std::string::npos);
}

namespace {

/// A small tmpfs, where mounting is allowed; records ddrun's messages.
struct SmallDisk : TemporaryDirectory {
  SmallDisk() {
    if (::mount("none", path().c_str(), "tmpfs", 0, "size=64k") != 0) skip("cannot mount a small tmpfs here");
    set_message_sink([this](std::string_view line) { said.emplace_back(line); });
  }
  ~SmallDisk() {
    set_message_sink({});
    ::umount2(path().c_str(), MNT_DETACH);
  }
  std::vector<std::string> said;
};

}  // namespace

TEST_CASE("a full disk costs the log and not the job") {
  SmallDisk dir;
  OutputHarness h(2, [&](OutputOptions& options) {
    options.log.dir = dir.path();
    options.programs[0].streams.tee.all_ranks = Streams::out;
  });
  h.start();
  const std::string line = std::string(99, 'x') + "\n";
  std::thread writer([&] {
    for (int i = 0; i < 2000; ++i) push(h.workers[0].out, line);
    h.workers[0].out.reset();
  });
  const std::size_t shown = 2000 * (line.size() + 5);
  CHECK(h.run_until([&] { return h.shown_out.size() >= shown; }));
  writer.join();
  CHECK(h.end());
  CHECK(h.shown_out.size() == shown);
  const LossReport losses = h.output->losses();
  CHECK(losses.file_bytes + fs::file_size(h.output->stdout_log(0)) == 2000 * line.size());
  CHECK(losses.file_bytes > 100'000);
  CHECK(losses.console_bytes == 0);
  CHECK(losses.first_error == concat("cannot write ", h.output->stdout_log(0), ": No space left on device"));
  REQUIRE(dir.said.size() == 1);
  CHECK(dir.said[0].find("ddrun: warning: cannot write ") == 0);

  // A restart on the full disk goes on too.
  h.start(1);
  put(h.workers[1].out, "still here\n");
  CHECK(h.end());
  CHECK(h.shown_out.size() == shown + 16);
  CHECK(dir.said.size() == 1);
}
