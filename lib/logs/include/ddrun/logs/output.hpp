#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/logs/tail_buffer.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::logs {

struct WorkerIdentity {
  int rank = 0;
  int local_rank = 0;
  std::string prefix{};  ///< of its lines on the console; empty: made from rank and options
};

struct OutputOptions {
  LogSpec log;
  std::string role = "default";
  std::string run_id = "none";
  std::string hostname;                            ///< label
  int local_world_size = 1;                        ///< more than one: lines are labelled
  int console_out = 1;                             ///< borrowed; workers' stdout goes here
  int console_err = 2;                             ///< borrowed; workers' stderr and ddrun's own messages go here
  std::size_t queue_high = std::size_t{1} << 20U;  ///< bytes a console may wait for before workers are held back
  Milliseconds idle_flush_delay{200};              ///< on a terminal an unfinished line is shown after this silence
  /// Called with the path of a private directory just before it is made, so that a process which outlives this one can
  /// remove it. If it fails, prepare() fails with its error.
  std::function<Result<void>(const std::string& path)> announce_private_directory;
};

/// What the child gets as stdout and stderr; close both after the spawn (or let this go).
/// A descriptor that is not there means: the child inherits ddrun's own.
struct ChildStreams {
  UniqueFd out;
  UniqueFd err;
  int terminal = -1;  ///< 1 or 2: which of them is a pseudo-terminal that the child shall be controlled by; -1: none
};

/// When a worker wrote to a stream last, as far as it is known.
struct LastWrite {
  std::chrono::system_clock::time_point at{};  ///< when it was read, or the file's time; its clock: nothing is known
  std::uint64_t turn = 0;                      ///< as in TailLine; 0: of a file
};

/// What could not be written. The job goes on without it.
struct LossReport {
  std::uint64_t file_bytes = 0;     ///< missing in log files
  std::uint64_t console_bytes = 0;  ///< not shown: the disk was full, or the reader was too slow
  std::string console_error;        ///< why; empty if all is well
  std::uint64_t unread_bytes = 0;   ///< not shown, because the reader has left: that is no loss
  std::string first_error;  ///< "cannot write /logs/…/stdout.log: No space left on device"; empty: nothing failed
};

/// Takes what the workers of this machine write to its places: console, log files, both, or neither.
///
/// Lives on one thread, the one that runs the executor, and never blocks it on a console: what a console does not
/// take waits in a bounded queue, and while that is full the workers' pipes are not read. Log files are written
/// directly, as any program writes its files. Nothing runs and no timer is set while no worker writes.
/// The process must ignore SIGPIPE and SIGXFSZ.
class Output {
 public:
  Output(boost::asio::any_io_executor executor, OutputOptions options);
  /// Closes it. What is in pipes and queues goes to its places as far as that goes without waiting.
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  /// Before anything starts: checks template and filters, makes the log directory and tries that it can be written.
  /// Fails with `invalid_argument` (template, filter, a file in the directory's place) or `unavailable`.
  [[nodiscard]] Result<void> prepare();

  /// Of attempts that begin from now on: the other machines of the job decide how long a label must be.
  void set_hostname(std::string hostname);

  /// Makes the directories of this attempt, after the first also those above that are gone. If that fails after the
  /// first attempt, it is said, and streams go to the console instead (on a full disk: to files, with a hole). An
  /// earlier attempt is never deleted, also if it has the same number
  /// (`attempt_0.2` then). Streams of the attempt before are closed.
  [[nodiscard]] Result<void> begin_attempt(int attempt, const std::vector<WorkerIdentity>& workers);

  /// What this worker writes to, watched from now on: pipes, or pseudo-terminals, one for both streams where they are
  /// shown in the same place and nowhere else, so that lines keep their order. Pseudo-terminals stay open until drain()
  /// says that the worker has ended, also if it closes them, because their end would be a SIGHUP for it. Where the
  /// system has no pseudo-terminal and they were not asked for, pipes, and that is said once. Fails with `unavailable`
  /// when descriptors run out, and says how many are needed.
  [[nodiscard]] Result<ChildStreams> open_streams(int local_rank);

