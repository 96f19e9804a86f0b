#include "ddrun/agent/report.hpp"

#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "evidence.hpp"

namespace ddrun::agent {

namespace {

constexpr std::size_t width = 100;            ///< columns of sentences; messages have twice as many
constexpr std::size_t indent = 11;            ///< of the text after "  label: "
constexpr std::size_t max_stderr_lines = 8;   ///< lines of a worker's stderr
constexpr std::size_t max_trace_lines = 16;   ///< lines of a traceback
constexpr std::size_t max_message_lines = 3;  ///< lines of an error.json's message
constexpr std::size_t far_above_lines = 20;   ///< lines: last words farther above on the console are repeated
constexpr std::size_t max_earlier_lines = 4;  ///< lines for earlier attempts

// ---- lines ----

class Lines {
 public:
  Lines(bool color, std::size_t columns) : color_(color), columns_(columns) {}

  void error(std::string_view headline) {
    text_ += concat("ddrun: ", color_ ? "\033[1;31merror: \033[0m" : "error: ", sanitize_for_terminal(headline), "\n");
  }
  void warning(std::string_view headline) {
    text_ +=
        concat("ddrun: ", color_ ? "\033[1;33mwarning: \033[0m" : "warning: ", sanitize_for_terminal(headline), "\n");
  }
  void notice(std::string_view headline) { text_ += concat("ddrun: ", sanitize_for_terminal(headline), "\n"); }

  /// "  label:   line" with further lines below it. An empty label continues the one above.
  void block(std::string_view label, const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
      std::string start = label.empty() ? std::string() : concat("  ", label, ":");
      start.resize(std::max(start.size(), indent), ' ');
      text_ += color_ && !label.empty() ? concat("\033[2m", start, "\033[0m") : start;
      text_ += sanitize_for_terminal(line) + "\n";
      label = {};
    }
  }
  /// A worker's lines, cut where they are too long; the last `messages` of them later, as they have the reason.
  void quote(std::string_view label, std::vector<std::string> lines, std::size_t messages = 1) {
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const bool is_message = i + messages >= lines.size();
      lines[i] = cut_in_path(std::move(lines[i]), is_message ? std::max(2 * width, columns_) : columns_ - indent - 3);
    }
    block(label, lines);
  }
  /// A sentence, broken between words.
  void sentence(std::string_view label, std::string_view text) {
    std::vector<std::string> lines{""};
    for (const std::string& word : split(text, ' ')) {
      std::string& line = lines.back();
      if (line.empty()) line = word;
      else if (indent + line.size() + 1 + word.size() <= width) line += " " + word;
      else lines.push_back(word);
    }
    block(label, lines);
  }

  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  bool color_;
  std::size_t columns_;
  std::string text_;
};

// ---- the parts of a report ----

std::string ranks_text(const std::vector<RankName>& ranks) {
  std::string named = name_workers(ranks);
  if (named.size() > 66) {
    named.resize(std::min(named.rfind(',', 56), std::size_t{56}));
    named += concat(",... (", ranks.size(), " ranks)");
  }
  return named;
}

bool was_killed(const WorkerEnd& worker) {
  const auto* signaled = std::get_if<Signaled>(&worker.status);
  return signaled != nullptr && signaled->signal == SIGKILL;
}

