#include <linux/memfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <functional>
#include <latch>

#include "ddrun/collectives/communicator.hpp"
#include "ddrun/test/catch.hpp"
#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using namespace std::chrono_literals;
using ddrun::test::in_time;
using ddrun::test::run_ranks;

namespace {

/// If not -1: huge pages seem to be there, and those from this offset on are denied, as by a control group.
std::atomic<off_t> deny_huge_from{-1};
std::atomic<ino_t> huge_file{0};

}  // namespace

// In place of the C library's.
extern "C" int memfd_create(const char* name, unsigned flags) {
  const bool huge = (flags & MFD_HUGETLB) != 0 && deny_huge_from >= 0;
  const int fd = static_cast<int>(syscall(SYS_memfd_create, name, huge ? flags & 0xffU & ~MFD_HUGETLB : flags));
  struct stat info {};
  if (huge && fd >= 0 && fstat(fd, &info) == 0) huge_file = info.st_ino;
  return fd;
}
extern "C" int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  struct stat info {};
  if (deny_huge_from >= 0 && fstat(fd, &info) == 0 && info.st_ino == huge_file && offset + bytes > deny_huge_from) {
    errno = ENOSPC;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, bytes));
}

namespace {

/// Size and owner of the memory; each selects another path.
struct Size {
  std::size_t count;
  bool own;
  PrivateCopy way = PrivateCopy::automatic;
};
constexpr std::array kSizes{Size{2, false}, Size{300, false}, Size{50000, false},
                            Size{50000, true, PrivateCopy::staged}, Size{50000, true}};

/// Makes the call in this memory.
Result<void> perform(Communicator& all, Call call, Size size, std::vector<std::byte>& own, Deadline deadline) {
  call.count = size.count;
  const std::size_t bytes = call.bytes() * static_cast<std::size_t>(all.size());
  own.resize(2 * bytes);
  call.in = size.own ? own.data() : all.send_buffer().data();
  call.out = size.own ? own.data() + bytes : all.recv_buffer().data();
  return all.perform(call, deadline);
}

constexpr std::size_t kBuffer = 50000 * 4 * 4;

std::vector<std::string> failures_of(int ranks, Size size, Errc code, const std::function<bool(int)>& participates,
                                     const std::function<Call(int)>& call_of, Milliseconds timeout) {
  std::latch all_have_seen(ranks);
  return run_ranks(ranks, [&](const Group& group) -> std::string {
    CommunicatorOptions options{Backend::shm, kBuffer};
    options.private_copy = size.way;
    auto connected = connect(group, options, in_time());
    std::string message = "did not come";
    if (!connected) message = connected.error().message;
    std::vector<std::byte> own;
    if (connected && participates(group.rank)) {
      const auto done = perform(*connected->communicator, call_of(group.rank), size, own, Clock::now() + timeout);
      message = done ? "fine" : done.error().message;
      if (!done && done.error().code != code) message = "wrong code: " + message;
    }
    // Leaves at once if the peers should see that; else only after they have failed.
    if (code == Errc::connection_lost) connected = fail(Errc::cancelled, "left");
    all_have_seen.arrive_and_wait();
    return message;
  });
}

Call in_a_ring(Collective collective, int rank, int size) {
  Call call;
  call.collective = collective;
  call.to = (rank + 1) % size;
  call.from = (rank + size - 1) % size;
  return call;
}

}  // namespace

TEST_CASE("a rank that leaves instead of any collective over shared memory is named by all others") {
  std::size_t next = 0;
  for (const Collective what : all_collectives) {
    for (const Size size : {kSizes[next % kSizes.size()], kSizes[(next + 2) % kSizes.size()]}) {
      const auto messages = failures_of(
          4, size, Errc::connection_lost, [](int rank) { return rank != 2; },
          [&](int rank) { return in_a_ring(what, rank, 4); }, 30s);
      CAPTURE(name_of(what), size.count, size.own);
      CHECK(messages == std::vector<std::string>{"rank 2 is gone", "rank 2 is gone", "did not come", "rank 2 is gone"});
    }
    ++next;
  }
}

