#include "process_reader.hpp"

#include <dirent.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "memory.hpp"
#include "peers.hpp"
#include "unwinder.hpp"

namespace ddrun::inspect {

namespace {

constexpr std::size_t max_read_threads = 512;
constexpr std::size_t max_blocked_threads = 16;  ///< read besides the main one, if that waits for another thread
constexpr std::size_t native_frame_bytes = 256;  ///< with its names, about
// Of a process that waits for a pipe.
constexpr std::size_t max_children = 64;
constexpr std::size_t max_awaited = 3;
constexpr std::size_t max_descriptors = 4096;
/// Processes between a worker and the one that does its work: `sh -c`, `uv run`, `numactl`.
constexpr int max_launchers = 8;
/// Time for the kernel's next sample of a computing thread.
constexpr Milliseconds sample_time{20};
constexpr Milliseconds unwind_time{250};  ///< kept for the main thread

std::vector<pid_t> numbers_in(std::string_view text) {
  std::vector<pid_t> numbers;
  for (const std::string& word : split(text, ' ')) {
    if (const auto number = whole_number<pid_t>(word)) numbers.push_back(*number);
  }
  return numbers;
}

/// The first names in a folder that are numbers.
std::vector<int> entries_of(const std::string& folder, std::size_t limit = std::string::npos) {
  std::vector<int> entries;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), ::closedir);
  while (const dirent* const entry = open && entries.size() < limit ? ::readdir(open.get()) : nullptr) {
    for (const int number : numbers_in(entry->d_name)) entries.push_back(number);
  }
  return entries;
}

/// The main thread first.
std::vector<pid_t> threads_of(pid_t pid) {
  std::vector<pid_t> threads = entries_of(concat("/proc/", pid, "/task"));
  std::ranges::sort(threads, {}, [pid](pid_t thread) { return std::pair(thread != pid, thread); });
  return threads;
}

struct ThreadFacts {
  ThreadStack thread;
  std::optional<SystemCall> call;
  Activity activity;
};

std::optional<ThreadFacts> read_thread(pid_t pid, pid_t tid, const Memory* memory, TcpTables& tables) {
  const std::string task = concat("/proc/", pid, "/task/", tid);
  const auto stat = read_small_file(task + "/stat");
  const std::size_t name_end = stat ? stat->rfind(')') : std::string::npos;
  const std::size_t name_begin = stat ? stat->find('(') : std::string::npos;
  if (name_end == std::string::npos || name_begin >= name_end || name_end + 2 >= stat->size()) return std::nullopt;
  ThreadFacts facts;
  facts.thread.tid = tid;
  facts.thread.name = stat->substr(name_begin + 1, name_end - name_begin - 1);
  facts.thread.state = (*stat)[name_end + 2];
  facts.call = parse_system_call(read_small_file(task + "/syscall").value_or(""));
  facts.activity =
      facts.call ? describe_system_call(*facts.call, pid, memory, tables, tid == pid) : Activity{"computes"};
  const Activity& activity = facts.activity;
  facts.thread.on_futex = activity.on_futex;
  facts.thread.on_socket = activity.on_socket;
  facts.thread.peers = activity.peers;
  switch (facts.thread.state) {
    case 'T': facts.thread.doing = "is stopped by a signal"; break;
    case 't': facts.thread.doing = "is stopped by a debugger"; break;
    case 'Z':
    case 'X': facts.thread.doing = "has ended"; break;
    case 'D': {
      const std::string place = read_small_file(task + "/wchan").value_or("");
      facts.thread.doing =
          concat("is in uninterruptible sleep (state D", place.empty() || place == "0" ? "" : ", ",
                 place == "0" ? "" : place, ")", facts.call && facts.call->number >= 0 ? ": " + activity.text : "");
      break;
    }
    default: facts.thread.doing = activity.text;
  }
  return facts;
}

/// The thread's id in each PID namespace that has one, from this process's to its own.
std::vector<pid_t> ids_in_namespaces(pid_t pid, pid_t tid) {
  const std::string status = read_small_file(concat("/proc/", pid, "/task/", tid, "/status")).value_or("");
  const std::size_t at = status.find("\nNSpid:");
  if (at == std::string::npos) return {tid};
  std::string line = status.substr(at + 7, status.find('\n', at + 1) - at - 7);
  std::replace(line.begin(), line.end(), '\t', ' ');
  auto ids = numbers_in(line);
  return ids.empty() ? std::vector{tid} : ids;
}

