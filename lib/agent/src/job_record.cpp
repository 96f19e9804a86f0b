#include "job_record.hpp"

#include <signal.h>

#include <algorithm>
#include <set>
#include <utility>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/event_text.hpp"
#include "ddrun/worker_env/program_path.hpp"
#include "evidence.hpp"
#include "worker_json.hpp"

namespace ddrun::agent {

namespace {

using Time = std::chrono::system_clock::time_point;

constexpr std::size_t stderr_tail_lines = 10;
/// Attempts that are kept; those between are counted.
constexpr std::size_t first_attempts = 8;
constexpr std::size_t last_attempts = 24;
/// A worker fails because a watchdog timer ended its child within this time, if at all: interpreters take seconds to
/// end.
constexpr std::chrono::seconds timer_effect{10};
/// Lines of stderr searched for last words: a traceback and 8 KiB of very short lines of stdout after it.
constexpr std::size_t searched_lines = 5000;

}  // namespace

JobRecord::JobRecord(const LaunchSpec& spec) : spec_(spec) {
  result_.started = std::chrono::system_clock::now();
  result_.program = spec_.first().name;
  result_.max_restarts = spec_.restart.max_restarts;
  result_.timeout = spec_.timeout.value_or(Milliseconds{0});
  result_.is_whole_job = !spec_.rendezvous.several_machines();
}

void JobRecord::begin_attempt(int workers) {
  begin_spawn();
  stop_begun_at_.reset();
  culprits_ = {};
  stacks_.clear();
  death_reasons_.begin_attempt(workers);
}

void JobRecord::note_timer(pid_t worker, bool its_child, std::string what) {
  timers_[worker] = {std::move(what), its_child, std::chrono::system_clock::now()};
}

std::string JobRecord::explain_exit(const WorkerEnd& end, const Preparation& prepared) {
  const auto timer = timers_.find(end.pid);
  if (timer != timers_.end()) {
    // A worker whose child was ended may continue, and fail later for another reason.
    const bool says_otherwise = end.error || end.last_words;
    if (!timer->second.of_child || (end.ended - timer->second.at <= timer_effect && !says_otherwise)) {
      return timer->second.what;
    }
  }
  return death_reasons_.explain(
      {end.pid, end.status, prepared.of(end.slot).directory, end.started, end.use.max_rss_kib});
}

void JobRecord::explain_kill(WorkerEnd& end, const Preparation& prepared) {
  const auto* signaled = std::get_if<Signaled>(&end.status);
  if (signaled != nullptr && signaled->signal == SIGKILL) end.why = explain_exit(end, prepared);
}

void JobRecord::begin_stop() {
  if (!stop_begun_at_) stop_begun_at_ = std::chrono::system_clock::now();
}

void JobRecord::read_evidence(Worker& worker, const logs::Output& output) {
  WorkerEnd& end = worker.end;
  if (end.success) return;
  // A stopped worker may have failed before, and be the cause.
  const std::string error_file = output.error_file(worker.end.slot);
  if (!error_file.empty()) end.error = read_error_file(error_file);
  if (end.error) end.error->file_stays = !output.run_dir().empty();
  const auto tail = output.stderr_tail(worker.end.slot, searched_lines);
  const Time stop = stop_begun_at_.value_or(Time::max());
  auto evidence = tail;
  if (end.stopped_by_ddrun) std::erase_if(evidence, [&](const logs::TailLine& line) { return line.at > stop; });
  end.last_words = find_last_words(evidence);
  if (end.last_words || end.error) {
    const Time last_stderr = evidence.empty() ? Time() : evidence.back().at;
    drop_survived(end, last_stderr, output.last_stdout(end.slot), stop);
  }
  end.lines_since = end.last_words ? output.lines_shown() - end.last_words->shown : 0;
  const std::size_t kept = std::min(tail.size(), stderr_tail_lines);
  if (!end.stopped_by_ddrun || end.last_words || end.error) {
    for (std::size_t i = tail.size() - kept; i < tail.size(); ++i) end.stderr_tail.push_back(tail[i].text);
  }
}

WorkerEnd JobRecord::present_end(const Worker& worker, const logs::Output& output) {
  WorkerEnd end = worker.end;
  const std::string error_file = output.error_file(worker.end.slot);
  if (!error_file.empty()) end.error = read_error_file(error_file);
  const auto tail = output.stderr_tail(worker.end.slot, searched_lines);
  end.last_words = find_last_words(tail);
  if (!tail.empty()) end.stderr_tail = {tail.back().text};
  return end;
}

std::string JobRecord::describe_present_reason(const Worker& worker, const logs::Output& output) {
  std::string reason = short_reason(present_end(worker, output));
  return is_peer_failure_message(reason) ? std::string() : reason;
}

std::string JobRecord::describe_hang(const Worker& worker, WorkerGroup& group, logs::Output& output) const {
  output.drain_all();
  output.read_file_tails();
  const WorkerEnd end = present_end(worker, output);
  if (says_timeout(end)) return end.name() + " timed out";
  if (end.last_words && end.last_words->blames_peer) {
    for (const Worker& other : group.workers()) {
      if (says_timeout(present_end(other, output))) return other.end.name() + " timed out";
    }
  }
  const auto* const signaled = std::get_if<Signaled>(&end.status);
  const bool aborted = signaled != nullptr && signaled->signal == SIGABRT && !end.error && !end.last_words;
  return aborted ? end.name() + " aborted" : std::string();
}

bool JobRecord::has_given_up(const Worker& worker, logs::Output& output) {
  output.drain(worker.end.slot);
  return says_timeout(present_end(worker, output));
}

void JobRecord::set_stacks(const inspect::StackPage& page) {
  if (stacks_.empty()) stacks_ = inspect::groups_json(page);
}

void JobRecord::find_culprits(const inspect::StackPage& page, const Preparation& prepared,
                              std::optional<int> first_failure, WorkerGroup& group, logs::Output& output) {
  if (page.is_whole_job) {
    culprits_ = inspect::find_culprits(page, static_cast<std::size_t>(result_.world_size));
    return;
  }
  // On several machines it may be a rank of another one.
  if (spec_.rendezvous.several_machines()) return;
  std::set<std::optional<int>> worlds;
  for (const Worker& worker : group.workers())
    worlds.insert(prepared.of(first_failure.value_or(worker.end.slot)).world);
  for (const std::optional<int>& world : worlds) {
    inspect::StackPage part = page;
    std::size_t size = 0;
    for (const Worker& worker : group.workers()) {
      const bool is_in = prepared.of(worker.end.slot).world == world;
      size += is_in ? 1 : 0;
      if (!is_in || has_given_up(worker, output)) part.gave_up.push_back(worker.end.rank_name());
    }
    if (culprits_.ranks.empty()) culprits_ = inspect::find_culprits(part, size);
  }
}

void JobRecord::apply_culprits(AttemptResult& attempt) const {
  const bool had_failed = !attempt.first_failure && attempt.cause && attempt.cause_evidence.own;
  if (culprits_.ranks.empty() || had_failed) return;
  const auto culprit = std::find_if(attempt.workers.begin(), attempt.workers.end(), [&](const WorkerEnd& worker) {
    return worker.rank_name() == culprits_.ranks.front();
  });
  if (culprit == attempt.workers.end() || !culprit->stopped_by_ddrun) return;
  culprit->why = culprits_.why;
  attempt.cause = static_cast<std::size_t>(culprit - attempt.workers.begin());
  attempt.cause_evidence = {EvidenceKind::stack, *stop_begun_at_};
}

std::string JobRecord::describe_python(const WorkerEnd& end, const PreparedProgram& prepared) {
  const auto misses_module = [](const std::string& text) { return text.find("No module named ") != std::string::npos; };
  const bool shown = std::any_of(end.stderr_tail.begin(), end.stderr_tail.end(), misses_module) ||
                     (end.error && misses_module(end.error->message));
  if (!shown || prepared.python_reason.empty()) return {};
  std::string text = concat(prepared.python, " (", prepared.python_reason, ")");
  const std::string runner = prepared.command.kind == ProgramKind::python_module
                                 ? std::string()
                                 : worker_env::script_runner(prepared.command.name, prepared.directory);
  if (runner.empty()) return text;
  return concat(text, "; try: ddrun ", count_option(prepared.command.nproc), runner, " ",
                shell_quote(prepared.command.name), prepared.command.args.empty() ? "" : " ...");
}

void JobRecord::add_attempt(const GroupMachine& machine, WorkerGroup& group, const logs::Output& output,
                            const Preparation& prepared) {
  AttemptResult attempt;
  attempt.attempt = machine.attempt();
  attempt.round = round_;
  attempt.node_rank = node_rank_;
  attempt.ran = Clock::now() - attempt_started_at_;
  const auto first = machine.first_failure();
  for (Worker& worker : group.workers()) {
    if (worker.end.pid == 0) continue;  // it was never started
    if (!worker.ended) {
      worker.end.still_runs = true;
      worker.end.status = Signaled{SIGKILL, false};
      worker.end.stopped_by_ddrun = true;
      worker.end.ended = std::chrono::system_clock::now();
      worker.end.ran = Clock::now() - worker.started_at;
    }
    const bool is_first = first && *first == worker.end.slot;
    read_evidence(worker, output);
    worker.end.python = describe_python(worker.end, prepared.of(worker.end.slot));
    worker.end.stderr_was_shown = output.console_shows_stderr(worker.end.slot);
    worker.end.stdout_log = output.stdout_log(worker.end.slot);
    worker.end.stderr_log = output.stderr_log(worker.end.slot);
    if (is_first) attempt.first_failure = attempt.workers.size();
    attempt.workers.push_back(worker.end);
  }
  // OOM kills explain workers ended by SIGKILL first.
  for (const bool killed : {true, false}) {
    for (WorkerEnd& end : attempt.workers) {
      const auto* signaled = std::get_if<Signaled>(&end.status);
      if (end.success || end.stopped_by_ddrun || end.declared ||
          (signaled != nullptr && signaled->signal == SIGKILL) != killed)
        continue;
      if (end.why.empty()) end.why = explain_exit(end, prepared);
    }
  }
  timers_.clear();
  find_first_cause(attempt, stop_begun_at_.value_or(std::chrono::system_clock::now()));
  apply_culprits(attempt);
  attempt.stacks = stacks_;
  attempt.stdout_closed = output.losses().closed_unread;
  result_.attempts.push_back(std::move(attempt));
  trim_attempts();
}

void JobRecord::correct_late_exit(const WorkerEnd& end) {
  if (result_.attempts.empty()) return;
  for (WorkerEnd& worker : result_.attempts.back().workers) {
    if (worker.pid != end.pid || !std::exchange(worker.still_runs, false)) continue;
    worker.status = end.status;
    worker.ended = end.ended;
    worker.ran = end.ran;
    worker.use = end.use;
  }
}

void JobRecord::trim_attempts() {
  if (result_.attempts.size() <= first_attempts + last_attempts) return;
  const auto left_out = result_.attempts.begin() + first_attempts;
  std::erase_if(result_.other_nodes, [&](const NodeAttempt& node) { return node.round == left_out->round; });
  result_.attempts.erase(left_out);
  ++result_.attempts_left_out;
}

std::string JobRecord::describe_own_reason(const std::string& announced) const {
  if (result_.attempts.empty() || !result_.attempts.back().cause) return {};
  const AttemptResult& attempt = result_.attempts.back();
  const std::string reason = short_reason(attempt.workers[*attempt.cause]);
  const bool is_known = announced.find(reason) != std::string::npos;  // or there is none
  return attempt.cause_evidence.own && !is_known ? describe_last_failure() : std::string();
}

std::string JobRecord::describe_last_failure() const {
  const AttemptResult& attempt = result_.attempts.back();
  if (!attempt.first_failure) return {};
  const WorkerEnd& first = attempt.workers[*attempt.first_failure];
  const WorkerEnd& cause = attempt.workers[attempt.cause.value_or(*attempt.first_failure)];
  std::string reason = short_reason(cause);
  if (&cause != &first) {
    const bool held_up = attempt.cause_evidence.kind == EvidenceKind::stack;
    reason =
        concat(" (", cause.name(), held_up ? " " : " failed first", held_up || reason.empty() ? "" : ": ", reason, ")");
  } else if (!reason.empty()) {
    reason = ": " + reason;
  }
  return concat(first.name(), " (pid ", first.pid, ") ", first.declared ? first.declared->what : describe(first.status),
                " after ", format_duration(first.ran), reason);
}

void JobRecord::announce_restart() {
  if (spec_.rendezvous.several_machines() || result_.attempts.empty()) return;
  const int restart = result_.attempts.back().attempt + 1;
  const std::string failure = describe_last_failure();
  if (std::exchange(announced_restart_, restart) == restart || failure.empty()) return;
  const std::string budget = spec_.restart.window ? concat("; ", spec_.restart.max_restarts, " are allowed in ",
                                                           format_duration(*spec_.restart.window))
                                                  : concat(" of ", spec_.restart.max_restarts);
  const std::string what = result_.world_size == 1 ? "the worker" : concat("all ", result_.world_size, " workers");
  say(Level::notice, concat(failure, "; restarting ", what, " (restart ", restart, budget, ")"));
}

void JobRecord::forward_first_error(const Preparation& prepared) const {
  const auto outer = prepared.parent.find("TORCHELASTIC_ERROR_FILE");
  if (!outer || outer->empty() || result_.verdict != Verdict::worker_failed || result_.attempts.empty()) return;
  const AttemptResult& last = result_.attempts.back();
  if (!last.first_failure) return;
  const WorkerEnd& cause = last.workers[last.cause.value_or(*last.first_failure)];
  if (!cause.error) return;
  if (auto copied = forward_error_file(cause.error->file, cause.status, std::string(*outer)); !copied) {
    say(Level::warning, copied.error().message);
  }
}

void JobRecord::set_verdict(const GroupMachine& machine) {
  if (!result_.cause) result_.signal_sender = machine.signal_sender();
  if (!result_.cause && result_.verdict == Verdict::timed_out) result_.message = machine.message();
  if (verdict_) return;
  result_.verdict = machine.verdict();
  result_.signal = machine.ending_signal();
  result_.message = machine.message();
  result_.launcher_code = machine.launcher_code();
}

std::string JobRecord::verdict_event() const {
  rendezvous::VerdictMessage own;
  own.kind = result_.verdict;
  own.exit_code = exit_code(result_);
  own.signal = result_.signal;
  own.why = result_.message;
  return rendezvous::event_text::verdict(round_, verdict_.value_or(own));
}

void JobRecord::fail(std::string message) {
  result_.verdict = Verdict::launcher_failed;
  result_.cause.reset();
  result_.message = std::move(message);
}

namespace {

/// Limit for the cause in STOPPED, with its last lines and traceback.
constexpr std::size_t max_cause_bytes = 64 * 1024;

/// Two of these as JSON are usually below max_cause_bytes.
WorkerEnd shortened(WorkerEnd worker) {
  if (worker.error && worker.error->traceback.size() > max_cause_bytes / 8)
    worker.error->traceback.resize(max_cause_bytes / 8);
  if (worker.error && worker.error->message.size() > max_cause_bytes / 16)
    worker.error->message.resize(max_cause_bytes / 16);
  constexpr std::size_t columns = 300;
  constexpr std::size_t lines = 20;
  for (std::string& line : worker.stderr_tail) line = cut_line(plain_line(line), columns);
  if (worker.last_words) {
    auto& text = worker.last_words->text;
    if (text.size() > lines) text.erase(text.begin() + 1, text.end() - static_cast<std::ptrdiff_t>(lines - 1));
    for (std::string& line : text) line = cut_line(std::move(line), columns);
    for (std::string& line : worker.last_words->reason) line = cut_line(std::move(line), columns);
  }
  return worker;
}

/// Whether another worker failed before the one that ended first.
bool failed_before(const AttemptResult& attempt) { return attempt.cause && attempt.cause != attempt.first_failure; }

/// For an agent that reports it in a line or two.
WorkerEnd brief(WorkerEnd worker) {
  worker = shortened(std::move(worker));
  worker.stderr_tail.clear();
  if (worker.error) worker.error->traceback.clear();
  if (worker.last_words) worker.last_words->text.clear();
  return worker;
}

/// JSON of the first worker that failed by itself, and of the one that failed before it, if any; or of a stopped one
/// that had failed.
std::string failure_text(const AttemptResult& attempt, WorkerEnd (*shorten)(WorkerEnd)) {
  const WorkerEnd& first = attempt.workers.at(attempt.first_failure ? *attempt.first_failure : *attempt.cause);
  Json failure = worker_json(shorten(first));
  failure["failed_after_s"] = seconds(attempt.cause_evidence.at - first.started);
  if (attempt.first_failure && failed_before(attempt)) {
    add_failed_before(failure, shorten(attempt.workers[*attempt.cause]), attempt.cause_evidence);
  }
  return one_line(failure);
}

/// As add_failed_before() has it, for a worker of any machine.
std::string held_up_text(const inspect::HeldUp& culprits, std::chrono::system_clock::time_point at) {
  WorkerEnd worker;
  worker.role = culprits.ranks.front().role;
  worker.rank = culprits.ranks.front().rank;
  worker.local_rank = culprits.local_rank;
  worker.pid = culprits.pid;
  worker.why = culprits.why;
  worker.stopped_by_ddrun = true;
  worker.started = at;
  Json failure;
  add_failed_before(failure, worker, {EvidenceKind::stack, at});
  return one_line(failure);
}

}  // namespace

void JobRecord::set_verdict(const rendezvous::VerdictMessage& verdict, bool runs_coordinator) {
  verdict_ = verdict;
  result_.verdict = verdict.kind;
  if (result_.verdict == Verdict::stopped_by_signal) result_.signal = verdict.signal;
  if (spec_.rendezvous.several_machines()) {
    result_.message = verdict.why;
    result_.cause = read_cause(verdict, runs_coordinator);
    result_.is_whole_job = runs_coordinator;
  } else if (result_.verdict == Verdict::launcher_failed) {
    // For other verdicts the record of this machine has more detail.
    result_.message = verdict.why;
    result_.launcher_code = verdict.exit_code;
  }
}

JobCause JobRecord::read_cause(const rendezvous::VerdictMessage& verdict, bool runs_coordinator) const {
  JobCause cause;
  cause.exit_code = verdict.exit_code;
  cause.host = verdict.host;
  cause.node_rank = verdict.node_rank;
  cause.why = verdict.why;
  cause.worker = worker_from_json(verdict.cause);
  cause.is_local = verdict.host == result_.host && verdict.node_rank == node_rank_;
  cause.is_detailed = cause.is_local || runs_coordinator;
  cause.restarts = verdict.restarts;
  bool is_elsewhere = false;  // of the worker that failed first, according to the coordinator
  if (auto before = read_failed_first(verdict)) {
    cause.failed_first = before->worker;
    cause.failed_first_evidence = before->evidence;
    cause.failed_first_host = before->host.empty() ? verdict.host : before->host;
    const bool is_held_up = before->evidence.kind == EvidenceKind::stack && before->node_rank < 0;
    if (is_held_up && !result_.attempts.empty()) {
      for (const WorkerEnd& own : result_.attempts.back().workers) {
        if (own.rank_name() != before->worker.rank_name()) continue;
        cause.failed_first = own;
        cause.failed_first->why = before->worker.why;
        cause.is_detailed = true;
      }
    }
    const bool is_local = before->host == result_.host && before->node_rank == node_rank_;
    is_elsewhere = is_held_up || (!before->host.empty() && !is_local);
    if (is_local && !result_.attempts.empty() && result_.attempts.back().cause) {
      const AttemptResult& last = result_.attempts.back();
      cause.failed_first = last.workers[*last.cause];
      cause.failed_first_evidence = last.cause_evidence;
      cause.is_detailed = true;
    }
  }
  if (cause.is_local && cause.worker && !result_.attempts.empty() && result_.attempts.back().first_failure) {
    const AttemptResult& last = result_.attempts.back();
    cause.worker = last.workers.at(*last.first_failure);  // also has what the console has shown
    if (failed_before(last) && !is_elsewhere) {
      cause.failed_first = last.workers[*last.cause];
      cause.failed_first_evidence = last.cause_evidence;
      cause.failed_first_host = result_.host;
    }
  }
  return cause;
}

void JobRecord::begin_round(rendezvous::Round round, const RankAssignment& ranks) {
  round_ = round;
  node_rank_ = ranks.node_rank;
  result_.host = ranks.host;
  result_.world_size = ranks.world_size;
  result_.node_count = ranks.node_count;
  result_.max_restarts = ranks.max_restarts;
}

void JobRecord::add_node_report(const rendezvous::Log& report) {
  if (report.text.empty()) {
    if (!std::exchange(missing_report_warned_, true)) {
      say(Level::warning, concat("the report is missing the workers of ", report.host, " in round ", report.round,
                                 ", and perhaps of other nodes: they sent too much at once"));
    }
    return;
  }
  result_.other_nodes.push_back({report.round, report.node_rank, report.host, report.text});
}

rendezvous::Stopped JobRecord::stopped_message(bool whole) const {
  rendezvous::Stopped stopped{round_};
  if (result_.attempts.empty() || result_.attempts.back().round != round_) return stopped;
  const AttemptResult& last = result_.attempts.back();
  // A node whose workers were stopped reports one that had failed before, in case the others only blame peers.
  if (last.first_failure || (last.cause && last.cause_evidence.own)) {
    if (last.cause) stopped.failure = evidence_for_coordinator(last.cause_evidence, last.workers[*last.cause]);
    stopped.failure.full = failure_text(last, shortened);
    stopped.failure.brief = failure_text(last, brief);
  }
  if (!culprits_.host.empty()) stopped.held_up = {held_up_text(culprits_, *stop_begun_at_), culprits_.host};
  if (whole) {
    Json workers = Json::array();
    for (const WorkerEnd& worker : last.workers) workers.push_back(worker_json(worker));
    stopped.workers = one_line(workers);
  }
  return stopped;
}

void JobRecord::update_totals(const logs::Output& output) {
  if (!output.run_dir().empty()) result_.log_dir = output.root();
  const logs::LossReport losses = output.losses();
  result_.log_bytes_lost = losses.file_bytes;
  if (losses.file_bytes > 0) result_.log_error = losses.first_error;
  if (!losses.console_error.empty()) {
    result_.console_bytes_lost = losses.console_bytes;
    result_.console_error = losses.console_error;
  }
  result_.ran = Clock::now() - started_at_;
}

JobResult JobRecord::finish(const logs::Output& output, const Preparation& prepared) {
  update_totals(output);
  forward_first_error(prepared);
  return std::move(result_);
}

}  // namespace ddrun::agent