TEST_CASE("ranks missing from a collective over shared memory are named at the deadline") {
  for (const Collective what : all_collectives) {
    const Size size = what < Collective::gather ? kSizes.front() : kSizes.back();
    const auto messages = failures_of(
        4, size, Errc::timeout, [](int rank) { return rank == 0 || rank == 2; },
        [&](int rank) { return in_a_ring(what, rank, 4); }, 50ms);
    CAPTURE(name_of(what), size.count, size.own);
    // On a busy machine one of the two participating ranks may be late as well.
    CHECK((messages[0] == "ranks 1,3 did not come in time" || messages[0] == "ranks 1-3 did not come in time"));
    CHECK((messages[2] == "ranks 1,3 did not come in time" || messages[2] == "ranks 0-1,3 did not come in time"));
  }
}

TEST_CASE("different collectives over shared memory are reported with both calls") {
  struct Pair {
    Call calls[2];
    std::string text[2];
  };
  Call broadcast = in_a_ring(Collective::broadcast, 0, 2);
  Call from_one = broadcast;
  from_one.root = 1;
  Call reduce = in_a_ring(Collective::reduce, 0, 2);
  Call maximum = reduce;
  maximum.op = ReduceOp::max;
  Call gather = in_a_ring(Collective::gather, 0, 2);
  Call ints = gather;
  ints.type = DataType::int32;
  const Call exchange = in_a_ring(Collective::all_to_all, 0, 2);
  for (const Size size : kSizes) {
    const std::string count = std::to_string(size.count);
    const std::vector<Pair> pairs{
        {{broadcast, from_one},
         {"broadcast of " + count + " float, root 0", "broadcast of " + count + " float, root 1"}},
        {{reduce, maximum},
         {"reduce of " + count + " float, sum, root 0", "reduce of " + count + " float, max, root 0"}},
        {{gather, ints}, {"gather of " + count + " float, root 0", "gather of " + count + " int32, root 0"}},
        {{gather, exchange}, {"gather of " + count + " float, root 0", "all_to_all of " + count + " float"}}};
    for (const Pair& pair : pairs) {
      const auto messages = failures_of(
          2, size, Errc::invalid_argument, [](int) { return true; },
          [&](int rank) { return pair.calls[static_cast<std::size_t>(rank)]; }, 30s);
      const auto message = [&](int other, int own) {
        return concat("rank ", other, " calls ", pair.text[other], ", rank ", own, ' ', pair.text[own],
                      ": all ranks must make the same calls");
      };
      CHECK(messages == std::vector<std::string>{message(1, 0), message(0, 1)});
    }
  }
}

TEST_CASE("all ranks report a receive from a rank that sends elsewhere") {
  for (const Size size : kSizes) {
    const auto messages = failures_of(
        3, size, Errc::invalid_argument, [](int) { return true; },
        [&](int rank) {
          Call call = in_a_ring(Collective::send_recv, rank, 3);
          if (rank == 1) call.from = 2;
          return call;
        },
        30s);
    CHECK(messages == std::vector<std::string>(3,
                                               "rank 1 receives from rank 2, which sends to rank 0: who is received "
                                               "from must send there"));
  }
}

TEST_CASE("huge pages that are denied after they were mapped are replaced by small ones") {
  // To rank 0, or only to a later rank.
  for (const off_t from : {off_t{0}, off_t{8} << 20}) {
    deny_huge_from = from;
    huge_file = 0;
    const auto messages = run_ranks(3, [&](const Group& group) -> std::string {
      auto connected = connect(group, {Backend::shm, 1 << 20}, in_time());
      if (!connected) return connected.error().message;
      std::vector<std::byte> own;
      const auto done = perform(*connected->communicator, in_a_ring(Collective::all_reduce, group.rank, 3),
                                {300, false}, own, in_time());
      return done ? connected->communicator->details().substr(0, 11) : done.error().message;
    });
    CHECK(huge_file != 0);
    CHECK(messages == std::vector<std::string>(3, "4 KiB pages"));
  }
  deny_huge_from = -1;
}
