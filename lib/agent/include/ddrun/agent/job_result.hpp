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
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/messages.hpp"

namespace ddrun::agent {

/// Resources of one worker and the children that it waited for (wait4(2)).
struct ResourceUse {
  long max_rss_kib = 0;
  std::chrono::microseconds user_time{0};
  std::chrono::microseconds system_time{0};
};

/// A worker's error.json (PyTorch's `record`).
struct WorkerError {
  std::string message;
  std::string traceback;                       ///< may be empty
  std::string file;                            ///< path of the error.json it was read from
  std::chrono::system_clock::time_point at{};  ///< when it failed: the time in the file, or the file's own
  bool file_stays = true;                      ///< false: it lies in ddrun's private directory, which is removed
};

/// The last traceback or fatal message on a worker's stderr. Plain text.
struct LastWords {
  std::vector<std::string> reason;           ///< one to three lines, such as "ValueError: boom"
  std::vector<std::string> text;             ///< the traceback with the reason, oldest line first
  std::chrono::system_clock::time_point at;  ///< when ddrun read the reason
  std::uint64_t shown = 0;                   ///< lines shown on the consoles by then
  std::uint64_t turn = 0;                    ///< as in logs::TailLine
  std::size_t lines_after = 0;               ///< lines on stderr after it
  bool continued = false;                    ///< some of those belong to no known failure
  std::chrono::nanoseconds span{0};          ///< time from the first of those to the last
  bool is_main_traceback = false;            ///< a traceback of a main thread
  bool blames_peer = false;                  ///< it reports the failure of another rank
};

/// A failure that a rank has declared before its end, whatever its status is then: MPI_Abort.
struct DeclaredFailure {
  int code = 1;      ///< exit code, 1 to 255
  std::string what;  ///< "called MPI_Abort(3)"
  std::chrono::system_clock::time_point at;
};

/// How one worker of one attempt ended.
struct WorkerEnd {
  int slot = 0;
  std::string role;  ///< empty in a job of one program
  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;
  ExitStatus status;
  bool success = false;           ///< its code is one of --success-on
  bool stopped_by_ddrun = false;  ///< it ended after ddrun had begun to take the group down
  bool still_runs = false;        ///< SIGKILL has not ended it; status, ended and ran are assumed
  std::chrono::system_clock::time_point started;
  std::chrono::system_clock::time_point ended;
  std::chrono::nanoseconds ran{0};
  ResourceUse use;
  std::string why;     ///< the reason for the status if known ("out of memory: …"); else empty
  std::string shm;     ///< use of /dev/shm, if its end or last lines suggest that it was full; else empty
  std::string python;  ///< if a module was not found: the Python, why it was chosen, and what to try; else empty
  std::optional<DeclaredFailure> declared;  ///< then it is no success, and was not stopped by ddrun
  std::optional<WorkerError> error;
  std::optional<LastWords> last_words;   ///< on stderr
  std::vector<std::string> stderr_tail;  ///< its last lines on stderr, oldest first
  bool stderr_was_shown = false;         ///< the console has shown them
  std::uint64_t lines_since = 0;         ///< lines of all ranks on the console after its last words
  std::string stdout_log;                ///< paths; empty if there is no file
  std::string stderr_log;