/// "ranks 0-2,4-7 stopped by ddrun; rank 5 had finished": every worker of the attempt but `except`.
std::string other_outcomes(const AttemptResult& attempt, std::optional<std::size_t> except) {
  std::vector<std::pair<std::string, std::vector<RankName>>> groups;  // in order of the report
  const auto add = [&](const std::string& outcome, const RankName& rank) {
    const auto found = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == outcome; });
    if (found == groups.end()) groups.push_back({outcome, {rank}});
    else found->second.push_back(rank);
  };
  const auto outcome_of_worker = [](const WorkerEnd& worker) -> std::pair<int, std::string> {
    if (worker.pid == 0) return {4, "not started"};
    if (worker.still_runs) return {0, concat("still runs (pid ", worker.pid, "): cannot be ended")};
    if (worker.stopped_by_ddrun && was_killed(worker)) return {2, "killed by ddrun (SIGKILL)"};
    if (worker.stopped_by_ddrun) return {1, "stopped by ddrun"};
    if (worker.success) return {3, "had finished"};
    return {0, concat("failed too (", worker.declared ? worker.declared->what : describe(worker.status), ")")};
  };
  for (int order = 0; order <= 4; ++order) {
    for (std::size_t i = 0; i < attempt.workers.size(); ++i) {
      if (except == i) continue;
      const auto [worker_order, outcome] = outcome_of_worker(attempt.workers[i]);
      if (worker_order == order) add(outcome, attempt.workers[i].rank_name());
    }
  }
  std::vector<std::string> parts;
  for (const auto& [outcome, ranks] : groups) parts.push_back(concat(ranks_text(ranks), " ", outcome));
  return join(parts, "; ");
}

/// "rank 3 called MPI_Abort(1)", "rank 3 exited with code 1", "rank 3 was killed by SIGSEGV (…), core dumped,"
std::string ending(const WorkerEnd& worker) {
  if (worker.declared) return concat(worker.name(), " ", worker.declared->what);
  const auto* signaled = std::get_if<Signaled>(&worker.status);
  return concat(worker.name(), signaled != nullptr ? " was " : " ", describe(worker.status),
                signaled != nullptr && signaled->core_dumped ? "," : "");
}

/// "local rank 0, pid 4711 on node7"
std::string place(const std::string& host, const WorkerEnd& worker) {
  return concat(worker.local_rank != worker.rank ? concat("local rank ", worker.local_rank, ", ") : "", "pid ",
                worker.pid, host.empty() ? "" : " on " + host);
}

std::string headline(const std::string& host, const WorkerEnd& worker) {
  return concat(ending(worker), " after ", format_duration(worker.ran), " (", place(host, worker), ")");
}

std::string why(const WorkerEnd& worker) {
  std::string text = worker.why;
  if ((text.starts_with("out of memory") || text.ends_with("this worker was small")) && worker.use.max_rss_kib > 0) {
    text +=
        concat("; it had up to ", format_size(static_cast<std::uint64_t>(worker.use.max_rss_kib) * 1024), " in memory");
  }
  return text;
}

/// Explains known messages that are hard to understand.
std::string explain_known_message(const WorkerEnd& worker) {
  const auto* signaled = std::get_if<Signaled>(&worker.status);
  if (signaled == nullptr || signaled->signal != SIGABRT) return {};
  const bool known = std::any_of(worker.stderr_tail.begin(), worker.stderr_tail.end(), [](const std::string& line) {
    return line.find("terminate called without an active exception") != std::string::npos;
  });
  if (!known) return {};
  return "the program ended while C++ threads of it still ran. With PyTorch this happens now and then at "
         "the end of a script, after its work is done, also when nothing is wrong with it";
}

std::vector<std::string> message_lines(const WorkerError& error) {
  std::vector<std::string> lines;
  for (const std::string& line : split(trim(error.message), '\n')) {
    if (lines.size() == max_message_lines) {
      lines.back() += " ...";
      break;
    }
    lines.push_back(plain_line(line));
  }
  return lines;
}

/// Without empty lines, and those of Python that only underline a part of the one above.
std::vector<std::string> plain_lines(const std::vector<std::string>& text) {
  std::vector<std::string> lines;
  for (const std::string& line : text) {
    std::string plain = plain_line(line);
    if (plain.find_first_not_of(" ^~") != std::string::npos) lines.push_back(std::move(plain));
  }
  return lines;
}

