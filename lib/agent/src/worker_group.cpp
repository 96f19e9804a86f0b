#include "worker_group.hpp"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/process/descriptor_limit.hpp"
#include "ddrun/process/guard.hpp"
#include "ddrun/worker_env/worker_environment.hpp"

namespace ddrun::agent {

namespace {

/// Descriptors for ddrun's own pipes, files and timers while workers run.
constexpr std::size_t spare_descriptors = 16;
/// Workers started between two looks at events.
constexpr std::size_t max_spawn_batch = 32;
/// Between two looks at events while a program is not executed.
constexpr Milliseconds next_exec_wait{50};
/// As in /proc/PID/comm. It removes PyTorch's shared memory 2 s after its last client has ended; it does not handle
/// SIGTERM, which would leave the memory behind.
constexpr std::string_view torch_shm_manager = "torch_shm_manag";
/// Sweeper and agent of a worker that is ddrun: its guard has got the signal, and a second one would be a repetition.
constexpr std::string_view inner_sweeper = "job-sweeper";
bool group_exists(pid_t group) { return ::kill(-group, 0) == 0 || errno == EPERM; }

}  // namespace

WorkerGroup::WorkerGroup(boost::asio::any_io_executor executor, const LaunchSpec& spec, const Preparation& prepared,
                         process::Spawner& launcher, process::Spawner* preload, process::ChildWatcher& watcher,
                         logs::Output& output)
    : spec_(spec),
      prepared_(prepared),
      launcher_(launcher),
      preload_(preload),
      spawner_(&launcher),
      watcher_(watcher),
      output_(output),
      stdin_feed_(executor) {}

Result<void> WorkerGroup::check_descriptors() {
  std::size_t needed = 0;
  for (int slot = 0; slot < prepared_.workers(); ++slot) {
    needed += static_cast<std::size_t>(output_.descriptors_per_worker(slot));
  }
  const std::size_t count = prepared_.places.size();
  if (spec_.stdin_.kind == StdinSpec::Kind::all) needed += count;
  const std::size_t available = process::free_descriptors();
  // Each worker may connect to the store, and a standby worker of --preload has a socket. Pidfds are made of the rest:
  // the last workers go without first, as the order of their ends matters least.
  const std::size_t before_pidfds = needed + spare_descriptors + count * (preload_ == nullptr ? 1 : 2);
  pidfds_ = 0;
  if (launcher_.has_pidfd() && before_pidfds < available) pidfds_ = std::min(count, available - before_pidfds);
  if (needed + spare_descriptors > available) {
    return fail(Errc::unavailable,
                concat(count, " workers need ", needed, " file descriptors for their output, and only ",
                       available > spare_descriptors ? available - spare_descriptors : 0,
                       " are free: raise the limit (ulimit -n), or let workers write their own files (--redirects=3)"));
  }
  return {};
}

Result<UniqueFd> WorkerGroup::open_stdin(const Worker& worker, logs::ChildStreams& streams, bool& inherit) {
  inherit = false;
  if (streams.in) {
    auto fed = stdin_feed_.add(worker.end.rank_name(), std::move(streams.in_master));
    return std::move(fed).map([&] { return std::move(streams.in); });
  }
  switch (spec_.stdin_.kind) {
    case StdinSpec::Kind::all: return stdin_feed_.open(worker.end.rank_name());
    case StdinSpec::Kind::rank: inherit = reads_stdin(worker); break;
    case StdinSpec::Kind::none: break;
  }
  return UniqueFd();
}

bool WorkerGroup::reads_stdin(const Worker& worker) const {
  const WorkerPlace& place = prepared_.places[static_cast<std::size_t>(worker.end.slot)];
  return place.program == static_cast<int>(prepared_.first_main) && worker.end.rank == spec_.stdin_.rank;
}

Result<void> WorkerGroup::begin(int slot_index, Worker& worker, const worker_env::WorkerEnvironment& environment) {
  const PreparedProgram& program = prepared_.of(worker.end.slot);
  auto streams = TRY(output_.open_streams(worker.end.slot));
  bool inherit_stdin = false;
  const auto input = TRY(open_stdin(worker, streams, inherit_stdin));

  SpawnSlot& slot = slots_[static_cast<std::size_t>(slot_index)];
  if (std::exchange(slot.program, &program) != &program) {
    slot.argv.clear();
    slot.environment = {};
  }
  if (slot.argv.empty() || worker_env::argv_depends_on_rank(program.command)) {
    const int number = prepared_.places[static_cast<std::size_t>(worker.end.slot)].number;
    slot.args = worker_env::worker_argv(program.command, worker.end.rank, worker.end.local_rank, program.python,
                                        program.command.port_of(number));
    slot.argv.clear();
    for (auto& arg : slot.args) slot.argv.push_back(arg.data());
    slot.argv.push_back(nullptr);
  }

  process::SpawnPlan plan;
  plan.program = program.program.c_str();
  plan.argv = slot.argv.data();
  plan.environment = environment.block(worker.end.local_rank, slot.environment);
  plan.directory = program.command.chdir ? program.directory.c_str() : nullptr;
  plan.standard_in = inherit_stdin ? -1 : input ? input.get() : null_.get();
  plan.standard_out = streams.out ? streams.out.get() : -1;
  plan.standard_err = streams.err ? streams.err.get() : -1;
  plan.controlling_terminal = streams.terminal;
  if (!prepared_.binding.cpus.empty()) {
    const auto& cpus = prepared_.binding.cpus[static_cast<std::size_t>(worker.end.slot)];
    plan.cpu_mask = cpus.empty() ? nullptr : cpus.data();
    plan.cpu_mask_bytes = cpus.size_bytes();
  }
  plan.want_pidfd = static_cast<std::size_t>(worker.end.slot) < pidfds_;

  worker.end.started = std::chrono::system_clock::now();
  worker.started_at = Clock::now();
  auto child = TRY(spawner_->begin(slot_index, plan));
  slot.worker = &worker;
  watch(worker, std::move(child));
  return {};
}

void WorkerGroup::watch(Worker& worker, process::Spawned child) {
  by_pid_[child.pid] = &worker;  // the pid may have been an ended worker's
  watcher_.watch(child.pid, child.pidfd.get());
  worker.child.emplace(std::move(child));
}

Result<bool> WorkerGroup::confirm(int slot_index, Milliseconds limit) {
  SpawnSlot& slot = slots_[static_cast<std::size_t>(slot_index)];
  if (slot.worker == nullptr) return true;
  Worker& worker = *slot.worker;
  process::Spawned other;
  auto executed = spawner_->confirm(slot_index, limit, other);
  if (other.pid != 0) {
    watcher_.unwatch(worker.child->pid);
    by_pid_.erase(worker.child->pid);
    watch(worker, std::move(other));
  }
  if (executed && !*executed) return false;
  slot.worker = nullptr;
  worker.start = executed ? Worker::Start::executed : Worker::Start::failed;
  if (!executed) return executed;
  worker.end.pid = worker.child->pid;
  ++alive_count_;
  return true;
}

Result<void> WorkerGroup::await(int slot, const std::function<bool()>& should_stop) {
  for (Milliseconds limit = process::first_exec_wait;; limit = next_exec_wait) {
    if (TRY(confirm(slot, limit))) return start_failure_;
    // Of those behind it some may run: signals are forwarded to them, too.
    for (int other = 0; other < process::Spawner::slots; ++other) (void)TRY(confirm(other, Milliseconds(0)));
    if (!start_failure_ || should_stop()) return start_failure_;
  }
}

Result<void> WorkerGroup::await_all(const std::function<bool()>& should_stop) {
  for (int slot = 0; slot < process::Spawner::slots; ++slot) {
    if (auto executed = await(slot, should_stop); !executed) return executed;
  }
  return {};
}

void WorkerGroup::abandon_all() {
  for (int index = 0; index < process::Spawner::slots; ++index) {
    SpawnSlot& slot = slots_[static_cast<std::size_t>(index)];
    (void)confirm(index, Milliseconds(0));
    if (slot.worker == nullptr) continue;
    std::exchange(slot.worker, nullptr)->start = Worker::Start::failed;
    spawner_->abandon(index);
  }
}

void WorkerGroup::begin_attempt(const std::vector<RankAssignment>& ranks) {
  const std::size_t count = prepared_.places.size();
  clear_workers();
  workers_.resize(count);
  by_pid_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const WorkerPlace& place = prepared_.places[i];
    WorkerEnd& end = workers_[i].end;
    end.slot = static_cast<int>(i);
    end.role = prepared_.role_of(end.slot);
    end.local_rank = place.local_rank;
    end.rank = ranks[static_cast<std::size_t>(place.program)].rank_of(place.local_rank);
  }
}

