// Cross-process copies of private memory: permitted, denied, and with exiting peers.

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <functional>
#include <latch>
#include <thread>

#include "ddrun/collectives/communicator.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/seccomp.hpp"
#include "describe.hpp"
#include "ranks.hpp"
#include "shm/communicator.hpp"
#include "shm/mover.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using namespace std::chrono_literals;
using ddrun::test::can_access_processes;
using ddrun::test::in_time;
using ddrun::test::run_ranks;

namespace {

const char* const kRefused = "this system lets no process reach into another (process_vm_readv)";

/// Pages of this process that can be made inaccessible.
class Pages {
 public:
  explicit Pages(std::size_t count) : bytes_(count * page_bytes) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { munmap(data_, bytes_); }

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }
  void protect(std::size_t page) const { mprotect(data() + page * page_bytes, page_bytes, PROT_NONE); }

 private:
  std::size_t bytes_;
  void* data_ = nullptr;
};

/// A child process that runs rank 1; killed and reaped at the end.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(fork()) {
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    _exit(0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { end(); }

  [[nodiscard]] pid_t pid() const { return pid_; }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

CommunicatorOptions options_with(PrivateCopy way) {
  CommunicatorOptions options{Backend::shm, 64};
  options.private_copy = way;
  return options;
}

Call call_of(Collective collective, std::vector<float>& in, std::vector<float>& out, std::size_t count) {
  Call call;
  call.collective = collective;
  call.count = count;
  call.in = reinterpret_cast<const std::byte*>(in.data());
  call.out = reinterpret_cast<std::byte*>(out.data());
  return call;
}

}  // namespace

TEST_CASE("memory is copied from and to a process, or an errno is returned") {
  if (!can_access_processes()) ddrun::test::skip(kRefused);
  const Pages mine(3);
  const Pages theirs(3);
  std::fill_n(theirs.data(), 3 * page_bytes, std::byte{7});
  CHECK(copy_from_process(getpid(), mine.data(), theirs.data(), 3 * page_bytes) == 0);
  CHECK(std::all_of(mine.data(), mine.data() + 3 * page_bytes, [](std::byte one) { return one == std::byte{7}; }));
  std::fill_n(mine.data(), 3 * page_bytes, std::byte{8});
  CHECK(copy_to_process(getpid(), theirs.data() + 5, mine.data(), 2 * page_bytes) == 0);
  CHECK(theirs.data()[4] == std::byte{7});
  CHECK(theirs.data()[5] == std::byte{8});
  CHECK(theirs.data()[2 * page_bytes + 5] == std::byte{7});
  CHECK(copy_from_process(getpid(), mine.data(), theirs.data(), 0) == 0);

  // Valid memory followed by an inaccessible page.
  theirs.protect(2);
  CHECK(copy_from_process(getpid(), mine.data(), theirs.data(), 3 * page_bytes) == EFAULT);
  CHECK(copy_to_process(getpid(), theirs.data(), mine.data(), 3 * page_bytes) == EFAULT);

  AccessProbe probe{42, 0};
  const auto address = reinterpret_cast<std::uintptr_t>(&probe);
  CHECK(probe_process(getpid(), {address, 42}) == 0);
  CHECK(probe.writable == 42);
  CHECK(probe_process(getpid(), {address, 43}) == ESRCH);
  CHECK(!is_process_gone(getpid(), {address, 42}));
  Child child([] { pause(); });
  const pid_t pid = child.pid();
  CHECK(!is_process_gone(pid, {address, 42}));
  child.end();
  CHECK(is_process_gone(pid, {address, 42}));
  CHECK(copy_from_process(pid, mine.data(), theirs.data(), page_bytes) == ESRCH);
}

TEST_CASE("one rank without access to another makes all ranks stage private memory") {
  if (!can_access_processes()) ddrun::test::skip(kRefused);
  for (const long call : {SYS_process_vm_readv, SYS_process_vm_writev}) {
    const auto messages = run_ranks(3, [&](const Group& group) -> std::string {
      if (group.rank == 1 && !test::deny(call, EPERM)) return "no filter";
      auto connected = connect(group, options_with(PrivateCopy::automatic), in_time());
      if (!connected) return connected.error().message;
      std::vector<float> in(60000, 2);
      std::vector<float> out(60000);
      if (auto done = connected->communicator->sum(in, out, in_time()); !done) return done.error().message;
      if (out != std::vector<float>(60000, 6)) return "wrong";
      const std::string details = connected->communicator->details();
      return details.substr(details.find("; ") + 2);
    });
    CHECK(messages == std::vector<std::string>(3,
                                               "private memory is copied twice: rank 1 does not reach the memory of "
                                               "rank 0 (Operation not permitted)"));
  }
  const auto messages = run_ranks(2, [&](const Group& group) -> std::string {
    if (group.rank == 0 && !test::deny(SYS_process_vm_readv, EPERM)) return "no filter";
    const auto connected = connect(group, options_with(PrivateCopy::cross_process), in_time());
    if (connected || connected.error().code != Errc::unsupported) return "it was not refused";
    return connected.error().message;
  });
  CHECK(messages == std::vector<std::string>(2,
                                             "private memory cannot go across: rank 0 does not reach the memory of "
                                             "rank 1 (Operation not permitted)"));
}

