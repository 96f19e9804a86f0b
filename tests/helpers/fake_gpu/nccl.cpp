// A fake libnccl.so.2 for GPUs in host memory: the ranks of a communicator, threads or processes, share a file. A call
// is work on a stream: write this rank's data; once all have written, read the result.

#include "gpu/nccl_abi.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "../../unit/collectives/naive.hpp"
#include "stream.hpp"

using namespace ddrun::collectives::nccl;
using ddrun::test::fake::note;
using ddrun::test::fake::wanted;
namespace cuda = ddrun::collectives::cuda;

namespace {

constexpr int kMostRanks = 16;
constexpr Status internal_error = 3;
constexpr std::size_t kSlot = std::size_t{32} << 20;
constexpr std::size_t kHeader = 4096;

struct Shared {
  std::atomic<int> joined;
  std::atomic<std::uint64_t> given[kMostRanks];
  std::atomic<std::uint64_t> taken[kMostRanks];
};

/// A sent block in a slot: peer, bytes, data.
struct Parcel {
  std::uint64_t peer;
  std::uint64_t bytes;
};

struct Piece {
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
};

}  // namespace

namespace ddrun::collectives::nccl {
struct CommunicatorState {
  using State = CommunicatorState;
  int rank = 0;
  int size = 1;
  std::byte* memory = nullptr;
  bool blocking = true;
  bool joined = false;
  std::atomic<bool> aborted = false;
  std::uint64_t sequence = 0;
  std::map<std::string, int> calls{};
  std::string path{};
  /// A call that does not block is made by a thread of its own.
  std::thread launcher{};
  std::atomic<bool> launching = false;
  /// Graphs, executable or not, that contain its calls.
  std::atomic<int> graphs = 0;
  /// The child that is being split off, and where its handle goes once it is connected.
  State* child = nullptr;
  Comm* child_handle = nullptr;

  [[nodiscard]] Shared& shared() const { return *reinterpret_cast<Shared*>(memory); }
  [[nodiscard]] std::byte* slot(int of) const { return memory + kHeader + static_cast<std::size_t>(of) * kSlot; }

  template <class Words>
  bool all_are_at(const Words& words, std::uint64_t least) const {
    return std::all_of(words, words + size, [&](const auto& one) { return one.load() >= least; });
  }
};
}  // namespace ddrun::collectives::nccl

