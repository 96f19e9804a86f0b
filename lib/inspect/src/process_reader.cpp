#include "process_reader.hpp"

#include <dirent.h>
#include <time.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "mappings.hpp"
#include "memory.hpp"
#include "python_frames.hpp"
#include "running_thread.hpp"
#include "system_call.hpp"
#include "unwinder.hpp"

namespace ddrun::inspect {

namespace {

constexpr std::size_t max_read_threads = 512;
/// Processes between a worker and the one that does its work: `sh -c`, `uv run`, `numactl`.
constexpr int max_launchers = 8;
/// Time for the kernel's next sample of a computing thread.
constexpr Milliseconds sample_time{20};

std::vector<pid_t> numbers_in(std::string_view text) {
  std::vector<pid_t> numbers;
  for (const std::string& word : split(text, ' ')) {
    pid_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error == std::errc() && end == word.data() + word.size()) numbers.push_back(number);
  }
  return numbers;
}

/// The main thread first.
std::vector<pid_t> threads_of(pid_t pid) {
  std::vector<pid_t> threads;
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(::opendir(concat("/proc/", pid, "/task").c_str()), ::closedir);
  while (const dirent* const entry = tasks ? ::readdir(tasks.get()) : nullptr) {
    for (const pid_t thread : numbers_in(entry->d_name)) threads.push_back(thread);
  }
  std::sort(threads.begin(), threads.end(),
            [pid](pid_t a, pid_t b) { return std::pair(a != pid, a) < std::pair(b != pid, b); });
  return threads;
}

struct ThreadFacts {
  ThreadStack thread;
  std::optional<SystemCall> call;
  bool awaits_child = false;
};

std::optional<ThreadFacts> read_thread(pid_t pid, pid_t tid, const Memory* memory) {
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
  const Activity activity = facts.call ? describe_system_call(*facts.call, pid, memory) : Activity{"computes"};
  facts.thread.on_socket = activity.on_socket;
  facts.awaits_child = activity.awaits_child;
  switch (facts.thread.state) {
    case 'T': facts.thread.doing = "is stopped by a signal"; break;
    case 't': facts.thread.doing = "is stopped by a debugger"; break;
    case 'Z':
    case 'X': facts.thread.doing = "has ended"; break;
    case 'D': {
      const std::string place = read_small_file(concat("/proc/", pid, "/wchan")).value_or("");
      facts.thread.doing =
          concat("is in uninterruptible sleep (state D", place.empty() || place == "0" ? "" : ", ",
                 place == "0" ? "" : place, ")", facts.call && facts.call->number >= 0 ? ": " + activity.text : "");
      break;
    }
    default: facts.thread.doing = activity.text;
  }
  return facts;
}

pid_t process_of(const RankStacks& stacks) { return stacks.child != 0 ? stacks.child : stacks.pid; }

/// Python's thread ids are those of the process's own PID namespace.
pid_t id_in_own_namespace(pid_t pid, pid_t tid) {
  const std::string status = read_small_file(concat("/proc/", pid, "/task/", tid, "/status")).value_or("");
  const std::size_t at = status.find("\nNSpid:");
  if (at == std::string::npos) return tid;
  std::string line = status.substr(at + 7, status.find('\n', at + 1) - at - 7);
  std::replace(line.begin(), line.end(), '\t', ' ');
  const auto ids = numbers_in(line);
  return ids.empty() ? tid : ids.back();
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

}  // namespace

RankStacks read_facts(int rank, pid_t pid) {
  RankStacks stacks;
  stacks.rank = rank;
  stacks.pid = pid;
  for (int depth = 0; pid != 0 && depth <= max_launchers; ++depth) {
    const pid_t process = process_of(stacks);
    auto facts = read_thread(process, process, nullptr);
    if (!facts) break;
    const auto children = numbers_in(
        facts->awaits_child ? read_small_file(concat("/proc/", process, "/task/", process, "/children")).value_or("")
                            : "");
    stacks.program = facts->thread.name;
    stacks.threads.assign(1, std::move(facts->thread));
    if (children.empty()) break;
    stacks.child = children.front();
  }
  return stacks;
}

void read_stacks(RankStacks& stacks, ProcessCache& cache, bool all_threads, Deadline deadline) {
  if (stacks.threads.empty()) return;
  const pid_t pid = process_of(stacks);
  const auto memory = ProcessMemory::open(pid);
  const bool ends = stacks.threads[0].state == 'Z' || stacks.threads[0].state == 'X';
  if (!memory && !ends) stacks.note = concat("no stack: ", memory.error().message);
  std::vector<pid_t> ids = all_threads ? threads_of(pid) : std::vector{pid};
  if (ids.size() > max_read_threads) {
    stacks.threads_left_out = ids.size() - max_read_threads;
    ids.resize(max_read_threads);
  }
  std::vector<ThreadStack> threads;
  std::vector<std::optional<SystemCall>> calls;
  for (const pid_t id : ids) {
    auto facts = read_thread(pid, id, memory ? &*memory : nullptr);
    if (!facts) continue;
    threads.push_back(std::move(facts->thread));
    calls.push_back(facts->call);
  }
  if (threads.empty()) return;
  if (memory) {
    const CachedMemory tables(*memory);
    update(cache, pid, tables);
    if (cache.python) {
      stacks.note = cache.python->unsupported_reason();
      auto frames = cache.python->read(*memory);
      const bool own_ids = frames.empty() || frames.count(pid) != 0;
      for (ThreadStack& thread : threads) {
        const auto found = frames.find(own_ids ? thread.tid : id_in_own_namespace(pid, thread.tid));
        if (found != frames.end()) thread.python = std::move(found->second);
      }
    }
    CodeImages images(tables, cache.mappings);
    for (std::size_t i = 0; i < threads.size() && Clock::now() < deadline; ++i) {
      if (calls[i]) {
        const StackSnapshot stack(*memory, calls[i]->stack_pointer);
        threads[i].native = unwind(stack, images, make_registers(calls[i]->stack_pointer, calls[i]->program_counter));
      } else if (i == 0 && threads[i].state == 'R') {
        auto sample = sample_running_thread(pid, std::min(deadline, Clock::now() + sample_time));
        if (sample) {
          const std::uint64_t stack_pointer = sample->registers[native_architecture.stack_pointer].value_or(0);
          const StackSnapshot stack(*memory, stack_pointer, std::move(sample->stack));
          threads[i].native = unwind(stack, images, sample->registers);
          // The kernel's copy of a stack may be cut short in its middle.
          auto frames = unwind(*memory, images, sample->registers);
          if (frames.size() > threads[i].native.size()) threads[i].native = std::move(frames);
        } else if (threads[i].python.empty() && stacks.note.empty()) {
          stacks.note = sample.error().message;
        }
      }
    }
  }
  stacks.threads = std::move(threads);
}

std::chrono::nanoseconds cpu_time(const RankStacks& stacks) {
  clockid_t clock{};
  timespec time{};
  if (::clock_getcpuclockid(process_of(stacks), &clock) != 0 || ::clock_gettime(clock, &time) != 0) return {};
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace ddrun::inspect