/// Of all threads: one of them may have started the child that another one waits for.
std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> children;
  for (const pid_t thread : entries_of(concat("/proc/", pid, "/task"), max_read_threads)) {
    const auto text = read_small_file(concat("/proc/", pid, "/task/", thread, "/children"));
    for (const pid_t child : numbers_in(text.value_or(""))) children.push_back(child);
  }
  return children;
}

bool is_python(pid_t pid) {
  const std::string program = read_link(concat("/proc/", pid, "/exe"));
  return std::string_view(program).substr(program.rfind('/') + 1).starts_with("python");
}

/// Whether `child` is another program that has this process's standard input and outputs. A helper may be one, too.
bool is_wrapper(pid_t pid, pid_t child) {
  const auto is_shared = [&](const char* link) {
    return read_link(concat("/proc/", pid, link)) == read_link(concat("/proc/", child, link));
  };
  return !is_shared("/exe") && is_shared("/fd/0") && is_shared("/fd/1") && is_shared("/fd/2");
}

/// The child that the main thread waits for, or the Python program of a launcher with threads; 0: none, or it is one of
/// several.
pid_t awaited_child(const ThreadFacts& main) {
  const pid_t pid = main.thread.tid;
  const bool awaits = main.activity.awaits_child;
  if (!awaits && (main.thread.state != 'S' || (main.activity.on_socket && !main.activity.of_several) || is_python(pid)))
    return 0;
  std::vector<pid_t> children = children_of(pid);
  if (main.activity.child != 0) {
    std::erase_if(children, [&](pid_t child) {
      const auto ids = ids_in_namespaces(child, child);
      return std::find(ids.begin(), ids.end(), main.activity.child) == ids.end();
    });
  } else if (children.size() > 1) {
    std::erase_if(children, [](pid_t child) { return !is_python(child); });  // "python train.py | tee log"
  }
  const pid_t child = children.size() == 1 ? children.front() : 0;
  return awaits || (is_python(child) && is_wrapper(pid, child)) ? child : 0;
}

bool has_open(pid_t pid, const std::string& link, Deadline deadline) {
  const auto is_it = [&](int fd) { return Clock::now() < deadline && link_of(pid, fd) == link; };
  return std::ranges::any_of(entries_of(concat("/proc/", pid, "/fd"), max_descriptors), is_it);
}

/// Up to max_awaited children that have this pipe open. One that waits for a pipe of its parent has nothing to do: it
/// is shown only if all do. None have one of the parent's standard input and outputs, which any child may inherit.
std::vector<RankStacks> children_at(const std::string& pipe, const RankStacks& stacks, TcpTables& tables,
                                    Deadline deadline) {
  const pid_t pid = stacks.read_pid();
  std::vector<RankStacks> found;  // the idle ones last
  std::size_t busy = 0;
  std::vector<pid_t> children = children_of(pid);
  const bool is_standard = pipe == link_of(pid, 0) || pipe == link_of(pid, 1) || pipe == link_of(pid, 2);
  children.resize(is_standard ? 0 : std::min(children.size(), max_children));
  for (const pid_t child : children) {
    if (!has_open(child, pipe, deadline)) continue;
    RankStacks one = read_facts(stacks.rank, child, tables);
    const auto memory = ProcessMemory::open(one.read_pid());
    const auto main = read_thread(one.read_pid(), one.read_pid(), memory ? &*memory : nullptr, tables);
    const bool is_idle = main && !main->activity.pipe.empty() && has_open(pid, main->activity.pipe, deadline);
    found.insert(is_idle ? found.end() : found.begin() + static_cast<std::ptrdiff_t>(busy++), std::move(one));
  }
  found.resize(std::min(found.size(), std::clamp(busy, std::size_t{1}, max_awaited)));
  return found;
}

/// Start time and size of memory, from /proc/PID/stat; empty if the process is gone.
std::string cache_key(pid_t pid) {
  const std::string stat = read_small_file(concat("/proc/", pid, "/stat")).value_or("");
  constexpr std::size_t start_time = 20;  // words after the name
  const auto words = split(std::string_view(stat).substr(std::min(stat.size(), stat.rfind(')') + 1)), ' ');
  return words.size() > start_time + 1 ? words[start_time] + " " + words[start_time + 1] : std::string();
}

void update(ProcessCache& cache, pid_t pid, const Memory& tables) {
  std::string key = cache_key(pid);
  if (!key.empty() && key == cache.key) return;
  cache = {std::move(key), read_mappings(pid), std::nullopt};
  cache.python = PythonReader::find(tables, cache.mappings);
}