namespace {

using State = CommunicatorState;

std::size_t size_of_type(Type type) { return ddrun::collectives::type_sizes.at(static_cast<std::size_t>(type)); }

enum class Script { none, fail, hang, block };

void pause_shortly() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

/// After an abort the real one's memory is freed.
void assert_alive(const State& comm) {
  if (comm.aborted) std::abort();
}

Script script_for(State& comm, const std::string& function) {
  const std::string now = function + ":" + std::to_string(++comm.calls[function]);
  if (wanted("fail", "") == now) return Script::fail;
  if (wanted("block", "") == now) return Script::block;
  return wanted("hang", "") == now ? Script::hang : Script::none;
}

/// As the real one, without end.
void wait_for_graphs(const State& comm) {
  while (comm.graphs != 0) pause_shortly();
}

/// Held by the graph in which a call is captured.
std::shared_ptr<void> hold(State& comm) {
  ++comm.graphs;
  return {nullptr, [&comm](std::nullptr_t) { --comm.graphs; }};
}

/// `write_input` writes this rank's slot; `read_output` reads all ranks' slots.
Status add(State& comm, cuda::Stream stream, const std::string& function, std::function<void(std::byte*)> write_input,
           std::function<void()> read_output) {
  assert_alive(comm);
  const Script script = script_for(comm, function);
  if (script == Script::fail) return unhandled_cuda_error;
  const auto held = stream->capturing ? hold(comm) : nullptr;
  const auto recipe = [held, &comm, script, write_input, read_output] {
    auto sequence = std::make_shared<std::uint64_t>(0);
    return [&comm, script, write_input, read_output, sequence] {
      if (comm.aborted) return true;
      if (script == Script::hang) return false;
      Shared& shared = comm.shared();
      if (*sequence == 0) {
        if (!comm.all_are_at(shared.taken, comm.sequence)) return false;
        *sequence = ++comm.sequence;
        write_input(comm.slot(comm.rank));
        shared.given[comm.rank] = *sequence;
      }
      if (!comm.all_are_at(shared.given, *sequence)) return false;
      read_output();
      shared.taken[comm.rank] = *sequence;
      return true;
    };
  };
  const auto launch = [&comm, script, stream, recipe, function] {
    if (script == Script::block) note(function + " blocks");
    while (script == Script::block && !comm.aborted) pause_shortly();
    if (!comm.aborted) stream->add(recipe);
    comm.launching = false;
    return script == Script::block ? internal_error : success;
  };
  if (comm.blocking) return launch();
  note("a thread for " + function);
  if (comm.launcher.joinable()) comm.launcher.join();
  comm.launching = true;
  comm.launcher = std::thread(launch);
  return in_progress;
}

void reduce_slots(State& comm, std::size_t offset, void* out, std::size_t count, Type type, Op op) {
  const std::size_t size = size_of_type(type);
  std::vector<const std::byte*> in(static_cast<std::size_t>(comm.size));
  for (std::size_t i = 0; i < count; ++i) {
    for (int rank = 0; rank < comm.size; ++rank)
      in[static_cast<std::size_t>(rank)] = comm.slot(rank) + offset + i * size;
    ddrun::test::naive_element(static_cast<ddrun::collectives::DataType>(type),
                               static_cast<ddrun::collectives::ReduceOp>(op), in,
                               static_cast<std::byte*>(out) + i * size, comm.size);
  }
}

// A group is of one thread.
thread_local int group_depth = 0;
thread_local std::vector<Piece> group_sends;
thread_local std::vector<Piece> group_receives;
thread_local State* group_comm = nullptr;
thread_local cuda::Stream group_stream = nullptr;

Status end_group() {
  if (group_comm == nullptr) return success;
  State& comm = *std::exchange(group_comm, nullptr);
  const auto write_input = [sends = std::move(group_sends)](std::byte* slot) {
    for (const Piece& piece : sends) {
      const Parcel parcel{static_cast<std::uint64_t>(piece.peer), piece.bytes};
      std::memcpy(slot, &parcel, sizeof(parcel));
      std::memcpy(slot + sizeof(parcel), piece.in, piece.bytes);
      slot += sizeof(parcel) + piece.bytes;
    }
    const Parcel end{kMostRanks, 0};
    std::memcpy(slot, &end, sizeof(end));
  };
  const auto read_output = [&comm, receives = std::move(group_receives)] {
    for (const Piece& piece : receives) {
      const std::byte* slot = comm.slot(piece.peer);
      Parcel parcel{};
      for (std::memcpy(&parcel, slot, sizeof(parcel)); parcel.peer != kMostRanks;) {
        if (parcel.peer == static_cast<std::uint64_t>(comm.rank)) {
          std::memcpy(piece.out, slot + sizeof(parcel), std::min(parcel.bytes, piece.bytes));
          break;
        }
        slot += sizeof(parcel) + parcel.bytes;
        std::memcpy(&parcel, slot, sizeof(parcel));
      }
    }
  };
  group_sends.clear();
  group_receives.clear();
  return add(comm, group_stream, "ncclGroupEnd", write_input, read_output);
}

bool join(State& comm) {
  if (!comm.joined && wanted("init", "") != "hang") comm.joined = comm.shared().joined.load() == comm.size;
  return comm.joined;
}

/// A rank of the communicator whose ranks share this file; null: it cannot be opened.
[[maybe_unused]] State* make_rank(const std::string& path, int ranks, int rank, const Config& config) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const std::size_t bytes = kHeader + static_cast<std::size_t>(ranks) * kSlot;
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return nullptr;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return nullptr;
  auto* const made = new State;
  made->rank = rank;
  made->size = ranks;
  made->memory = static_cast<std::byte*>(memory);
  made->path = path;
  note("communicator begins");
  const char* const forced = std::getenv("NCCL_COMM_BLOCKING");
  made->blocking = forced != nullptr && (*forced == '0' || *forced == '1') ? *forced == '1' : config.blocking == 1;
  return made;
}

