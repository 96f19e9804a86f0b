#include "evidence.hpp"

#include <signal.h>

#include <algorithm>
#include <optional>

#include "ddrun/base/text.hpp"

namespace ddrun::agent {

namespace {

using Time = std::chrono::system_clock::time_point;

/// A traceback that was followed by more than this on stderr was survived, unless all of it came at once: what
/// interpreters flush when they end.
constexpr std::size_t most_lines_after = 30;
constexpr std::chrono::milliseconds at_once{100};
/// Words older than this say little of a worker's end where another worker's end is explained, or a signal's.
constexpr std::chrono::seconds recent{10};
/// The time of a file may be so much before what was written.
constexpr std::chrono::milliseconds file_tick{20};
/// Times this close are the same.
constexpr std::chrono::milliseconds same{1};

bool failed_itself(const WorkerEnd& worker) { return worker.pid != 0 && !worker.success && !worker.stopped_by_ddrun; }

/// Sent by a process, so that what the worker wrote before says nothing about it.
bool was_sent(const WorkerEnd& worker) {
  const auto* signaled = std::get_if<Signaled>(&worker.status);
  if (signaled == nullptr) return false;
  const int signal = signaled->signal;
  return signal == SIGKILL || signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
}

/// It ended at once after its words, but for what it flushed.
bool ended_of(const LastWords& words) { return !words.went_on || words.span <= at_once; }

bool complains(const WorkerEnd& worker) {
  const bool said = worker.error || worker.last_words;
  if (was_sent(worker) || (!said && std::holds_alternative<Signaled>(worker.status))) return false;
  const auto lines = reason_lines(worker);
  return std::any_of(lines.begin(), lines.end(), [](const std::string& line) { return is_victims_words(line); });
}

/// The earliest sign that this worker failed; one of its own before the words of a victim. `explained`: of another
/// worker's end, or of its own.
std::optional<Sign> first_sign(const WorkerEnd& worker, bool is_first, bool explained, Time stopped_at) {
  if (worker.pid == 0 || worker.success) return std::nullopt;
  std::optional<Sign> best;
  const auto add = [&](SignKind kind, Time at, bool own) {
    if (at > stopped_at && !is_first) return;
    if (!best || (own && !best->own) || (own == best->own && at < best->at)) best = Sign{kind, at, own};
  };
  const bool ended = failed_itself(worker);
  // A worker that was stopped may have handled what it told of, and gone on without a word.
  if (!ended && explained) return std::nullopt;
  if (worker.error) add(SignKind::error_file, worker.error->at, !is_victims_words(worker.error->message));
  if (worker.last_words) {
    const LastWords& words = *worker.last_words;
    const bool old = worker.ended - words.at > recent;
    const bool signaled = std::holds_alternative<Signaled>(worker.status);
    const bool counts = ended ? !was_sent(worker) && ended_of(words) && !(old && (signaled || explained))
                              : words.lines_after <= most_lines_after;
    if (counts) add(SignKind::last_words, words.at, !words.of_a_victim);
  }
  if (ended) add(SignKind::end, worker.ended, !complains(worker));
  return best;
}

}  // namespace

bool is_explained(const WorkerEnd& worker) {
  if (!failed_itself(worker)) return false;
  if (worker.error && !is_victims_words(worker.error->message)) return true;
  if (worker.last_words) {
    const LastWords& words = *worker.last_words;
    return !words.of_a_victim && ended_of(words) && worker.ended - words.at <= recent;
  }
  if (std::holds_alternative<Signaled>(worker.status)) return true;
  return !reason_lines(worker).empty() && !complains(worker);
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
  std::optional<Sign> best;
  const auto consider = [&](std::size_t i) {
    const bool is_first = attempt.first_failure == i;
    const auto found = first_sign(attempt.workers[i], is_first, explained, stopped_at);
    if (!found || (best && best->own && !found->own)) return;
    if (best && best->own == found->own && found->at + same > best->at) return;
    // Among those who only complain of others the first to end stays.
    if (best && !found->own) return;
    best = found;
    attempt.cause = i;
    attempt.cause_sign = *found;
  };
  if (attempt.first_failure) consider(*attempt.first_failure);
  for (std::size_t i = 0; i < attempt.workers.size(); ++i) {
    if (attempt.first_failure != i) consider(i);
  }
}

void drop_survived(WorkerEnd& worker, Time last_stderr, const logs::LastWrite& last_stdout, Time stopped_at) {
  const auto later_than = [&](Time at, std::uint64_t turn) {
    if (turn != 0 && last_stdout.turn != 0) return last_stdout.turn > turn;
    return last_stdout.at > at + file_tick && last_stdout.at <= stopped_at;
  };
  auto& words = worker.last_words;
  if (words && worker.stopped_by_ddrun) {
    if (words->went_on || later_than(words->at, words->turn)) words.reset();
  } else if (words && !ended_of(*words)) {
    // Python's own code for an exception; whoever tidies up afterwards may say so.
    const bool raised = words->ends_python && worker.status == ExitStatus(Exited{1});
    if (!raised || words->lines_after > most_lines_after) words.reset();
  }
  auto& error = worker.error;
  if (!error || (words && says_the_same(*error, *words))) return;
  const bool wrote = last_stderr > error->at + file_tick || later_than(error->at, 0);
  const bool raised_another = words && words->ends_python && words->at > error->at + file_tick;
  if (worker.stopped_by_ddrun ? wrote : raised_another) error.reset();
}

// ---- why, in short

namespace {

constexpr std::size_t most_lines = 3;
constexpr std::size_t short_columns = 120;

}  // namespace

std::vector<std::string> reason_lines(const WorkerEnd& worker) {
  std::vector<std::string> lines;
  const bool by_file = worker.error && (!is_victims_words(worker.error->message) || !worker.last_words ||
                                        worker.last_words->of_a_victim);
  if (by_file) {
    for (const std::string& line : split(trim(worker.error->message), '\n')) {
      if (lines.size() == most_lines) {
        lines.back() += " ...";
        break;
      }
      lines.push_back(plain_line(line));
    }
  } else if (worker.last_words) {
    lines = worker.last_words->reason;
  } else if (!worker.stopped_by_ddrun) {
    const auto said = std::find_if(worker.stderr_tail.rbegin(), worker.stderr_tail.rend(),
                                   [](const std::string& line) { return !trim(plain_line(line)).empty(); });
    if (said != worker.stderr_tail.rend()) lines.push_back(plain_line(*said));
  }
  return lines;
}

std::string reason_in_short(const WorkerEnd& worker) {
  if (!worker.why.empty()) return plain_line(worker.why);
  const auto lines = reason_lines(worker);
  if (lines.empty()) return {};
  std::string text(trim(lines.front()));
  // That Python has crashed is known from the signal.
  if (lines.size() > 1 && text.starts_with("Fatal Python error: ")) text += ", " + lines[1];
  return cut_line(std::move(text), short_columns);
}

bool says_the_same(const WorkerError& error, const LastWords& words) {
  const std::string message = plain_line(split(trim(error.message), '\n').front());
  const std::string& reason = words.reason.front();
  return !message.empty() && (reason.find(message) != std::string::npos || message.find(reason) != std::string::npos);
}

}  // namespace ddrun::agent