void sample_frames(ThreadStack& thread, pid_t pid, const ProcessMemory& memory, CodeImages& images, Deadline deadline,
                   std::string& note) {
  auto sample = sample_running_thread(pid, std::min(deadline, Clock::now() + sample_time));
  if (sample) {
    const std::uint64_t stack_pointer = sample->registers[native_architecture.stack_pointer].value_or(0);
    const StackSnapshot stack(memory, stack_pointer, std::move(sample->stack));
    thread.native = unwind(stack, images, sample->registers);
    // The kernel's copy of a stack may be cut short in its middle.
    auto frames = unwind(memory, images, sample->registers);
    if (frames.size() > thread.native.size()) thread.native = std::move(frames);
  } else if (thread.python.empty() && note.empty()) {
    note = sample.error().message;
  }
}

/// The threads that the limits ask for, without frames.
template <class FactsOf>
std::vector<ThreadFacts> read_threads(const std::vector<pid_t>& ids, FactsOf facts_of, const ReadLimits& limits,
                                      std::size_t& left_out) {
  std::vector<ThreadFacts> threads;
  const std::size_t max_threads = limits.all_threads ? max_read_threads : 1 + max_blocked_threads;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool is_late = i >= max_read_threads || (i > 0 && Clock::now() >= limits.deadline);
    if (!limits.all_threads && (is_late || (i > 0 && (threads.empty() || !threads[0].thread.on_futex)))) break;
    if (threads.size() == max_threads || is_late) {
      left_out += limits.all_threads ? 1 : 0;
    } else if (auto facts = facts_of(ids[i]); facts && (limits.all_threads || i == 0 || facts->thread.on_futex)) {
      threads.push_back(std::move(*facts));
    }
  }
  return threads;
}

/// Returns the pipe that the main thread waits for, be it by another thread of a data loader; empty: none.
std::string read_frames(RankStacks& stacks, ProcessCache& cache, TcpTables& tables, const ReadLimits& limits) {
  if (stacks.threads.empty()) return {};
  if (Clock::now() >= limits.deadline) {
    stacks.note = "no stack: there was no time left";
    return {};
  }
  const pid_t pid = stacks.read_pid();
  const auto memory = ProcessMemory::open(pid);
  const bool ends = stacks.threads[0].state == 'Z' || stacks.threads[0].state == 'X';
  if (!memory && !ends) stacks.note = concat("no stack: ", memory.error().message);
  const auto facts_of = [&](pid_t id) { return read_thread(pid, id, memory ? &*memory : nullptr, tables); };
  const std::vector<pid_t> ids = threads_of(pid);
  std::vector<ThreadFacts> threads = read_threads(ids, facts_of, limits, stacks.threads_left_out);
  if (threads.empty()) return {};
  std::string pipe = threads[0].thread.tid == pid ? threads[0].activity.pipe : "";
  if (memory) {
    const CachedMemory tables(*memory);
    update(cache, pid, tables);
    if (cache.python) {
      stacks.note = cache.python->unsupported_reason();
      auto frames = cache.python->read(*memory, limits.bytes, limits.deadline - unwind_time);
      const bool own_ids = frames.empty() || frames.count(pid) != 0;
      for (auto& [thread, call, activity] : threads) {
        const auto found = frames.find(own_ids ? thread.tid : ids_in_namespaces(pid, thread.tid).back());
        if (found == frames.end()) continue;
        thread.python = std::move(found->second.frames);
        thread.python_left_out = found->second.left_out;
      }
    }
    // A collective waits for a thread of its library.
    if (!limits.all_threads && is_in_library(threads[0].thread)) threads.erase(threads.begin() + 1, threads.end());
    CodeImages images(tables, cache.mappings);
    std::size_t native_left = limits.bytes / native_frame_bytes;
    for (auto& [thread, call, activity] : threads) {
      const bool is_late = call && thread.tid != pid && Clock::now() >= limits.deadline;
      if (call && !is_late) {
        const StackSnapshot stack(*memory, call->stack_pointer);
        thread.native = unwind(stack, images, make_registers(call->stack_pointer, call->program_counter));
      } else if (thread.tid == pid && thread.state == 'R') {
        sample_frames(thread, pid, *memory, images, limits.deadline, stacks.note);
      }
      const std::size_t kept = std::min(thread.native.size(), native_left);
      // What follows the last one that is read is not known.
      const bool goes_on = is_late || thread.native.size() == max_native_frames;
      thread.native_left_out = thread.native.size() - kept + (goes_on ? 1 : 0);
      thread.native.resize(kept);
      native_left -= kept;
    }
  }
  // A thread of theirs waits for their processes.
  const auto is_pool = [](const PythonFrame& frame) {
    constexpr std::array<std::string_view, 4> pools{"/torch/utils/data/dataloader.py", "/concurrent/futures/_base.py",
                                                    "/multiprocessing/pool.py", "/multiprocess/pool.py"};
    return std::ranges::any_of(pools, [&](std::string_view file) { return frame.file.ends_with(file); });
  };
  if (pipe.empty() && std::ranges::any_of(threads[0].thread.python, is_pool)) {
    for (const pid_t id : ids) {
      if (!pipe.empty() || Clock::now() >= limits.deadline) break;
      if (id != pid) pipe = facts_of(id).value_or(ThreadFacts()).activity.pipe;
    }
  }
  stacks.threads.clear();
  for (ThreadFacts& one : threads) stacks.threads.push_back(std::move(one.thread));
  return pipe;
}

}  // namespace