TEST_CASE("details() describes how private memory is copied") {
  const auto details_of = [](PrivateCopy way, int ranks) {
    return run_ranks(ranks, [&](const Group& group) -> std::string {
      auto connected = connect(group, options_with(way), in_time());
      if (!connected) return connected.error().message;
      const std::string details = connected->communicator->details();
      const auto at = details.find("; ");
      return at == std::string::npos ? "nothing" : details.substr(at + 2);
    });
  };
  CHECK(details_of(PrivateCopy::staged, 2) == std::vector<std::string>(2, "private memory is copied twice"));
  CHECK(details_of(PrivateCopy::automatic, 1) == std::vector<std::string>(1, "nothing"));
  if (!can_access_processes()) ddrun::test::skip(kRefused);
  CHECK(details_of(PrivateCopy::automatic, 3) == std::vector<std::string>(3, "private memory is copied once"));
  CHECK(details_of(PrivateCopy::automatic, 4) ==
        std::vector<std::string>(4, "private memory is copied once, by reductions twice"));
  CHECK(details_of(PrivateCopy::automatic, 5) ==
        std::vector<std::string>(
            5, "private memory is copied once by broadcast, gather, scatter and send_recv, else twice"));
}

TEST_CASE("inaccessible memory of one rank fails the call on all ranks") {
  if (!can_access_processes()) ddrun::test::skip(kRefused);
  constexpr std::size_t kPages = 64;
  const auto messages = run_ranks(3, [&](const Group& group) -> std::string {
    auto connected = connect(group, options_with(PrivateCopy::cross_process), in_time());
    if (!connected) return connected.error().message;
    const Pages in(3 * kPages);
    const Pages out(3 * kPages);
    // In the block for rank 2.
    if (group.rank == 1) in.protect(3 * kPages - 1);
    Call call;
    call.collective = Collective::all_to_all;
    call.count = kPages * page_bytes / sizeof(float);
    call.in = in.data();
    call.out = out.data();
    const auto done = connected->communicator->perform(call, in_time());
    if (done) return "it did not fail";
    if (done.error().code != Errc::unavailable) return "wrong code: " + done.error().message;
    // The communicator stays failed.
    const auto again = connected->communicator->barrier(in_time());
    return again ? "it went on" : again.error().message;
  });
  CHECK(messages == std::vector<std::string>(3,
                                             "rank 2 does not reach the memory of rank 1 (Bad address): is all of it "
                                             "there, as plain memory of the process?"));
}

TEST_CASE("no peer accesses the memory of a rank whose call has timed out") {
  if (!can_access_processes()) ddrun::test::skip(kRefused);
  constexpr std::size_t kCount = 100000;
  std::latch first_has_failed(2);
  std::latch all_have_failed(3);
  const auto messages = run_ranks(3, [&](const Group& group) -> std::string {
    auto connected = connect(group, options_with(PrivateCopy::cross_process), in_time());
    std::vector<float> in(kCount, 2);
    std::vector<float> out(kCount, 1);
    if (group.rank == 2) first_has_failed.arrive_and_wait();
    const Deadline until = group.rank == 0 ? Clock::now() + 20ms : Clock::now() + 300ms;
    const auto done = connected ? connected->communicator->sum(in, out, until) : tl::unexpected(connected.error());
    if (group.rank == 0) first_has_failed.arrive_and_wait();
    all_have_failed.arrive_and_wait();
    if (done) return "it did not fail";
    if (out != std::vector<float>(kCount, 1)) return "written to";
    return done.error().code == Errc::timeout ? "too late" : done.error().message;
  });
  CHECK(messages == std::vector<std::string>(3, "too late"));
}

namespace {

/// Two processes that share a segment.
struct Pair {
  std::shared_ptr<Segment> segment;
  ShmCommunicator::Options options{0, false, PrivateCopy::cross_process};

  Pair() {
    auto made = Segment::create(Layout(2, 0).end(), 0);
    if (made) segment = *made;
  }
  /// `pids` are those of both ranks.
  [[nodiscard]] Result<std::unique_ptr<ShmCommunicator>> connect(int rank, const std::vector<int>& pids) const {
    auto made = ShmCommunicator::start(segment, rank, pids, options);
    if (!made) return made;
    if (auto synced = (*made)->probe_private_access(in_time()); !synced) return tl::unexpected(synced.error());
    return made;
  }
};

}  // namespace

