#pragma once

#include <termios.h>

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/logs/tail_buffer.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::logs {

class AttemptFiles;
class FlushWait;
class RankConsole;
class WorkerStreams;

struct WorkerIdentity {
  int rank = 0;
  int slot = 0;
  std::string prefix{};  ///< of its lines on the console; empty: derived from rank and options
};

struct OutputOptions {
  LogSpec log;
  std::vector<ProgramSpec> programs{1};  ///< role and streams count
  std::vector<WorkerPlace> places{1};    ///< by slot; several: lines are labelled
  std::string run_id = "none";
  std::string hostname;                            ///< label
  int console_out = 1;                             ///< borrowed; workers' stdout goes here
  int console_err = 2;                             ///< borrowed; workers' stderr and ddrun's own messages go here
  std::size_t queue_high = std::size_t{1} << 20U;  ///< queued bytes of a console before pipes are no longer read
  Milliseconds idle_flush_delay{200};              ///< on a terminal an unfinished line is shown after this silence
  std::optional<int> input_rank{};                 ///< reads from the terminal that the console is
  termios input_settings{};                        ///< of that terminal
  /// Once stdout's reader has closed, workers whose stdout goes nowhere else see a closed pipe. Without it they run on.
  bool closes_unread = false;
  /// Called with the path of a private directory just before it is made, so that a process which outlives this one can
  /// remove it. If it fails, prepare() fails with its error.
  std::function<Result<void>(const std::string& path)> announce_private_directory;
  /// Called when a stream is read for the first time since trim(), which frees what that needs.
  std::function<void()> on_first_output{};

  /// Lines have a label, or something else before them.
  [[nodiscard]] bool decorates() const {
    return workers() > 1 || log.timestamps || !log.line_prefix_template.empty() ||
           (log.label != Label::automatic && log.label != Label::none);
  }
  [[nodiscard]] int workers() const { return static_cast<int>(places.size()); }
  /// Labels and folders have roles.
  [[nodiscard]] bool has_several_programs() const { return programs.size() > 1; }
  [[nodiscard]] const ProgramSpec& program_of(const WorkerPlace& place) const {
    return programs[static_cast<std::size_t>(place.program)];
  }
};

/// A child's stdout and stderr, to be closed after the spawn. An empty descriptor: the child inherits ddrun's.
struct ChildStreams {
  UniqueFd out;
  UniqueFd err;
  int terminal = -1;     ///< 0, 1 or 2: which of them becomes the child's controlling terminal; -1: none
  UniqueFd in{};         ///< a pseudo-terminal for OutputOptions::input_rank, if it is one of several workers
  UniqueFd in_master{};  ///< the caller writes its input there; non-blocking
};

/// Output that could not be written. The job goes on without it.
struct LossReport {
  std::uint64_t file_bytes = 0;     ///< missing in log files
  std::uint64_t console_bytes = 0;  ///< not shown: the disk was full, or the reader was too slow
  std::string console_error;        ///< why; empty if all is well
  std::uint64_t unread_bytes = 0;   ///< not shown, because the reader has closed: that is no loss
  bool closed_unread = false;       ///< workers have a closed stdout, by OutputOptions::closes_unread or inherited
  std::string first_error;  ///< "cannot write /logs/…/stdout.log: No space left on device"; empty: nothing failed
};

/// Reads the output of this machine's workers and writes it to console, log files, both, or neither.
///
/// Used on the executor's thread only, and never blocks it on a console: each has a bounded queue, and while that is
/// full the workers' pipes are not read (back pressure). Log files are written directly and may block on the disk.
/// While no worker writes there is no wake-up. The process must ignore SIGPIPE and SIGXFSZ.
class Output {
 public:
  Output(boost::asio::any_io_executor executor, OutputOptions options);
  /// Closes it. Bytes in pipes and queues are written as far as possible without blocking.
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  /// Before the first attempt: checks template and filters, makes the log directory and checks that it is writable.
  /// Fails with `invalid_argument` (template, filter, no directory, a path that is too long) or `unavailable`.
  [[nodiscard]] Result<void> prepare();

  /// Label of attempts that begin from now on. (Its length depends on the names of the other machines.)
  void set_hostname(std::string hostname) { options_.hostname = std::move(hostname); }

  /// `ranks`: by slot. Closes the streams of the attempt before and makes the directories of this one, after the first
  /// attempt also removed ones above it. If that fails after the first attempt, a warning is printed and streams go to
  /// the console (on a full disk: to files, with a gap). Logs of an earlier attempt with the same number stay: the new
  /// directory is then `attempt_0.2`. Fails with `unavailable` or `invalid_argument` in the first attempt.
  [[nodiscard]] Result<void> begin_attempt(int attempt, const std::vector<int>& ranks);

  /// Pipes or pseudo-terminals of this worker, read from now on; one for both streams where both go to the same console
  /// and nowhere else, so that lines keep their order. Pseudo-terminals stay open until drain(), even if the worker
  /// closes them, because it would get SIGHUP. Where the system has none and `--pty` does not demand them: pipes, and
  /// one notice. The input rank reads from the pseudo-terminal of its stdout, else from one more, whose echo goes to
  /// the console only. Fails with `unavailable` when descriptors run out, naming how many are needed.
  [[nodiscard]] Result<ChildStreams> open_streams(int slot);

  /// For another program, while there are no workers; its lines go to the consoles with `prefix`. Pipes, or with
  /// `as_worker` pseudo-terminals where a worker writes to a terminal. async_end_attempt() closes them.
  [[nodiscard]] Result<ChildStreams> open_extra_streams(std::string prefix, bool as_worker = false);

  /// Descriptors that stay open in ddrun for this worker, 0 to 4: those of open_streams() for output, and log files
  /// that ddrun writes.
  [[nodiscard]] int descriptors_per_worker(int slot) const;

  /// To be called when this worker has exited: reads its pipes without blocking. Afterwards its bytes are in its log
  /// and its lines in the console's queue, before later messages of ddrun.
  void drain(int slot);
  /// To be called before the workers are stopped: reads the pipes of all. Later output is not reported by
  /// last_stdout().
  void drain_all();

  /// Sets the size of the workers' pseudo-terminals after the consoles' terminals were resized. Sends no SIGWINCH, but
  /// the kernel sends one to the input rank.
  void screen_resized();

  /// While it is, no rows are drawn on the consoles: another program has the terminal.
  void set_suspended(bool suspended);

  /// To be called when all processes of the attempt are dead: reads what is in the pipes now, emits unfinished lines,
  /// closes the pipes and calls `done` (never from within) once all is written to files and consoles. A process outside
  /// of the job that still holds a pipe open is not waited for, but named in a notice, except for slots in
  /// `still_running`, whose workers could not be killed.
  void async_end_attempt(std::function<void()> done, std::set<int> still_running = {});

  /// At the end of the job: calls `done` once the consoles' queues are empty.
  void async_flush(std::function<void()> done);

  /// The consoles' queues are empty.
  [[nodiscard]] bool is_flushed() const;

  /// Bounds async_end_attempt() and async_flush(): they end when no console has taken a byte for `timeout`. Default: no
  /// bound.
  void set_flush_timeout(Milliseconds timeout);
  /// Ends async_end_attempt() and async_flush() now; unwritten bytes are counted as lost.
  void abort_flush();

  /// The job is over: nothing more is shown, and losses() is complete. True if the last output of the stderr console
  /// was not a whole line.
  bool close();

  /// Frees memory that only a burst of output needs.
  void trim();

  /// Reads the ends of the stderr files that workers write themselves, for stderr_tail().
  void read_file_tails();
  /// The last `lines` lines of this worker's stderr in the present attempt, oldest first, from its last 24 KiB. Where
  /// stdout and stderr are one stream, lines of stdout are among them. TailLine::shown is lines_shown() at that time; a
  /// line of a pipe with a greater `turn` than another came later. Lines of a file that the worker writes itself have
  /// the time of the last write that read_file_tails() saw. Empty when stderr is inherited.
  [[nodiscard]] std::vector<TailLine> stderr_tail(int slot, std::size_t lines) const;
  /// From the file's time if the worker writes the file itself. Unknown where stdout and stderr are one stream.
  [[nodiscard]] LastWrite last_stdout(int slot) const;
  /// Lines queued for the consoles in this job.
  [[nodiscard]] std::uint64_t lines_shown() const;
  /// Whether this worker's stderr goes to the console.
  [[nodiscard]] bool console_shows_stderr(int slot) const;

  /// Paths of the present attempt; empty where there is no such file.
  [[nodiscard]] std::string stdout_log(int slot) const;
  [[nodiscard]] std::string stderr_log(int slot) const;
  /// Value of TORCHELASTIC_ERROR_FILE; its directory exists. Empty with --log-dir=/dev/null.
  [[nodiscard]] std::string error_file(int slot) const;
  [[nodiscard]] std::string attempt_dir() const;
  /// That of all attempts; empty without log files.
  [[nodiscard]] std::string run_dir() const;
  /// Makes <--log-dir>/latest a link to run_dir(); fails with `invalid_argument` if it stays as it is.
  [[nodiscard]] Result<void> link_latest() const;
  /// --log-dir, or the directory made instead of it.
  [[nodiscard]] std::string root() const;

  /// Queues lines of ddrun itself (with their '\n') for the stderr console.
  void console_line(std::string_view text);
  /// The same for the console of workers' stdout.
  void stdout_line(std::string_view text);

  [[nodiscard]] LossReport losses() const;

  /// Removes error files, or anything that workers made under their names, from the private directory.
  void remove_error_files();
  /// Removes the private directory if it is empty; false if it is not. Log directories are never removed.
  bool remove_if_unused();

 private:
  void reset_attempt();
  void on_console_drained();

  OutputOptions options_;
  std::vector<int> ranks_;                              ///< of the attempt, by slot
  std::vector<std::unique_ptr<RankConsole>> consoles_;  ///< of stdout and stderr; one if they are the same file
  std::unique_ptr<AttemptFiles> files_;
  std::unique_ptr<WorkerStreams> streams_;
  std::unique_ptr<FlushWait> flush_;
  bool notified_reader_closed_ = false;
};

}  // namespace ddrun::logs