Result<void> WorkerGroup::spawn(Part part, const std::vector<worker_env::WorkerEnvironment>& environments,
                                const std::function<bool()>& should_stop, const std::function<bool()>& is_overdue) {
  if (!null_) {
    null_ = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!null_) return fail_errno(Errc::unavailable, "cannot open /dev/null", errno);
  }
  std::vector<std::size_t> slots;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (prepared_.is_service(static_cast<int>(i)) == (part == Part::services)) slots.push_back(i);
  }
  for (SpawnSlot& slot : slots_) slot = {};
  start_failure_ = {};
  Result<void> failure;
  bool stopped = false;
  const auto stop = [&] { return stopped = stopped || should_stop(); };
  for (std::size_t i = 0; i < slots.size() && failure && !stopped; ++i) {
    Worker& worker = workers_[slots[i]];
    const int slot = static_cast<int>(i % process::Spawner::slots);
    process::Spawner* const spawner = prepared_.of(worker.end.slot).command.preload.empty() ? &launcher_ : preload_;
    const bool batch_is_full = i > 0 && (spawner != spawner_ || i % max_spawn_batch == 0);
    failure = batch_is_full ? await_all(stop) : await(slot, stop);
    if (batch_is_full && failure) stop();
    const bool may_begin = failure && !(stopped = stopped || is_overdue());
    if (may_begin) spawner_ = spawner;
    const auto index = static_cast<std::size_t>(prepared_.places[slots[i]].program);
    if (may_begin) failure = begin(slot, worker, environments[index]);
    stopped = stopped || is_overdue();  // it is killed as those that are not confirmed
  }
  if (stopped) should_stop();
  if (failure && !stopped) failure = await_all(stop);
  abandon_all();
  if (!failure) {
    if (alive_count_ > 0)
      failure.error().message += concat(" (", alive_count_, " of ", workers_.size(), " workers had been started)");
    return failure;
  }
  if (part == Part::mains) stdin_feed_.start();
  return {};
}