RankStacks read_facts(int rank, pid_t pid, TcpTables& tables) {
  RankStacks stacks;
  stacks.rank = rank;
  stacks.pid = pid;
  std::vector<ThreadFacts> chain;
  for (pid_t process = pid; process != 0 && chain.size() <= max_launchers; process = awaited_child(chain.back())) {
    auto facts = read_thread(process, process, nullptr, tables);
    if (!facts) break;
    chain.push_back(std::move(*facts));
  }
  const auto use = [](const ThreadFacts& facts, RankStacks& to) {
    to.child = facts.thread.tid != to.pid ? facts.thread.tid : 0;
    to.program = facts.thread.name;
    to.threads = {facts.thread};
    to.cpu_before = cpu_time(to);
    to.first_seen = Clock::now();
  };
  if (chain.empty()) return stacks;
  // The frames of a Python program say more than a tool that it has started.
  auto shown = std::find_if(chain.rbegin(), chain.rend(), [](const auto& one) { return is_python(one.thread.tid); });
  if (shown == chain.rend()) shown = chain.rbegin();
  use(*shown, stacks);
  if (shown != chain.rbegin()) {
    RankStacks& tool = stacks.awaited.emplace_back();
    tool.rank = rank;
    tool.pid = shown[-1].thread.tid;
    use(chain.back(), tool);
  }
  return stacks;
}

void read_connections(RankStacks& rank, const std::set<int>& store_ports, TcpTables& tables) {
  using Known = RankStacks::Connections;
  rank.connections_known = Known::all;
  std::set<std::pair<std::string, bool>> found;
  std::vector<pid_t> pids{rank.pid, rank.child};
  for (const RankStacks& process : rank.awaited) pids.push_back(process.read_pid());
  std::erase(pids, 0);
  for (const pid_t pid : pids) {
    const auto fds = entries_of(concat("/proc/", pid, "/fd"), max_descriptors);
    if (fds.empty() || fds.size() == max_descriptors) rank.connections_known = Known::unknown;
    for (const int fd : fds) {
      const TcpSocket* const socket = tables.find(pid, link_of(pid, fd));
      if (socket != nullptr) found.emplace(socket->own, store_ports.contains(port_of(socket->peer)));
    }
  }
  if (!tables.are_whole()) rank.connections_known = Known::unknown;
  for (const auto& [own, to_store] : found) rank.connections.push_back({rank.rank, own, to_store});
}

void read_stacks(RankStacks& stacks, ProcessCache& cache, TcpTables& tables, const ReadLimits& limits) {
  const std::string pipe = read_frames(stacks, cache, tables, limits);
  if (!pipe.empty() && stacks.awaited.empty()) stacks.awaited = children_at(pipe, stacks, tables, limits.deadline);
  for (RankStacks& child : stacks.awaited) {
    ProcessCache unknown;
    read_frames(child, unknown, tables, {false, limits.bytes / 8, limits.deadline});
  }
}

