#include "evidence.hpp"

#include <signal.h>

#include <algorithm>
#include <optional>

#include "ddrun/base/text.hpp"

namespace ddrun::agent {

namespace {

using Time = std::chrono::system_clock::time_point;

/// A traceback that was followed by more than this on stderr was survived.
constexpr std::size_t most_lines_after = 30;
/// So was one that is older than this, where something else explains the failure: for a worker that was stopped, and
/// for one that died of a signal.
constexpr std::chrono::seconds recent{10};
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

/// The earliest sign that this worker failed; one of its own before the words of a victim.
std::optional<Sign> first_sign(const WorkerEnd& worker, bool is_first, bool first_is_explained, Time stopped_at) {
  if (worker.pid == 0 || worker.success) return std::nullopt;
  std::optional<Sign> best;
  const auto add = [&](SignKind kind, Time at, bool own) {
    if (at > stopped_at && !is_first) return;
    if (!best || (own && !best->own) || (own == best->own && at < best->at)) best = Sign{kind, at, own};
  };
  bool complains = false;
  if (worker.error) {
    complains = is_victims_words(worker.error->message);
    add(SignKind::error_file, worker.error->at, !complains);
  }
  if (worker.last_words && worker.last_words->lines_after <= most_lines_after) {
    const LastWords& words = *worker.last_words;
    const bool signaled = std::holds_alternative<Signaled>(worker.status);
    const bool counts = failed_itself(worker) ? !was_sent(worker) && (!signaled || worker.ended - words.at <= recent)
                                              : !first_is_explained || stopped_at - words.at <= recent;
    if (counts) {
      complains = words.of_a_victim && (complains || !worker.error);
      add(SignKind::last_words, words.at, !words.of_a_victim);
    }
  }
  if (failed_itself(worker)) add(SignKind::end, worker.ended, !complains);
  return best;
}

/// Whether the end of the worker that ended first has a reason that is its own.
bool is_explained(const WorkerEnd& worker) {
  if (worker.error) return !is_victims_words(worker.error->message);
  if (worker.last_words) return !worker.last_words->of_a_victim;
  return std::holds_alternative<Signaled>(worker.status);
}

}  // namespace

void find_first_cause(AttemptResult& attempt, Time stopped_at) {
  attempt.cause.reset();
  const bool explained = attempt.first_failure && is_explained(attempt.workers.at(*attempt.first_failure));
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