void WorkerGroup::clear_workers() {
  workers_.clear();
  by_pid_.clear();
  alive_count_ = 0;
}

void WorkerGroup::confirm_ended(const Worker& worker) {
  for (int index = 0; index < process::Spawner::slots; ++index) {
    if (slots_[static_cast<std::size_t>(index)].worker != &worker) continue;
    const auto executed = confirm(index, Milliseconds(0));
    if (!executed && start_failure_) start_failure_ = tl::unexpected(executed.error());
  }
}

Worker* WorkerGroup::record_exit(const process::ChildEnd& end) {
  const auto found = by_pid_.find(end.pid);
  if (found == by_pid_.end() || found->second->ended) return nullptr;
  Worker& worker = *found->second;
  if (worker.start == Worker::Start::pending) confirm_ended(worker);
  if (worker.start == Worker::Start::failed) {
    by_pid_.erase(found);
    worker.child.reset();
    return nullptr;
  }
  worker.ended = true;
  if (stdin_feed_.feeds_terminal() && reads_stdin(worker)) stdin_feed_.stop();
  // Right after reaping, the pid cannot have been reused.
  worker.group_alive = group_exists(end.pid);
  worker.child.reset();
  worker.end.status = end.status;
  worker.end.ended = std::chrono::system_clock::now();
  worker.end.ran = Clock::now() - worker.started_at;
  worker.end.use.max_rss_kib = end.use.ru_maxrss;
  const auto micros = [](const timeval& time) {
    return std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec);
  };
  worker.end.use.user_time = micros(end.use.ru_utime);
  worker.end.use.system_time = micros(end.use.ru_stime);
  --alive_count_;
  return &worker;
}