std::vector<std::string> stderr_lines(const WorkerEnd& worker) {
  std::vector<std::string> lines = plain_lines(worker.stderr_tail);
  if (lines.size() > max_stderr_lines)
    lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(max_stderr_lines));
  return lines;
}

/// A traceback: its first line and its last ones, where the cause is.
std::vector<std::string> trace_lines(const std::vector<std::string>& text) {
  std::vector<std::string> lines = plain_lines(text);
  if (lines.size() > max_trace_lines) {
    lines.erase(lines.begin() + 1, lines.end() - static_cast<std::ptrdiff_t>(max_trace_lines - 2));
    lines.insert(lines.begin() + 1, "  ...");
  }
  return lines;
}

/// The worker's last words: in full if the console has not shown them or only far above, else their reason, unless
/// the error message has it.
std::vector<std::string> last_words(const WorkerEnd& worker) {
  const bool in_sight = worker.stderr_was_shown && worker.lines_since <= far_above_lines;
  if (!worker.last_words) {
    auto lines = stderr_lines(worker);
    if (in_sight && lines.size() > 1) lines.erase(lines.begin(), lines.end() - 1);
    if (in_sight && worker.error) lines.clear();
    return lines;
  }
  if (!in_sight) return trace_lines(worker.last_words->text);
  if (worker.error && gives_same_reason(*worker.error, *worker.last_words)) return {};
  return worker.last_words->reason;
}

void add_cause(Lines& lines, const WorkerEnd& worker) {
  if (worker.declared) lines.block("ended", {describe(worker.status)});
  if (const std::string text = why(worker); !text.empty()) lines.sentence("why", text);
  if (worker.error) lines.quote("message", message_lines(*worker.error), max_message_lines);
  if (const std::string text = explain_known_message(worker); !text.empty()) lines.sentence("note", text);
  if (!worker.shm.empty()) lines.sentence("note", worker.shm);
  lines.quote("stderr", last_words(worker));
  if (!worker.python.empty()) lines.sentence("python", worker.python);
  const bool traced = worker.last_words && worker.last_words->text.size() > 1;
  if (worker.error && !traced) lines.quote("trace", trace_lines(split(trim(worker.error->traceback), '\n')));
  if (!worker.stderr_log.empty()) lines.block("log", {worker.stderr_log});
  else if (!worker.stdout_log.empty()) lines.block("log", {worker.stdout_log});
}

std::chrono::nanoseconds time_until(const WorkerEnd& worker, const Evidence& evidence) {
  return std::max<std::chrono::nanoseconds>(evidence.at - worker.started, std::chrono::nanoseconds(0));
}

/// A worker that failed before another ended: the cause, then the first end, which gives the exit status.
void add_failed_before(Lines& lines, const std::string& host, const WorkerEnd& cause, const Evidence& evidence,
                       const WorkerEnd& first, bool in_full = true) {
  const bool held_up = evidence.kind == EvidenceKind::stack;
  const std::string what =
      held_up ? cause.why : concat("failed first, after ", format_duration(time_until(cause, evidence)));
  lines.error(concat(cause.name(), " ", what, " (", place(host, cause), ")"));
  if (in_full && !held_up) add_cause(lines, cause);
  else if (!cause.stderr_log.empty()) lines.block("log", {concat(host, ":", cause.stderr_log)});
  const std::string reason = short_reason(first);
  lines.block("status", {concat(ending(first), " after ", format_duration(first.ran),
                                held_up ? std::string() : concat(", before ", cause.name(), " did"),
                                reason.empty() ? "" : ": ", reason)});
}

