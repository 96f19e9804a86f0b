#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/logs/output.hpp"

// What workers have left that says why they ended, and which of them failed first by it.

namespace ddrun::agent {

// ---- first_cause.cpp

/// Finds out which worker of `attempt` failed first by its own evidence: its end, its error file, its last traceback or
/// fatal message. The first to end is often a victim, whose peer raised before and is still tearing down. A worker that
/// ddrun stopped is the cause only where no worker ended by itself with its own reason. Sets
/// `attempt.cause` and `attempt.cause_evidence`; leaves them empty if no worker failed.
///
/// `stopped_at`: when ddrun had read what workers had written by the time it began to stop them. What came later is no
/// evidence: workers that are told to end complain, and crash, too.
void find_first_cause(AttemptResult& attempt, std::chrono::system_clock::time_point stopped_at);

/// Whether this worker ended by itself and says, or its signal does, why: no complaint about others.
[[nodiscard]] bool is_explained(const WorkerEnd& worker);

/// Drops the last words and the error of a worker that evidently went on after them. `last_stderr`: when its last line
/// there was read. What came after `stopped_at` says nothing.
void drop_survived(WorkerEnd& worker, std::chrono::system_clock::time_point last_stderr,
                   const logs::LastWrite& last_stdout, std::chrono::system_clock::time_point stopped_at);

/// Why this worker failed in as few lines as it says it itself: its error file's message or its last words, whichever
/// is not a complaint about others; else its last line on stderr. Plain text; empty if it said nothing.
[[nodiscard]] std::vector<std::string> reason_lines(const WorkerEnd& worker);

/// The same, or what the kernel tells, as part of a sentence.
[[nodiscard]] std::string short_reason(const WorkerEnd& worker);

/// Whether its error file's message says what its last words say.
[[nodiscard]] bool gives_same_reason(const WorkerError& error, const LastWords& words);

// ---- cause_key.cpp

/// What makes two failures the same: the exception or message of the error file or of the last words, without the
/// numbers that are a rank, pid, device, address, date or duration, and the innermost line of Python that is no
/// library's. One line for people; empty if the worker said no reason.
[[nodiscard]] std::string cause_key(const WorkerEnd& worker);

// ---- error_file.cpp

/// What a worker wrote to its TORCHELASTIC_ERROR_FILE, as PyTorch's `record` does:
///
///     {"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "…", "timestamp": "1795223473"}}}
///     {"message": "some text", "timestamp": 1795223473}
///
/// Nothing if there is no such file or no message in it. A file whose end is missing (its writer was killed) gives
/// what stands before the break, also of a message. Reads at most 4 MiB and keeps 64 KiB of a text, never blocks on
/// anything but a regular file.
[[nodiscard]] std::optional<WorkerError> read_error_file(const std::string& path);

/// Copies a worker's error file to `to`, the file that an outer launcher gave to ddrun itself, with the worker's end
/// added as "errorCode" inside "message" (minus the number for a signal), as torchrun does for outer schedulers.
/// Fails with `protocol` if `from` holds no complete JSON and with `unavailable` if `to` cannot be written.
[[nodiscard]] Result<void> forward_error_file(const std::string& from, const ExitStatus& status, const std::string& to);

// ---- last_words.cpp

/// Looks for last words in the end of a worker's stderr: Python's tracebacks (chained, groups, of PyTorch with its
/// "[rank0]:"), faulthandler, C++'s terminate, the C library's aborts and assertions, sanitizers, CUDA, Rust, Go,
/// Fortran, Julia. What was raised while a failure was handled does not hide that failure if it only complains of
/// others.
[[nodiscard]] std::optional<LastWords> find_last_words(const std::vector<logs::TailLine>& tail);

/// Whether a worker's complaint is about others: what the libraries of this field say when a peer, or the store, is
/// gone or does not answer. A worker that says so is a victim of a failure, as a rule, and not its cause. `text` may
/// have several lines; escape sequences are taken out.
[[nodiscard]] bool is_peer_failure_message(std::string_view text);

}  // namespace ddrun::agent