  [[nodiscard]] RankName rank_name() const { return {role, rank}; }
  [[nodiscard]] std::string name() const { return rank_name().text(); }
};

/// Source of the evidence that a worker failed.
enum class EvidenceKind {
  end,
  error_file,
  last_words,
  stack,  ///< it held up the others when another rank, or the job, had timed out
};

struct Evidence {
  EvidenceKind kind = EvidenceKind::end;
  std::chrono::system_clock::time_point at;
  bool own = true;  ///< false: it reports the failure of another rank
};

struct AttemptResult {
  int attempt = 0;                           ///< TORCHELASTIC_RESTART_COUNT of its workers
  std::uint64_t round = 0;                   ///< several machines only
  int node_rank = 0;                         ///< of this machine
  std::vector<WorkerEnd> workers;            ///< in order of rank
  std::optional<std::size_t> first_failure;  ///< index into workers: the first that failed by itself
  std::optional<std::size_t> cause;          ///< index into workers: the first that failed, by evidence
  Evidence cause_evidence;                   ///< of `cause`
  bool stdout_closed = false;                ///< for the workers, because its reader had closed
  std::string stacks;                        ///< where the ranks were: inspect::groups_json(); empty: not read
  std::chrono::nanoseconds ran{0};
};

using Verdict = rendezvous::VerdictKind;

/// Several machines: why the job ended, from the coordinator's VERDICT.
struct JobCause {
  int exit_code = 0;
  std::string host;  ///< of the worker; empty if there is none
  int node_rank = -1;
  std::string why;                        ///< one sentence
  std::optional<WorkerEnd> worker;        ///< the first that failed by itself, as its node reported it
  std::optional<WorkerEnd> failed_first;  ///< another one that failed before, by evidence
  Evidence failed_first_evidence;
  std::string failed_first_host;
  bool is_local = false;     ///< on this machine
  bool is_detailed = false;  ///< on its own machine and on the coordinator's
  int restarts = 0;
};

/// Several machines: the workers of another node in one round, as JSON (lib/rendezvous/PROTOCOL.md).
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
  int runs = 1;  ///< this is the last of them
};

/// What --preload imported on this machine; the last time, if it was more than once.
struct PreloadResult {
  std::vector<std::string> modules;
  std::chrono::nanoseconds took{0};
  std::int64_t memory_kib = 0;  ///< not backed by files: what workers share until they write to it
  int imports = 0;              ///< this was the last of them
};

/// One of the job's programs.
struct ProgramResult {
  std::string role;
  std::string name;            ///< as given by the user
  int workers = 0;             ///< of this machine
  std::optional<int> world{};  ///< programs with the same number share a world
  bool is_service = false;
};

/// The end of a job, from which report and exit code are made.
struct JobResult {
  Verdict verdict = Verdict::success;
  int signal = 0;                                   ///< for stopped_by_signal
  std::string signal_sender;                        ///< "pid 4711 (slurmstepd)" if known
  std::string message;                              ///< for launcher_failed: what went wrong and what to do
  int launcher_code = exit_codes::launcher_failed;  ///< for launcher_failed: 125, 126 or 127
  int code = 0;                                     ///< ddrun's exit code, once the reports are written
  std::string run_id;
  std::string host;     ///< short host name
  std::string program;  ///< the first, as given by the user
  std::vector<ProgramResult> programs;
  std::string log_dir;  ///< empty if no log was written
  int world_size = 0;
  int max_restarts = 0;
  std::chrono::milliseconds timeout{0};  ///< for timed_out
  std::chrono::system_clock::time_point started;
  std::chrono::nanoseconds ran{0};
  std::vector<std::string> stack_files;  ///< pages of all threads of this machine's ranks, in order
  std::optional<CommandEnd> before;
  std::optional<CommandEnd> after;
  std::optional<PreloadResult> preload;
  std::vector<AttemptResult> attempts;  ///< in order; of more than 32 the first 8 and the last 24
  std::uint64_t attempts_left_out = 0;  ///< between those
  int node_count = 1;
  bool is_whole_job = true;              ///< one machine, or the coordinator's agent
  std::optional<JobCause> cause;         ///< several machines only
  std::vector<NodeAttempt> other_nodes;  ///< for the report of the whole job
  /// Bytes that could not be written to log files, and the first error; 0 if none.
  std::uint64_t log_bytes_lost = 0;
  std::string log_error;
  /// The same for the console; output for a reader that has closed it is not counted.
  std::uint64_t console_bytes_lost = 0;
  std::string console_error;

  /// Of the text on the end itself.
  void add_lost_output(std::uint64_t bytes) {
    console_bytes_lost += bytes;
    if (bytes > 0 && console_error.empty()) console_error = "not read in time";
  }
  [[nodiscard]] bool output_complete() const { return log_bytes_lost == 0 && console_bytes_lost == 0; }
};

/// The workers failed as programs do whose reader has left (`| head`), which is no error: not by another signal.
[[nodiscard]] bool ended_with_reader(const JobResult& result);

/// The exit code of a job; the table is in base/exit_status.hpp.
[[nodiscard]] int exit_code(const JobResult& result);

/// The exit code for a failure before any worker was started.
[[nodiscard]] int exit_code(Errc code);

}  // namespace ddrun::agent