TEST_CASE("a process that is killed while its memory is copied is reported as lost") {
  if (!can_access_processes()) ddrun::test::skip(kRefused);
  constexpr std::size_t kCount = std::size_t{1} << 20;
  for (int round = 0; round < (ddrun::test::kSanitized ? 3 : 10); ++round) {
    const Pair pair;
    REQUIRE(pair.segment);
    const pid_t parent = getpid();
    std::vector<float> in(2 * kCount, 1);
    std::vector<float> out(2 * kCount);
    std::atomic<int> calls{0};
    const auto work = [&](Communicator& all) {
      Result<void> done;
      for (; done; ++calls) done = all.perform(call_of(Collective::all_to_all, in, out, kCount), in_time());
      return done;
    };
    Child child([&] {
      auto all = pair.connect(1, {parent, getpid()});
      if (all) static_cast<void>(work(**all));
    });
    auto all = pair.connect(0, {parent, child.pid()});
    REQUIRE(all);
    std::latch at_work(2);
    // During a call or between two.
    std::thread killer([&] {
      at_work.arrive_and_wait();
      while (calls.load() < 3 + round) std::this_thread::yield();
      kill(child.pid(), SIGKILL);
    });
    at_work.arrive_and_wait();
    const auto done = work(**all);
    killer.join();
    REQUIRE(!done);
    CHECK(done.error().code == Errc::connection_lost);
    CHECK(done.error().message == "rank 1 is gone");
  }
}

TEST_CASE("a process that exits after it has announced its memory is reported as lost") {
  if (!can_access_processes()) ddrun::test::skip(kRefused);
  constexpr std::size_t kCount = std::size_t{1} << 16;
  const Pair pair;
  REQUIRE(pair.segment);
  const pid_t parent = getpid();
  std::vector<float> in(2 * kCount, 1);
  std::vector<float> out(2 * kCount);
  const Call call = call_of(Collective::all_to_all, in, out, kCount);
  Child child([&] {
    auto all = pair.connect(1, {parent, getpid()});
    if (!all) return;
    // Announces the call as run_large() does, then exits. Two barriers have passed.
    const Layout layout(2, 0);
    std::byte* const start = pair.segment->data();
    Line* const lines = reinterpret_cast<Line*>(start + layout.lines());
    Line& mine = lines[2 + 1];
    mine.kind = kind_of(call);
    mine.count = call.count;
    mine.in = mine.out = not_shared;
    const Addresses addresses{reinterpret_cast<std::uintptr_t>(call.in), reinterpret_cast<std::uintptr_t>(call.out)};
    std::memcpy(mine.data.data(), &addresses, sizeof(addresses));
    mine.phase.store(3);
    kill(getpid(), SIGKILL);
  });
  auto all = pair.connect(0, {parent, child.pid()});
  REQUIRE(all);
  const auto done = (*all)->perform(call, in_time());
  REQUIRE(!done);
  CHECK(done.error().code == Errc::connection_lost);
  CHECK(done.error().message == "rank 1 is gone");
}

TEST_CASE("where pidfds are denied a killed process is reported as lost by all others") {
  for (const int error : {EPERM, ENOSYS}) {
    for (const int killed : {1, 2}) {
      CAPTURE(error, killed);
      auto segment = Segment::create(Layout(3, 0).end(), 0);
      REQUIRE(segment);
      // The pids, then whether the ranks have reported the right one.
      void* const shared = mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      REQUIRE(shared != MAP_FAILED);
      auto* const pids = new (shared) std::atomic<int>[6] {};
      pids[0] = getpid();
      const auto take_part = [&](int rank, const std::function<void()>& connected) -> std::string {
        if (!test::deny(SYS_pidfd_open, error)) return "no filter";
        while (pids[1] == 0 || pids[2] == 0) std::this_thread::yield();
        auto all = ShmCommunicator::start(*segment, rank, {pids[0], pids[1], pids[2]}, {0, false, PrivateCopy::staged});
        if (!all) return all.error().message;
        if (auto done = (*all)->barrier(in_time()); !done) return done.error().message;
        connected();
        const auto done = (*all)->barrier(in_time());
        const std::string message = done ? "it went on" : done.error().message;
        if (message == concat("rank ", killed, " is gone")) pids[3 + rank] = 1;
        return message;
      };
      const auto stay = [&](int rank) {
        return [&, rank] {
          take_part(rank, [&] {
            while (rank == killed) pause();
          });
        };
      };
      Child one(stay(1));
      pids[1] = one.pid();
      Child two(stay(2));
      pids[2] = two.pid();
      std::string message;
      // Not reaped until the end: a zombie counts as gone.
      std::thread rank0([&] { message = take_part(0, [&] { kill(pids[killed], SIGKILL); }); });
      rank0.join();
      CHECK(message == concat("rank ", killed, " is gone"));
      siginfo_t info{};
      waitid(P_PID, static_cast<id_t>(pids[3 - killed].load()), &info, WEXITED | WNOWAIT);
      CHECK(pids[3 + 3 - killed] == 1);
      munmap(shared, page_bytes);
    }
  }
}