void WorkerGroup::signal(std::initializer_list<int> numbers, const std::set<pid_t>& except) {
  std::set<pid_t> left;
  for (const Worker& worker : workers_) {
    if (worker.start != Worker::Start::executed || except.count(worker.end.pid) != 0) continue;
    if (worker.group_alive) left.insert(worker.end.pid);
    if (!worker.child) continue;
    for (const int number : numbers) ::kill(-worker.child->pid, number);
  }
  if (left.empty()) return;
  // The id of a group without a leader may have been reused: signal only descendants.
  for (const auto& info : process::workers_and_their_descendants()) {
    if (left.count(info.group) == 0 || info.state == 'Z') continue;
    for (const int number : numbers) process::signal_descendant(info, number);
  }
}

void WorkerGroup::kill_all() {
  if (preload_ != nullptr) preload_->release_standby();
  for (const Worker& worker : workers_) {
    if (worker.child) ::kill(-worker.child->pid, SIGKILL);
  }
  for (const auto& info : process::workers_and_their_descendants()) {
    if (info.state != 'Z') process::signal_descendant(info, SIGKILL);
  }
}

void WorkerGroup::stop_strays(Strays& signaled) {
  const std::string own_name = process::process_name(::getpid());
  std::set<pid_t> groups;
  for (const Worker& worker : workers_) {
    if (worker.child) groups.insert(worker.child->pid);
    else if (worker.group_alive) groups.insert(worker.end.pid);
  }
  for (const auto& info : process::workers_and_their_descendants()) {
    if (info.state == 'Z' || groups.count(info.group) != 0 || !signaled.emplace(info.pid, info.start_time).second)
      continue;
    const std::string name = process::process_name(info.pid);
    if (name == torch_shm_manager || name == inner_sweeper || name == own_name) continue;
    process::signal_descendant(info, SIGTERM);
    process::signal_descendant(info, SIGCONT);
  }
}

bool WorkerGroup::any_group_alive() {
  bool any = false;
  for (Worker& worker : workers_) {
    if (!worker.ended || !worker.group_alive) continue;
    worker.group_alive = group_exists(worker.end.pid);
    any = any || worker.group_alive;
  }
  return any;
}

std::string describe_started(const std::vector<std::pair<RankName, pid_t>>& workers, std::size_t most) {
  std::string text;
  std::size_t items = 0;
  for (std::size_t i = 0; i < workers.size(); ++items) {
    if (items == most) return concat(text, ", and ", workers.size() - i, " more");
    const RankName& name = workers[i].first;
    const pid_t pid = workers[i].second;
    std::size_t next = i + 1;
    const auto goes_on = [&](std::size_t at) {
      const int ahead = static_cast<int>(at - i);
      return workers[at].first == RankName{name.role, name.rank + ahead} && workers[at].second == pid + ahead;
    };
    while (next < workers.size() && goes_on(next)) ++next;
    if (!text.empty()) text += ", ";
    // Two are easier to read one by one.
    if (next - i < 3) next = i + 1;
    const auto& last = workers[next - 1];
    if (next == i + 1) text += concat(name.text(), " pid ", pid);
    else
      text += concat(name.role, name.role.empty() ? "" : " ", "ranks ", name.rank, "-", last.first.rank, " pids ", pid,
                     "-", last.second);
    i = next;
  }
  return text;
}

void log_started(const std::vector<std::pair<RankName, pid_t>>& workers, const Preparation& prepared) {
  constexpr std::size_t items_of_a_line = 16;
  if (workers.empty()) return;
  say(Level::info, describe_started(workers, items_of_a_line));
  for (const PreparedProgram& program : prepared.programs) {
    const std::string who = prepared.programs.size() > 1 ? "each of " + program.command.role : "each";
    say(Level::debug, concat(who, " runs ", shell_quote(program.program), " in ", shell_quote(program.directory)));
  }
  for (std::size_t at = items_of_a_line; at < workers.size() + items_of_a_line; at += items_of_a_line) {
    const auto from = workers.begin() + static_cast<std::ptrdiff_t>(at - items_of_a_line);
    const auto to = workers.begin() + static_cast<std::ptrdiff_t>(std::min(at, workers.size()));
    if (workers.size() > items_of_a_line) say(Level::debug, describe_started({from, to}, items_of_a_line));
  }
}

}  // namespace ddrun::agent
