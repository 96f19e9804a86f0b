#include "takedown.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <utility>
#include <variant>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/process/process_tree.hpp"

namespace ddrun::agent {

namespace {

/// Processes left this long after the last worker are named.
constexpr std::chrono::seconds survivor_report_delay{1};
constexpr std::size_t max_named = 5;
/// Delay until processes that a stray started on SIGTERM are signalled: a new program first has to set its handlers.
constexpr Milliseconds stray_recheck_delay{200};

}  // namespace

Takedown::Takedown(boost::asio::any_io_executor executor, WorkerGroup& group, process::ChildWatcher& watcher,
                   const GroupMachine& machine, process::JobCgroup& cgroup, const process::SharedState& shared,
                   Dispatch dispatch)
    : group_(group),
      watcher_(watcher),
      machine_(machine),
      cgroup_(cgroup),
      shared_(shared),
      dispatch_(std::move(dispatch)),
      timer_(executor),
      strays_timer_(executor),
      survivor_report_(executor) {}

void Takedown::reap_earlier_exits() {
  if (sent_.empty()) watcher_.reap();
}

void Takedown::note_kills() {
  const Kills kills = kills_from_outside();
  const Kills before = std::exchange(noted_kills_, kills);
  if (kills == before) return;
  if (kills.first != before.first) {
    const Clock::time_point since{std::chrono::nanoseconds(shared_.overdue.stood_still_since_ns)};
    say(Level::warning, concat("workers were killed by ddrun: this agent had stood still for ",
                               format_duration(Clock::now() - since), "; stopping the workers, to join again"));
  }
  dispatch_(event::WorkersKilled{});
}

bool Takedown::has_caused(const ExitStatus& status) {
  const auto* signaled = std::get_if<Signaled>(&status);
  if (signaled != nullptr && signaled->signal == SIGKILL && were_workers_killed()) {
    note_kills();
    return true;
  }
  if (!machine_.taking_down() || sent_.empty()) return false;
  return signaled == nullptr || sent_.count(signaled->signal) != 0;
}

void Takedown::signal(int number) {
  reap_earlier_exits();
  sent_.insert(number);
  group_.signal({number, SIGCONT});
}

void Takedown::start_grace(Milliseconds grace) {
  set_paused(false);  // SIGCONT has continued the workers
  const auto now = Clock::now();
  if (now + grace >= grace_ends_) return;
  if (grace_ends_ == Deadline::max()) grace_begun_ = now;
  grace_ends_ = now + grace;
  const auto whole = std::chrono::round<Milliseconds>(grace_ends_ - grace_begun_);
  timer_.set(grace_ends_, [this, whole] {
    if (group_.alive_count() > 0) {
      say(Level::notice, concat(group_.alive_count(), group_.alive_count() == 1 ? " worker has" : " workers have",
                                " not ended within ", format_duration(whole), ": SIGKILL"));
    }
    dispatch_(event::GraceExpired{whole});
  });
  // A worker may wait for a process that left its group. Late, because a worker that is a launcher signals its own
  // processes, for which a second signal may mean "at once".
  schedule_stray_check(now + grace * 3 / 4);
}

void Takedown::schedule_stray_check(Deadline time) {
  strays_timer_.set(time, [this] {
    recheck_scheduled_ = false;
    if (machine_.state() == GroupState::stopping) stop_strays();
  });
}

void Takedown::kill() {
  set_paused(false);
  reap_earlier_exits();
  sent_.insert(SIGKILL);
  kill_all();
  kill_deadline_ = Clock::now() + shutdown::kill_timeout;
}

void Takedown::kill_all() {
  cgroup_.kill();
  group_.kill_all();  // also processes in other cgroups, and without a job cgroup
}

void Takedown::check_gone() {
  checking_ = true;
  if (machine_.state() == GroupState::killing) {
    // Finds processes forked during the last scan; usually the group is gone before.
    timer_.set(Clock::now() + resweep_interval, [this] {
      if (machine_.state() != GroupState::killing) return;
      if (Clock::now() >= kill_deadline_) {
        checking_ = false;
        dispatch_(event::KillExpired{describe_survivors()});
        return;
      }
      kill_all();
      watcher_.reap();
      if (machine_.state() == GroupState::killing) check_gone();
    });
  }
  on_child_exit();
}

void Takedown::on_child_exit() {
  if (!checking_ || group_.alive_count() > 0) return;
  if (!group_.anyone_left()) {
    checking_ = false;
    timer_.cancel();
    dispatch_(event::GroupGone{});
  } else if (machine_.state() == GroupState::stopping) {
    if (!group_.any_group_alive()) {
      if (signaled_strays_.empty()) stop_strays();
      else if (!std::exchange(recheck_scheduled_, true)) schedule_stray_check(Clock::now() + stray_recheck_delay);
    }
    if (!std::exchange(survivors_reported_, true)) {
      survivor_report_.set(Clock::now() + survivor_report_delay, [this] { report_survivors(); });
    }
  }
}

void Takedown::report_survivors() {
  if (machine_.state() != GroupState::stopping) return;
  const std::string names = describe_survivors();
  if (names.empty()) return;
  say(Level::notice, concat("all workers have ended; waiting for what they have left: ", names, " (SIGKILL in ",
                            format_duration(grace_ends_ - Clock::now()), ", or at once with Ctrl-C)"));
}

std::string Takedown::describe_survivors() const {
  auto left = process::workers_and_their_descendants();
  std::erase_if(left, [](const process::ProcessInfo& info) { return info.state == 'Z'; });
  std::string names;
  for (std::size_t i = 0; i < std::min(left.size(), max_named); ++i) {
    const auto& workers = group_.workers();
    const auto worker = std::find_if(workers.begin(), workers.end(),
                                     [&](const Worker& one) { return one.child && one.end.pid == left[i].pid; });
    std::string name = process::process_name(left[i].pid);
    // A process name may contain control characters.
    std::replace_if(
        name.begin(), name.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, '?');
    names += concat(i == 0 ? "" : ", ", worker != workers.end() ? concat(worker->end.name(), " ") : "", "pid ",
                    left[i].pid, " (", name, ")");
  }
  if (left.size() > max_named) names += concat(" and ", left.size() - max_named, " more");
  return names;
}

}  // namespace ddrun::agent
