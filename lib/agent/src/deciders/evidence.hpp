#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/logs/tail_buffer.hpp"

// Evidence of why workers ended, and which of them failed first.

namespace ddrun::agent {

// ---- first_cause.cpp

/// Sets `attempt.cause` and `attempt.cause_evidence` to the worker that failed first, by its end, its error file, or
/// its last traceback or fatal message; empty if no worker failed. The first to end is often a peer of the one that
/// raised, which is still in teardown. A worker that ddrun stopped is the cause only if no worker ended by itself with
/// its own reason.
///
/// `stopped_at`: when ddrun began to stop the workers, after it had read their output. Later output is no evidence, as
/// workers also report errors and crash while they are stopped.
void find_first_cause(AttemptResult& attempt, std::chrono::system_clock::time_point stopped_at);

/// Whether this worker ended by itself with its own reason: a message or a signal, and no failure of a peer.
[[nodiscard]] bool is_explained(const WorkerEnd& worker);

/// Drops the last words and the error of a worker that continued after them. `last_stderr`: when its last line there
/// was read. Output after `stopped_at` is not considered.
void drop_survived(WorkerEnd& worker, std::chrono::system_clock::time_point last_stderr,
                   const logs::LastWrite& last_stdout, std::chrono::system_clock::time_point stopped_at);

/// The reason of this worker's failure in a few lines: the message of its error file or its last words, preferring the
/// one that reports no peer's failure; else its last line on stderr. Plain text; may be empty.
[[nodiscard]] std::vector<std::string> reason_lines(const WorkerEnd& worker);

/// Whether they say that it waited for other ranks in vain: "Timed out waiting …", "TimeoutError", NCCL's watchdog; not
/// for a connection.
[[nodiscard]] bool says_timeout(const WorkerEnd& worker);

/// The same in one line, or the kernel's reason (WorkerEnd::why).
[[nodiscard]] std::string short_reason(const WorkerEnd& worker);

/// Whether the error file and the last words have the same reason.
[[nodiscard]] bool gives_same_reason(const WorkerError& error, const LastWords& words);

// ---- cause_key.cpp

/// A key that is equal for failures of the same cause: the message of the error file or of the last words, without
/// numbers that are a rank, pid, device, address, date or duration, and the innermost Python frame outside libraries.
/// One readable line; empty if there is no message.
[[nodiscard]] std::string cause_key(const WorkerEnd& worker);

// ---- error_file.cpp

/// A worker's JSON text as nlohmann's parser takes it: control characters are blanks, and half a surrogate pair is the
/// byte that Python's os.fsdecode() made it of, or U+FFFD, as is what is not UTF-8.
[[nodiscard]] std::string readable_json(std::string_view text);

/// Reads a worker's TORCHELASTIC_ERROR_FILE, in the formats of PyTorch's `record`:
///
///     {"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "…", "timestamp": "1795223473"}}}
///     {"message": "some text", "timestamp": 1795223473}
///
/// Nothing if there is no such file or no message in it. A truncated file gives the text before the break. Reads at
/// most 4 MiB of a regular file and keeps 64 KiB of a text.
[[nodiscard]] std::optional<WorkerError> read_error_file(const std::string& path);

/// Copies a worker's error file to `to`, the TORCHELASTIC_ERROR_FILE of an outer launcher, and adds the worker's status
/// as "errorCode" in "message" (negative for a signal), as torchrun does. Fails with `protocol` if `from` holds no
/// complete JSON and with `unavailable` if `to` cannot be written.
[[nodiscard]] Result<void> forward_error_file(const std::string& from, const ExitStatus& status, const std::string& to);

// ---- last_words.cpp

/// Finds the failure at the end of a worker's stderr: Python's tracebacks (chained, groups, with PyTorch's "[rank0]:"),
/// faulthandler, C++'s terminate, the C library's aborts and assertions, sanitizers, CUDA, Rust, Go, Fortran, Julia. A
/// later message that only reports a peer's failure does not hide an earlier one of the worker's own.
[[nodiscard]] std::optional<LastWords> find_last_words(const std::vector<logs::TailLine>& tail);

/// Whether `text` is a message of Gloo, NCCL, PyTorch, TCPStore, UCX or MPI for a peer or store that is gone or does
/// not answer. Such a worker is usually a consequence of a failure, not its cause. `text` may have several lines.
[[nodiscard]] bool is_peer_failure_message(std::string_view text);

}  // namespace ddrun::agent