[[maybe_unused]] bool is_right(const Config& config) {
  return config.size == sizeof(Config) && config.magic == 0xcafebeef && (config.blocking == 0 || config.blocking == 1);
}

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default")))

// As a driver that waits for a kernel that never ends.
__attribute__((destructor)) static void exit_handler() {
  while (wanted("abort", "") == "hang") pause();
}

FAKE Status ncclGetVersion(int* version) { return *version = std::stoi(wanted("nccl", "22809")), success; }
FAKE const char* ncclGetErrorString(Status) { return "a failure that the test wants"; }
FAKE const char* ncclGetLastError(Comm) { return "as scripted"; }
FAKE Status ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> made{0};
  id->internal.fill('\0');
  const std::string path =
      wanted("dir", "/tmp") + "/fake-nccl." + std::to_string(getpid()) + "." + std::to_string(++made);
  path.copy(id->internal.data(), id->internal.size() - 1);
  return success;
}

#ifndef FAKE_OLD_NCCL
FAKE Status ncclCommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank, Config* config) {
  if (!is_right(*config)) return invalid_usage;
  State* const made = make_rank(id.internal.data(), ranks, rank, *config);
  if (made == nullptr) return invalid_usage;
  // A failure leaves a handle too, which is to be aborted.
  *comm = made;
  if (script_for(*made, "ncclCommInitRankConfig") == Script::fail) return unhandled_cuda_error;
  ++made->shared().joined;
  while (made->blocking && !join(*made)) pause_shortly();
  return made->blocking ? success : in_progress;
}
FAKE Status ncclCommInitRankScalable(Comm* comm, int ranks, int rank, int, UniqueId* ids, Config* config) {
  return ncclCommInitRankConfig(comm, ranks, ids[0], rank, config);
}
#endif

FAKE Status ncclCommGetAsyncError(Comm comm, Status* error) {
  assert_alive(*comm);
  const bool ready = join(*comm) && !comm->launching;
  if (ready && comm->launcher.joinable()) comm->launcher.join();
  if (ready && comm->child != nullptr && join(*comm->child)) *comm->child_handle = std::exchange(comm->child, nullptr);
  *error = ready && comm->child == nullptr ? success : in_progress;
  return success;
}

#ifndef FAKE_NCCL_WITHOUT_SPLIT
// All ranks stay together. It blocks if the parent's calls do.
FAKE Status ncclCommSplit(Comm comm, int, int, Comm* split, Config* config) {
  assert_alive(*comm);
  if (!is_right(*config) || !comm->joined) return invalid_usage;
  comm->child = make_rank(comm->path + ".split", comm->size, comm->rank, *config);
  if (comm->child == nullptr) return invalid_usage;
  *split = nullptr;
  comm->child_handle = split;
  ++comm->child->shared().joined;
  Status state = in_progress;
  while (comm->blocking && state == in_progress) (void)ncclCommGetAsyncError(comm, &state);
  return comm->blocking ? success : in_progress;
}
#endif