/// One line per earlier attempt; consecutive attempts that ended alike share one.
void add_earlier(Lines& lines, const JobResult& result) {
  struct Group {
    int first;
    int last;
    std::string ending;
    std::string ran;
    std::string reason;
    std::string log;  ///< of the last
  };
  std::vector<Group> groups;
  for (std::size_t i = 0; i + 1 < result.attempts.size(); ++i) {
    const AttemptResult& attempt = result.attempts[i];
    const bool known = attempt.first_failure.has_value();
    std::string text = known ? ending(attempt.workers.at(*attempt.first_failure)) : "stopped";
    std::string reason;
    std::string log;
    if (attempt.cause) {
      const WorkerEnd& cause = attempt.workers.at(*attempt.cause);
      reason = short_reason(cause);
      log = cause.stderr_log;
      const bool held_up = attempt.cause_evidence.kind == EvidenceKind::stack;
      if (attempt.cause != attempt.first_failure) {
        reason = concat(cause.name(), held_up ? " " : " failed first: ", reason);
      }
    }
    const auto ran = known ? attempt.workers.at(*attempt.first_failure).ran : attempt.ran;
    if (!reason.empty()) reason = ": " + reason;
    if (!groups.empty() && groups.back().ending == text && groups.back().reason == reason) {
      groups.back() = {groups.back().first, attempt.attempt, std::move(text), {}, std::move(reason), std::move(log)};
    } else {
      groups.push_back({attempt.attempt, attempt.attempt, std::move(text), " after " + format_duration(ran),
                        std::move(reason), std::move(log)});
    }
  }
  std::vector<std::string> text;
  if (groups.size() > max_earlier_lines) {
    const std::size_t left_out = groups.size() - max_earlier_lines;
    text.push_back(concat("attempts 0-", groups[left_out - 1].last, ": see --report or the log directory"));
    groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(left_out));
  }
  for (const Group& group : groups) {
    const bool one = group.first == group.last;
    text.push_back(concat(one ? "attempt " : "attempts ", group.first, one ? "" : concat("-", group.last), ": ",
                          group.ending, group.ran, group.reason));
    if (!group.log.empty()) text.push_back(concat("  ", group.log));
  }
  lines.block("earlier", text);
}

std::string lost_log_text(const JobResult& result) {
  return concat("log files are incomplete: ", format_size(result.log_bytes_lost), " could not be written",
                result.log_error.empty() ? "" : concat(" (", result.log_error, ")"));
}

std::string lost_console_text(const JobResult& result) {
  return concat("the output shown is incomplete: ", format_size(result.console_bytes_lost), " are missing (",
                result.console_error, ")");
}

void add_losses(Lines& lines, const JobResult& result) {
  if (result.log_bytes_lost > 0) lines.sentence("note", lost_log_text(result));
  if (result.console_bytes_lost > 0) lines.sentence("note", lost_console_text(result));
}

/// The worker that failed first, and the one that gives the exit status if it is another.
void add_failure(Lines& lines, const std::string& host, const AttemptResult& attempt) {
  const WorkerEnd& first = attempt.workers.at(*attempt.first_failure);
  if (attempt.cause && attempt.cause != attempt.first_failure) {
    add_failed_before(lines, host, attempt.workers.at(*attempt.cause), attempt.cause_evidence, first);
  } else {
    // A single worker has ddrun's stdout and may end with SIGPIPE in `ddrun prog | head`: no error.
    if (attempt.workers.size() == 1 && first.status == ExitStatus(Signaled{SIGPIPE}))
      lines.notice(headline(host, first));
    else lines.error(headline(host, first));
    add_cause(lines, first);
  }
}

/// A worker that held up the others.
void add_culprit(Lines& lines, const std::string& host, const WorkerEnd& worker) {
  lines.sentence("cause", concat(worker.name(), " ", worker.why, " (", place(host, worker), ")"));
}

/// No worker had failed by itself when the job was stopped, but one had reported a failure, or held up the others.
void add_unended_failure(Lines& lines, const JobResult& result) {
  if (result.attempts.empty() || !result.attempts.back().cause || result.attempts.back().first_failure) return;
  const AttemptResult& last = result.attempts.back();
  const WorkerEnd& worker = last.workers.at(*last.cause);
  if (last.cause_evidence.kind == EvidenceKind::stack) {
    add_culprit(lines, result.host, worker);
    if (!worker.stderr_log.empty()) lines.block("log", {worker.stderr_log});
    return;
  }
  lines.block("failed",
              {concat(worker.name(), " had failed after ", format_duration(time_until(worker, last.cause_evidence)),
                      " (", place(result.host, worker), ")")});
  add_cause(lines, worker);
}

