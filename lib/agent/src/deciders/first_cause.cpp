#include "evidence.hpp"

#include <signal.h>

#include <algorithm>
#include <optional>

#include "ddrun/base/text.hpp"

namespace ddrun::agent {

namespace {

using Time = std::chrono::system_clock::time_point;

/// A worker survived a traceback that more lines than this follow on stderr, unless they came within flush_window, as
/// interpreters flush output when they end.
constexpr std::size_t max_lines_after = 30;
constexpr std::chrono::milliseconds flush_window{100};
/// Messages older than this do not explain an end by a signal, or where another worker's end is explained.
constexpr std::chrono::seconds recent_window{10};
/// Granularity of file times.
constexpr std::chrono::milliseconds file_time_tolerance{20};
/// Times this close are the same.
constexpr std::chrono::milliseconds clock_tolerance{1};

bool failed_itself(const WorkerEnd& worker) { return worker.pid != 0 && !worker.success && !worker.stopped_by_ddrun; }

/// Ended by a signal that another process sent, which the worker's output does not explain.
bool died_of_sent_signal(const WorkerEnd& worker) {
  const auto* signaled = std::get_if<Signaled>(&worker.status);
  if (signaled == nullptr) return false;
  const int signal = signaled->signal;
  return signal == SIGKILL || signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
}

/// It ended right after the message, except for flushed output.
bool exited_after(const LastWords& words) { return !words.continued || words.span <= flush_window; }

bool end_blames_peer(const WorkerEnd& worker) {
  const bool has_message = worker.error || worker.last_words;
  if (died_of_sent_signal(worker) || (!has_message && std::holds_alternative<Signaled>(worker.status))) return false;
  const auto lines = reason_lines(worker);
  return std::any_of(lines.begin(), lines.end(), [](const std::string& line) { return is_peer_failure_message(line); });
}

/// The earliest evidence that this worker failed; its own comes before a message about a peer. `explained`: the end of
/// some worker is explained.
std::optional<Evidence> earliest_evidence(const WorkerEnd& worker, bool is_first, bool explained, Time stopped_at) {
  if (worker.pid == 0 || worker.success) return std::nullopt;
  std::optional<Evidence> best;
  const auto add = [&](EvidenceKind kind, Time at, bool own) {
    if (at > stopped_at && !is_first) return;
    if (!best || (own && !best->own) || (own == best->own && at < best->at)) best = Evidence{kind, at, own};
  };
  const bool ended = failed_itself(worker);
  if (worker.declared) add(EvidenceKind::end, worker.declared->at, true);
  // A stopped worker may have handled the error that it printed, and continued silently.
  if (!ended && explained) return std::nullopt;
  if (worker.error) add(EvidenceKind::error_file, worker.error->at, !is_peer_failure_message(worker.error->message));
  if (worker.last_words) {
    const LastWords& words = *worker.last_words;
    const bool old = worker.ended - words.at > recent_window;
    const bool signaled = std::holds_alternative<Signaled>(worker.status);
    const bool counts = ended ? !died_of_sent_signal(worker) && exited_after(words) && !(old && (signaled || explained))
                              : words.lines_after <= max_lines_after;
    if (counts) add(EvidenceKind::last_words, words.at, !words.blames_peer);
  }
  if (ended) add(EvidenceKind::end, worker.ended, !end_blames_peer(worker));
  return best;
}

}  // namespace

bool is_explained(const WorkerEnd& worker) {
  if (!failed_itself(worker)) return false;
  if (worker.declared) return true;
  if (worker.error && !is_peer_failure_message(worker.error->message)) return true;
  if (worker.last_words) {
    const LastWords& words = *worker.last_words;
    return !words.blames_peer && exited_after(words) && worker.ended - words.at <= recent_window;
  }
  if (std::holds_alternative<Signaled>(worker.status)) return true;
  return !reason_lines(worker).empty() && !end_blames_peer(worker);
}

void find_first_cause(AttemptResult& attempt, Time stopped_at) {
  attempt.cause.reset();
  const auto in_time = [&](std::size_t i) {
    return attempt.first_failure == i || attempt.workers[i].ended <= stopped_at;
  };
  bool explained = false;
  for (std::size_t i = 0; i < attempt.workers.size(); ++i) {
    explained = explained || (in_time(i) && is_explained(attempt.workers[i]));
  }
  std::optional<Evidence> best;
  const auto consider = [&](std::size_t i) {
    const bool is_first = attempt.first_failure == i;
    const auto found = earliest_evidence(attempt.workers[i], is_first, explained, stopped_at);
    if (!found || (best && best->own && !found->own)) return;
    if (best && best->own == found->own && found->at + clock_tolerance > best->at) return;
    // Among workers that only report failures of peers the first to end stays.
    if (best && !found->own) return;
    best = found;
    attempt.cause = i;
    attempt.cause_evidence = *found;
  };
  if (attempt.first_failure) consider(*attempt.first_failure);
  for (std::size_t i = 0; i < attempt.workers.size(); ++i) {
    if (attempt.first_failure != i) consider(i);
  }
}

void drop_survived(WorkerEnd& worker, Time last_stderr, const logs::LastWrite& last_stdout, Time stopped_at) {
  const auto later_than = [&](Time at, std::uint64_t turn) {
    if (turn != 0 && last_stdout.turn != 0) return last_stdout.turn > turn;
    return last_stdout.at > at + file_time_tolerance && last_stdout.at <= stopped_at;
  };
  auto& words = worker.last_words;
  if (words && worker.stopped_by_ddrun) {
    if (words->continued || later_than(words->at, words->turn)) words.reset();
  } else if (words && !exited_after(*words)) {
    // Exit code 1 is Python's for an exception; cleanup code may print after the traceback.
    const bool raised = words->is_main_traceback && worker.status == ExitStatus(Exited{1});
    if (!raised || words->lines_after > max_lines_after) words.reset();
  }
  auto& error = worker.error;
  if (!error || (words && gives_same_reason(*error, *words))) return;
  const bool wrote = last_stderr > error->at + file_time_tolerance || later_than(error->at, 0);
  const bool raised_another = words && words->is_main_traceback && words->at > error->at + file_time_tolerance;
  if (worker.stopped_by_ddrun ? wrote : raised_another) error.reset();
}

// ---- why, in short

namespace {

constexpr std::size_t max_lines = 3;
constexpr std::size_t short_columns = 120;

}  // namespace

std::vector<std::string> reason_lines(const WorkerEnd& worker) {
  std::vector<std::string> lines;
  const bool by_file = worker.error && (!is_peer_failure_message(worker.error->message) || !worker.last_words ||
                                        worker.last_words->blames_peer);
  if (by_file) {
    for (const std::string& line : split(trim(worker.error->message), '\n')) {
      if (lines.size() == max_lines) {
        lines.back() += " ...";
        break;
      }
      lines.push_back(plain_line(line));
    }
  } else if (worker.last_words) {
    lines = worker.last_words->reason;
  } else if (!worker.stopped_by_ddrun) {
    const auto last = std::find_if(worker.stderr_tail.rbegin(), worker.stderr_tail.rend(),
                                   [](const std::string& line) { return !trim(plain_line(line)).empty(); });
    if (last != worker.stderr_tail.rend()) lines.push_back(plain_line(*last));
  }
  return lines;
}

bool says_timeout(const WorkerEnd& worker) {
  const auto has = [](const std::string& line, std::string_view part) { return line.find(part) != std::string::npos; };
  const auto lines = reason_lines(worker);
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
    // "Connection timed out", "trying to connect": no rank is waited for, the network or the store is.
    if (has(line, "onnection timed out") || has(line, "to connect")) return false;
    // "Timed out", "timed out", "TimeoutError", "operation timeout"
    return has(line, "imed out") || has(line, "imeout");
  });
}

std::string short_reason(const WorkerEnd& worker) {
  if (!worker.why.empty()) return plain_line(worker.why);
  const auto lines = reason_lines(worker);
  if (lines.empty()) return {};
  std::string text(trim(lines.front()));
  // The signal already tells that Python crashed.
  if (lines.size() > 1 && text.starts_with("Fatal Python error: ")) text += ", " + lines[1];
  return cut_in_path(std::move(text), short_columns);
}

bool gives_same_reason(const WorkerError& error, const LastWords& words) {
  const std::string message = plain_line(split(trim(error.message), '\n').front());
  const std::string& reason = words.reason.front();
  return !message.empty() && (reason.find(message) != std::string::npos || message.find(reason) != std::string::npos);
}

}  // namespace ddrun::agent
