#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/rendezvous/messages.hpp"

namespace ddrun::agent {

/// What the kernel charged to one worker and the children it waited for.
struct ResourceUse {
  long max_rss_kib = 0;
  std::chrono::microseconds user_time{0};
  std::chrono::microseconds system_time{0};
};

/// What a worker said about its own failure in error.json (PyTorch's `record`).
struct WorkerError {
  std::string message;
  std::string traceback;                       ///< may be empty
  std::string file;                            ///< path of the error.json it was read from
  std::chrono::system_clock::time_point at{};  ///< when it failed: the time in the file, or when that was written
  bool file_stays = true;                      ///< false: it lies in our private directory, and goes with that
};

/// Why a worker failed, in its own words: the last traceback or fatal message on its stderr. Plain text.
struct LastWords {
  std::vector<std::string> reason;           ///< one to three lines, such as "ValueError: boom"
  std::vector<std::string> text;             ///< all of it: the traceback with the reason, oldest line first
  std::chrono::system_clock::time_point at;  ///< when ddrun had read the reason
  std::uint64_t shown = 0;                   ///< lines that the consoles had shown by then
  std::uint64_t turn = 0;                    ///< as in logs::TailLine
  std::size_t lines_after = 0;               ///< what the worker wrote to stderr afterwards
  bool continued = false;                    ///< some of that is no part of a failure, as far as is known
  std::chrono::nanoseconds span{0};          ///< from the first of those lines to the last
  bool is_main_traceback = false;            ///< a traceback of a main thread
  bool blames_peer = false;                  ///< it complains of others
};

/// How one worker of one attempt ended.
struct WorkerEnd {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;
  ExitStatus status;
  bool success = false;           ///< its code is one of --success-on
  bool stopped_by_ddrun = false;  ///< it ended after ddrun had begun to take the group down
  bool still_runs = false;        ///< SIGKILL has not ended it; status, ended and ran are what they would be if it had
  std::chrono::system_clock::time_point started;
  std::chrono::system_clock::time_point ended;
  std::chrono::nanoseconds ran{0};
  ResourceUse use;
  std::string why;  ///< the reason behind the status where it can be known ("out of memory: …"); else empty
  std::string shm;  ///< how full /dev/shm was then, where its end or last lines ask for it; else empty
  std::optional<WorkerError> error;
  std::optional<LastWords> last_words;   ///< on stderr
  std::vector<std::string> stderr_tail;  ///< its last lines on stderr, oldest first
  bool stderr_was_shown = false;         ///< the console has shown them already
  std::uint64_t lines_since = 0;         ///< shown on the console after its last words, by whomever
  std::string stdout_log;                ///< paths; empty if there is no file
  std::string stderr_log;
};

/// By what a worker shows that it has failed.
enum class EvidenceKind { end, error_file, last_words };

struct Evidence {
  EvidenceKind kind = EvidenceKind::end;
  std::chrono::system_clock::time_point at;
  bool own = true;  ///< not a complaint about others
};

struct AttemptResult {
  int attempt = 0;                           ///< TORCHELASTIC_RESTART_COUNT of its workers
  std::uint64_t round = 0;                   ///< several machines: number of the round
  int node_rank = 0;                         ///< of this machine
  std::vector<WorkerEnd> workers;            ///< in order of rank
  std::optional<std::size_t> first_failure;  ///< index into workers: the first that ended badly by itself
  std::optional<std::size_t> cause;          ///< index into workers: the first that failed, by its own evidence
  Evidence cause_evidence;                   ///< of `cause`
  std::chrono::nanoseconds ran{0};
};

/// The same on one machine and for a whole job.
using Verdict = rendezvous::VerdictKind;

/// Several machines: why the job ended, as its coordinator said it to all.
struct JobCause {
  int exit_code = 0;
  std::string host;  ///< where it is; empty if it has no place
  int node_rank = -1;
  std::string why;                        ///< one sentence
  std::optional<WorkerEnd> worker;        ///< the first that ended badly by itself, as its own machine told
  std::optional<WorkerEnd> failed_first;  ///< another one that failed before, by its own evidence
  Evidence failed_first_evidence;
  std::string failed_first_host;
  bool is_local = false;     ///< it is this machine's
  bool is_detailed = false;  ///< here, or where the coordinator is
  int restarts = 0;
};

/// Several machines: how the workers of another node ended in one round (lib/rendezvous/PROTOCOL.md), as JSON.
struct NodeAttempt {
  std::uint64_t round = 0;
  int node_rank = 0;
  std::string host;
  std::string workers;
};

/// How --before or --after ended on this machine.
struct CommandEnd {
  ExitStatus status;
  std::chrono::nanoseconds ran{0};
  int runs = 1;  ///< of which this is the last
};

/// The end of a job: what the report and the exit code are made from.
struct JobResult {
  Verdict verdict = Verdict::success;
  int signal = 0;                                   ///< for stopped_by_signal
  std::string signal_sender;                        ///< "pid 4711 (slurmstepd)" if known
  std::string message;                              ///< for launcher_failed: what went wrong and what to do
  int launcher_code = exit_codes::launcher_failed;  ///< for launcher_failed: 125, 126 or 127
  std::string run_id;
  std::string host;     ///< short host name
  std::string program;  ///< as the user named it
  std::string log_dir;  ///< empty if nothing was written
  int world_size = 0;
  int max_restarts = 0;
  std::chrono::milliseconds timeout{0};  ///< for timed_out
  std::chrono::system_clock::time_point started;
  std::chrono::nanoseconds ran{0};
  std::optional<CommandEnd> before;
  std::optional<CommandEnd> after;
  std::vector<AttemptResult> attempts;  ///< in order; of very many only the first and the last
  std::uint64_t attempts_left_out = 0;  ///< that stood between those
  int node_count = 1;
  bool is_whole_job = true;              ///< one machine, or the coordinator's: what it says is the job's
  std::optional<JobCause> cause;         ///< several machines only
  std::vector<NodeAttempt> other_nodes;  ///< for the report of the whole job
  /// Bytes that could not be written to log files (disk full …) and the first error; 0 if none.
  std::uint64_t log_bytes_lost = 0;
  std::string log_error;
  /// The same for the console, if it was full; a console whose reader has left is no loss.
  std::uint64_t console_bytes_lost = 0;
  std::string console_error;

  /// All that was to be kept or shown, is.
  [[nodiscard]] bool output_complete() const { return log_bytes_lost == 0 && console_bytes_lost == 0; }
};

/// The exit code for the end of a job: base/exit_status.hpp has the table.
[[nodiscard]] int exit_code(const JobResult& result);

/// The exit code for a failure before any worker was started.
[[nodiscard]] int exit_code(Errc code);

}  // namespace ddrun::agent