void add_last_lines(Lines& lines, const JobResult& result, std::string_view label, std::optional<std::size_t> except) {
  if (!result.attempts.empty()) {
    const std::string text = other_outcomes(result.attempts.back(), except);
    if (!text.empty()) lines.sentence(label, text);
  }
  add_earlier(lines, result);
  add_losses(lines, result);
}

/// Several machines: every agent reports the same cause, in full on the worker's machine and on the coordinator's, else
/// in a line with the path of the log.
void add_job_cause(Lines& lines, const JobResult& result, const JobCause& cause) {
  if (result.verdict == Verdict::stopped_by_signal) {
    lines.notice(cause.why);
  } else if (!cause.worker) {
    lines.error(cause.why);
    if (cause.failed_first) add_culprit(lines, cause.failed_first_host, *cause.failed_first);
  } else if (cause.failed_first) {
    add_failed_before(lines, cause.failed_first_host, *cause.failed_first, cause.failed_first_evidence, *cause.worker,
                      cause.is_detailed);
  } else {
    lines.error(headline(cause.host, *cause.worker));
    if (cause.is_detailed) {
      add_cause(lines, *cause.worker);
    } else if (!cause.worker->stderr_log.empty()) {
      lines.block("log", {concat(cause.host, ":", cause.worker->stderr_log)});
    }
  }
  if (cause.is_local && !result.attempts.empty()) {
    add_last_lines(lines, result, "others", result.attempts.back().first_failure);
  } else {
    add_losses(lines, result);
  }
}

}  // namespace

std::string failure_report(const JobResult& result, bool color, std::size_t columns) {
  Lines lines(color, columns);
  if (result.cause && result.verdict != Verdict::success) {
    add_job_cause(lines, result, *result.cause);
    return lines.take();
  }
  switch (result.verdict) {
    case Verdict::success:
      if (result.log_bytes_lost > 0) lines.error("all workers succeeded, but " + lost_log_text(result));
      if (result.console_bytes_lost > 0) lines.error("all workers succeeded, but " + lost_console_text(result));
      break;
    case Verdict::worker_failed: {
      if (ended_with_reader(result)) break;
      if (result.attempts.empty() || !result.attempts.back().first_failure) {
        lines.error("the workers failed");
        add_last_lines(lines, result, "workers", std::nullopt);
        break;
      }
      const AttemptResult& last = result.attempts.back();
      add_failure(lines, result.host, last);
      add_last_lines(lines, result, "others", last.first_failure);
      break;
    }
    case Verdict::timed_out:
      lines.error(result.message.empty()
                      ? concat("stopped after ", format_duration(result.timeout), ", the limit set with --timeout")
                      : result.message);
      add_unended_failure(lines, result);
      add_last_lines(lines, result, "workers", std::nullopt);
      if (!result.log_dir.empty()) lines.block("logs", {result.log_dir});
      break;
    case Verdict::stopped_by_signal:
      lines.notice(concat("stopped by ", signal_name(result.signal),
                          result.signal_sender.empty() ? "" : concat(" from ", result.signal_sender), " after ",
                          format_duration(result.ran)));
      add_unended_failure(lines, result);
      add_last_lines(lines, result, "workers", std::nullopt);
      break;
    case Verdict::launcher_failed:
    case Verdict::node_lost:
      lines.error(result.message.empty() ? "ddrun could not do its work" : result.message);
      add_last_lines(lines, result, "workers", std::nullopt);
      break;
  }
  return lines.take();
}

}  // namespace ddrun::agent