  /// For a program beside the workers, while there are none: pipes whose lines go to the consoles behind `prefix`.
  /// async_end_attempt() closes them.
  [[nodiscard]] Result<ChildStreams> open_extra_streams(std::string prefix);

  /// Descriptors that stay open in ddrun for this worker, 0 to 4: pipes or pseudo-terminals, one where stdout and
  /// stderr are shown in the same place and nowhere else, and log files that ddrun writes itself.
  [[nodiscard]] int descriptors_per_worker(int local_rank) const;

  /// Reads what is in this worker's pipes now, without waiting. For a worker that has ended: its bytes are in its log
  /// afterwards, and its lines are in the console's queue before whatever ddrun says next.
  void drain(int local_rank);
  /// The same for all of them. What they write from now on in this attempt is not told by last_stdout().
  void drain_all();

  /// The consoles' terminals may have another size now: tells it to the workers' pseudo-terminals, but not to workers.
  void screen_resized();

  /// When all processes of the attempt are gone: calls `done` (never from within) once all that is in the pipes now is
  /// read and everything is written to files and consoles. Unfinished lines are given out and pipes closed. Another
  /// process that still holds a pipe open is not waited for; that it does so is said.
  /// `still_running`: ranks of workers that could not be ended, of which that is not said.
  void async_end_attempt(std::function<void()> done, std::set<int> still_running = {});

  /// At the end of the job: calls `done` once the consoles have taken everything.
  void async_flush(std::function<void()> done);

  /// The consoles have taken everything so far.
  [[nodiscard]] bool is_flushed() const;

  /// From now on consoles are waited for only as long as one takes something within `timeout`. Without this they are
  /// waited for without end.
  void set_flush_timeout(Milliseconds timeout);
  /// They are not waited for any more: what waits is done, and what has not been taken is lost and counted.
  void abort_flush();

  /// The job is over: nothing more is shown, and `losses` is complete. True if what the stderr console got last is half
  /// a line.
  bool close();

  /// Reads the ends of the stderr files that workers write themselves, for `stderr_tail`.
  void read_file_tails();
  /// The last `lines` lines of this worker's stderr in the present attempt, oldest first, from its last 24 KiB, as
  /// known when they were last read. Where stdout and stderr are one stream, lines of stdout are among them. `shown` is
  /// what `lines_shown` was then; lines of a pipe with a greater `turn` than another's came later. Lines of a file that
  /// the worker writes itself have the time of the last write that `read_file_tails` saw. Empty when stderr is
  /// inherited.
  [[nodiscard]] std::vector<TailLine> stderr_tail(int local_rank, std::size_t lines) const;
  /// Looks at the file if the worker writes that itself. Not known where stderr_tail() has its lines, too.
  [[nodiscard]] LastWrite last_stdout(int local_rank) const;
  /// Lines that were given to the consoles in this job.
  [[nodiscard]] std::uint64_t lines_shown() const;
  /// Whether the user has seen this worker's stderr on the console.
  [[nodiscard]] bool console_shows_stderr(int local_rank) const;

  /// Paths of the present attempt; empty where there is no such file.
  [[nodiscard]] std::string stdout_log(int local_rank) const;
  [[nodiscard]] std::string stderr_log(int local_rank) const;
  /// For TORCHELASTIC_ERROR_FILE. Its directory exists. Empty with --log-dir=/dev/null.
  [[nodiscard]] std::string error_file(int local_rank) const;
  [[nodiscard]] std::string attempt_dir() const;
  /// --log-dir, or the directory made instead of it.
  [[nodiscard]] std::string root() const;

  /// ddrun's own lines (with their '\n'), queued whole to the stderr console behind what was queued before.
  void console_line(std::string_view text);
  /// Whole lines for the console of workers' stdout.
  void stdout_line(std::string_view text);

  [[nodiscard]] LossReport losses() const;

  /// Removes what workers put in the places of their error files where these lie in a private directory.
  void remove_error_files();
  /// Removes the private directory of error files if nothing is in it; false if something is. Log directories are never
  /// removed.
  bool remove_if_unused();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddrun::logs