FAKE Status ncclCommFinalize(Comm) { return success; }
FAKE Status ncclCommDestroy(Comm comm) {
  wait_for_graphs(*comm);
  note("communicator ends");
  if (comm->launcher.joinable()) comm->launcher.join();
  munmap(comm->memory, kHeader + static_cast<std::size_t>(comm->size) * kSlot);
  delete comm;
  return success;
}
FAKE Status ncclCommAbort(Comm comm) {
  while (wanted("abort", "") == "hang") pause();
  // Work that is still on a stream asks whether it is aborted, so the rest is left behind: reachable, which is no leak.
  static std::mutex mutex;
  static auto* const left_behind = new std::vector<Comm>;
  {
    const std::lock_guard lock(mutex);
    left_behind->push_back(comm);
  }
  comm->aborted = true;
  if (comm->launcher.joinable()) comm->launcher.join();
  wait_for_graphs(*comm);
  note("communicator ends");
  return success;
}
FAKE Status ncclMemAlloc(void** memory, std::size_t bytes) {
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return *memory != nullptr ? success : unhandled_cuda_error;
}
FAKE Status ncclMemFree(void* memory) { return std::free(memory), success; }
FAKE Status ncclCommRegister(Comm comm, void*, std::size_t, void** handle) {
  *handle = wanted("register", "") == "none" ? nullptr : comm;
  return success;
}
FAKE Status ncclCommDeregister(Comm, void*) { return success; }

FAKE Status ncclAllReduce(const void* in, void* out, std::size_t count, Type type, Op op, Comm comm,
                          cuda::Stream stream) {
  return add(
      *comm, stream, "ncclAllReduce", [=](std::byte* slot) { std::memcpy(slot, in, count * size_of_type(type)); },
      [=] { reduce_slots(*comm, 0, out, count, type, op); });
}
FAKE Status ncclReduce(const void* in, void* out, std::size_t count, Type type, Op op, int root, Comm comm,
                       cuda::Stream stream) {
  return add(
      *comm, stream, "ncclReduce", [=](std::byte* slot) { std::memcpy(slot, in, count * size_of_type(type)); },
      [=] {
        if (comm->rank == root) reduce_slots(*comm, 0, out, count, type, op);
      });
}
FAKE Status ncclBroadcast(const void* in, void* out, std::size_t count, Type type, int root, Comm comm,
                          cuda::Stream stream) {
  const std::size_t bytes = count * size_of_type(type);
  return add(
      *comm, stream, "ncclBroadcast",
      [=](std::byte* slot) {
        if (comm->rank == root) std::memcpy(slot, in, bytes);
      },
      [=] { std::memcpy(out, comm->slot(root), bytes); });
}
FAKE Status ncclAllGather(const void* in, void* out, std::size_t count, Type type, Comm comm, cuda::Stream stream) {
  const std::size_t bytes = count * size_of_type(type);
  return add(
      *comm, stream, "ncclAllGather", [=](std::byte* slot) { std::memcpy(slot, in, bytes); },
      [=] {
        for (int rank = 0; rank < comm->size; ++rank) {
          std::memcpy(static_cast<std::byte*>(out) + static_cast<std::size_t>(rank) * bytes, comm->slot(rank), bytes);
        }
      });
}
FAKE Status ncclReduceScatter(const void* in, void* out, std::size_t count, Type type, Op op, Comm comm,
                              cuda::Stream stream) {
  const std::size_t bytes = count * size_of_type(type);
  const auto blocks = static_cast<std::size_t>(comm->size);
  return add(
      *comm, stream, "ncclReduceScatter", [=](std::byte* slot) { std::memcpy(slot, in, blocks * bytes); },
      [=] { reduce_slots(*comm, static_cast<std::size_t>(comm->rank) * bytes, out, count, type, op); });
}
FAKE Status ncclSend(const void* in, std::size_t count, Type type, int peer, Comm comm, cuda::Stream stream) {
  group_comm = comm;
  group_stream = stream;
  group_sends.push_back({in, nullptr, count * size_of_type(type), peer});
  return success;
}
FAKE Status ncclRecv(void* out, std::size_t count, Type type, int peer, Comm comm, cuda::Stream stream) {
  group_comm = comm;
  group_stream = stream;
  group_receives.push_back({nullptr, out, count * size_of_type(type), peer});
  return success;
}
FAKE Status ncclGroupStart() { return ++group_depth, success; }
FAKE Status ncclGroupEnd() { return --group_depth == 0 ? end_group() : success; }