std::chrono::nanoseconds cpu_time(const RankStacks& stacks) {
  clockid_t clock{};
  timespec time{};
  if (::clock_getcpuclockid(stacks.read_pid(), &clock) != 0 || ::clock_gettime(clock, &time) != 0) return {};
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

namespace {

constexpr std::uint32_t stack_bytes = 16U << 10U;  ///< a multiple of 8
constexpr std::size_t data_pages = 16;             ///< a power of two; a sample needs no more than half
constexpr std::uint64_t sample_period = 500'000;   ///< nanoseconds

/// The kernel's numbers of registers, in ascending order, with those of Registers.
struct SampledRegister {
  unsigned kernel;
  std::size_t dwarf;
};
#if defined(__aarch64__)
constexpr auto sampled = [] {
  std::array<SampledRegister, 33> all{};
  for (unsigned i = 0; i < all.size(); ++i) all[i] = {i, i};
  return all;
}();
#else
// asm/perf_regs.h: ax bx cx dx si di bp sp ip, then flags, segments and r8 to r15.
constexpr std::array<SampledRegister, 17> sampled{{{0, 0},
                                                   {1, 3},
                                                   {2, 2},
                                                   {3, 1},
                                                   {4, 4},
                                                   {5, 5},
                                                   {6, 6},
                                                   {7, 7},
                                                   {8, 16},
                                                   {16, 8},
                                                   {17, 9},
                                                   {18, 10},
                                                   {19, 11},
                                                   {20, 12},
                                                   {21, 13},
                                                   {22, 14},
                                                   {23, 15}}};
#endif

std::uint64_t register_mask() {
  std::uint64_t mask = 0;
  for (const SampledRegister& one : sampled) mask |= std::uint64_t{1} << one.kernel;
  return mask;
}

/// PERF_RECORD_SAMPLE with PERF_SAMPLE_REGS_USER and PERF_SAMPLE_STACK_USER: abi, registers, size, stack, used size.
bool read_sample(const std::byte* record, std::size_t size, ThreadSample& to) {
  std::size_t next = sizeof(perf_event_header);
  const auto word = [&] {
    std::uint64_t value = 0;
    if (size - next >= sizeof value) {
      std::memcpy(&value, record + next, sizeof value);
      next += sizeof value;
    }
    return value;
  };
  if (word() != PERF_SAMPLE_REGS_ABI_64) return false;
  for (const SampledRegister& one : sampled) to.registers[one.dwarf] = word();
  const std::uint64_t copied = word();
  if (copied > size - next || copied == 0) return copied == 0;
  to.stack.assign(record + next, record + next + copied);
  next += copied;
  to.stack.resize(std::min<std::uint64_t>(copied, word()));
  return true;
}

}  // namespace

Result<ThreadSample> sample_running_thread(pid_t thread, Deadline deadline) {
  perf_event_attr event{};
  event.size = sizeof event;
  event.type = PERF_TYPE_SOFTWARE;
  event.config = PERF_COUNT_SW_CPU_CLOCK;
  event.sample_period = sample_period;
  event.sample_type = PERF_SAMPLE_REGS_USER | PERF_SAMPLE_STACK_USER;
  event.sample_regs_user = register_mask();
  event.sample_stack_user = stack_bytes;
  event.exclude_kernel = 1;
  event.exclude_hv = 1;
  event.wakeup_events = 1;
  const UniqueFd clock(static_cast<int>(::syscall(SYS_perf_event_open, &event, thread, -1, -1, PERF_FLAG_FD_CLOEXEC)));
  if (!clock) return fail_errno(Errc::unavailable, "no frames while it computes: perf_event_open", errno);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t size = (1 + data_pages) * page;
  void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, clock.get(), 0);
  if (mapped == MAP_FAILED) return fail_errno(Errc::unavailable, "no frames while it computes: perf_event_open", errno);
  const auto unmap = [size](void* memory) { ::munmap(memory, size); };
  const std::unique_ptr<void, decltype(unmap)> ring(mapped, unmap);
  pollfd readable{clock.get(), POLLIN, 0};
  while (::poll(&readable, 1, poll_timeout(deadline)) < 0 && errno == EINTR) {
  }
  // The first record begins at the beginning of the data, and the kernel writes over nothing that was not read.
  const auto* const data = static_cast<const std::byte*>(mapped) + page;
  const std::uint64_t head =
      __atomic_load_n(&static_cast<const perf_event_mmap_page*>(mapped)->data_head, __ATOMIC_ACQUIRE);
  perf_event_header header{};
  if (head >= sizeof header) std::memcpy(&header, data, sizeof header);
  ThreadSample sample;
  const bool complete = header.type == PERF_RECORD_SAMPLE && header.size <= head && header.size <= data_pages * page;
  if (!complete || !read_sample(data, header.size, sample)) {
    return fail(Errc::timeout, "no frames while it computes: it did not get a processor meanwhile");
  }
  return sample;
}

}  // namespace ddrun::inspect
