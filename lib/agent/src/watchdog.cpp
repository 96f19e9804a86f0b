#include "watchdog.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/plain_line.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::agent {

Watchdog::Watchdog(boost::asio::any_io_executor executor, WorkerGroup& group, JobRecord& record)
    : group_(group), record_(record), timer_(std::move(executor), [this](const auto& timers) { expired(timers); }) {}

void Watchdog::expired(const std::vector<TimerRequest>& timers) {
  std::map<pid_t, process::ProcessInfo> family;
  for (const auto& process : process::descendants(::getpid())) family.emplace(process.pid, process);
  for (const TimerRequest& timer : timers) {
    // Anybody's number may be in the FIFO: only who descends from us is meant.
    const auto process = family.find(timer.pid);
    if (process != family.end()) {
      end_late_process(timer, process->second);
    } else if (!std::exchange(stranger_was_told_, true)) {
      say(Level::warning, concat("the watchdog timer ", plain_line(timer.scope), " of process ", timer.pid,
                                 " has expired, which is not one of this job: left alone"));
    }
  }
}

void Watchdog::end_late_process(const TimerRequest& timer, const process::ProcessInfo& process) {
  const auto& workers = group_.workers();
  const auto owner = std::find_if(workers.begin(), workers.end(), [&](const Worker& worker) {
    return worker.end.pid == process.pid || worker.end.pid == process.group;
  });
  std::string what = concat("watchdog timer ", plain_line(timer.scope));
  const bool its_child = owner == workers.end() || owner->end.pid != timer.pid;
  if (its_child) what += concat(" of its process ", timer.pid);
  what += timer.signal > 0 ? concat(" expired: ddrun sent ", signal_name(timer.signal))
                           : " expired; it names no signal, and nothing was sent";
  if (owner != workers.end()) say(Level::notice, concat("rank ", owner->end.rank, ": ", what));
  else say(Level::notice, what);
  if (timer.signal <= 0) return;
  if (owner != workers.end()) record_.note_timer(owner->end.pid, its_child, std::move(what));
  ::kill(timer.pid, timer.signal);
}

}  // namespace ddrun::agent
