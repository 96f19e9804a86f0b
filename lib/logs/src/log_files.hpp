#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/logs/line_assembler.hpp"
#include "ddrun/logs/output.hpp"
#include "ddrun/logs/rank_console.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::logs {

class LogLayout;

[[nodiscard]] inline bool disk_is_full(int err) { return err == ENOSPC || err == EDQUOT || err == EFBIG; }

/// A file that is appended to, and renamed when it becomes too big: to `name.1` the first time, then to `name.2` and so
/// on. Existing files are never overwritten. Writing may block on the disk and never fails for the caller: bytes that
/// cannot be written are counted as lost. Writing is retried a second later and resumes with a whole line.
class LogFile {
 public:
  /// `rotate_bytes` 0: never rotated. Opens nothing yet. `layout` is borrowed and restores removed directories.
  LogFile(std::string path, std::uint64_t rotate_bytes, const LogLayout* layout = nullptr);

  /// Opens the file now, making its directory if need be. On failure errno is set and writing will try again.
  bool open();
  void write(std::string_view bytes);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t lost_bytes() const { return lost_; }
  /// "cannot write <path>: <reason>"; empty while nothing has failed.
  [[nodiscard]] const std::string& first_error() const { return first_error_; }
  /// "cannot set <path> aside: <reason>"; rotation has stopped then. Empty while that has not failed.
  [[nodiscard]] const std::string& rotation_error() const { return rotation_error_; }

 private:
  [[nodiscard]] std::size_t fitting_size(std::string_view bytes) const;
  void rotate();
  void append(std::string_view bytes);
  void failed(int err);
  void count_lost(std::string_view bytes);

  std::string path_;
  std::uint64_t rotate_bytes_;
  const LogLayout* layout_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;
  int rotated_ = 0;  ///< number of the newest old file
  bool at_line_start_ = true;
  bool failing_ = false;
  bool lost_whole_lines_ = true;  ///< the last lost byte ended a line
  Clock::time_point retry_at_{};
  std::uint64_t lost_ = 0;
  std::string first_error_;
  std::string rotation_error_;
};

enum class StreamId { out, err };

/// The destinations of one stream of one worker.
struct StreamPlan {
  enum class Kind {
    inherit,      ///< the worker inherits ddrun's descriptor; a terminal stays a terminal
    discard,      ///< /dev/null
    direct_file,  ///< the worker writes its log file itself
    piped,        ///< through ddrun, to the destinations below; a stderr without one is read for its last lines
  };
  Kind kind = Kind::inherit;
  bool file = false;           ///< has a log file
  bool console = false;        ///< goes to the console, by ddrun or inherited
  bool duplicate = false;      ///< lines that match a filter are copied to the attempt's filtered log
  bool pty = false;            ///< piped through a pseudo-terminal
  bool closes_unread = false;  ///< the pipe is closed when the console's reader has
};

/// Which destinations are possible.
struct StreamTargets {
  bool files = true;         ///< log files are allowed (not --log-dir=/dev/null) and have their directory
  bool unavailable = false;  ///< their directory could not be made: redirected streams go to the console
  bool terminal = false;     ///< the console of this stream is a terminal
};

/// With PtyUse::automatic a group of more workers on a machine has no pseudo-terminals. Two of them take about 0.25 ms
/// to make, the system has 4,096 (kernel.pty.max), and progress bars of hundreds of workers are of no use.
constexpr int max_workers_with_ptys = 64;

[[nodiscard]] StreamPlan plan_stream(const OutputOptions& options, StreamId stream, int slot, StreamTargets targets);

/// Paths of log files, in torchrun's layout, and creation of their directories.
///
///     <root>/<run id>_<8 random>/attempt_<N>/[<role>/]<local rank>/{stdout.log,stderr.log,error.json}
///                                           /filtered_{stdout,stderr}.log
///     <root>/latest -> <run id>_<8 random>    (link_latest())
///
/// Without --log-dir and without log files there is only a private directory for error files:
/// <root>/error_<N>_<slot>.json. Calls block on the file system.
class LogLayout {
 public:
  /// `options` is borrowed.
  explicit LogLayout(const OutputOptions& options);

  /// Whether log files can be written: false for --log-dir=/dev/null.
  [[nodiscard]] bool files_allowed() const { return files_allowed_; }
  [[nodiscard]] bool wants_files() const { return wanted_; }
  /// Whether files were wanted, but the directories of this attempt could not be made.
  [[nodiscard]] bool files_unavailable() const { return wanted_ && unavailable_; }
  /// Whether there is an attempt directory.
  [[nodiscard]] bool has_attempts() const { return wanted_ && !unavailable_; }

  using Announce = std::function<Result<void>(const std::string& path)>;
  /// Makes the root and this run's directory. Fails with `invalid_argument` or `unavailable`. `announce` is called
  /// before a root for error files alone is made, which is removed if it stays empty; its error is returned.
  [[nodiscard]] Result<void> prepare(const Announce& announce = {});
  /// Makes attempt_<N> and the workers' directories; `attempt_<N>.2` and so on if there is one already. Removed
  /// directories above are made again. After a failure the job can go on: without files in this attempt, or on a full
  /// disk with files that are retried.
  [[nodiscard]] Result<void> begin_attempt(int attempt);

  /// Makes <root>/latest a relative link to this run's directory, only with --log-dir. Replaced by rename(2), so that
  /// it is there at all times. Fails with `invalid_argument` if what has the name stays (no link, or that of another
  /// user's run), else with `unavailable`.
  [[nodiscard]] Result<void> link_latest() const;

  /// Makes root and run directory again if they were removed, with the same permissions. Fails if they exist and belong
  /// to another user.
  [[nodiscard]] Result<void> restore() const;

  [[nodiscard]] const std::string& root() const { return root_; }
  /// Empty without log files.
  [[nodiscard]] const std::string& run_dir() const { return run_dir_; }
  [[nodiscard]] const std::string& attempt_dir() const { return attempt_dir_; }
  [[nodiscard]] std::string stream_log(StreamId stream, int slot) const;
  [[nodiscard]] std::string filtered_log(StreamId stream) const;
  [[nodiscard]] std::string error_file(int slot) const;

  /// Removes error files, or anything else of their names, from the private directory.
  void remove_error_files() const;
  /// Removes the private directory if it is empty; false if it is not. True if there is none.
  bool remove_if_unused();

 private:
  [[nodiscard]] Result<void> make_root(const Announce& announce);
  [[nodiscard]] Result<void> make_attempt();

  /// The worker's directory in that of an attempt: "0"; of several programs "trainer/0".
  [[nodiscard]] std::string folder_of(std::size_t slot) const;

  const OutputOptions& options_;
  std::string requested_root_;  ///< --log-dir
  std::string run_id_;
  bool files_allowed_ = true;
  bool wanted_ = false;
  bool has_begun_ = false;
  bool unavailable_ = false;  ///< the present attempt has no directory
  std::string root_;
  std::string run_dir_;
  std::string attempt_dir_;
  int attempt_ = 0;
};

/// The consoles of stdout and stderr; a single one if both are the same file.
using Consoles = std::vector<std::unique_ptr<RankConsole>>;

[[nodiscard]] inline RankConsole& console_of(const Consoles& consoles, StreamId id) {
  return id == StreamId::out ? *consoles.front() : *consoles.back();
}

[[nodiscard]] inline std::uint64_t lines_shown(const Consoles& consoles) {
  std::uint64_t total = 0;
  for (const auto& console : consoles) total += console->lines_shown();
  return total;
}

[[nodiscard]] inline bool is_out_of_descriptors(int err) { return err == EMFILE || err == ENFILE; }

/// Copies lines that contain one of the filters to a file that all workers of the attempt share.
struct Duplicate {
  const std::vector<std::string>* filters;
  LogFile* file;
  std::string prefix;
  LineAssembler lines{};
};

/// Where the streams of an attempt's workers go, and what is written to and read from its log files. Writing may block
/// on the disk and never fails for the caller: lost bytes are counted, and the first error is a warning.
class AttemptFiles {
 public:
  /// Both are borrowed.
  AttemptFiles(const OutputOptions& options, const Consoles& consoles)
      : options_(options), consoles_(consoles), layout_(options) {}

  [[nodiscard]] LogLayout& layout() { return layout_; }

  /// As Output::begin_attempt(); opens the filtered logs.
  [[nodiscard]] Result<void> begin_attempt(int attempt);
  /// Closes the filtered logs and drops the tails. No Duplicate may be left.
  void end_attempt();

  [[nodiscard]] StreamPlan plan_of(StreamId id, int slot) const;
  /// Empty: the stream has none.
  [[nodiscard]] std::string log_of(StreamId id, int slot) const;
  /// Whether stdout and stderr of this worker share one pipe, so that lines keep their order. Not where a file or a
  /// filter needs them separately.
  [[nodiscard]] bool shares_stream(int slot) const;
  [[nodiscard]] int descriptors_of(int slot) const;
  /// If `error` is for want of descriptors: how many are needed. `what` could not be opened.
  [[nodiscard]] Error explain_descriptors(const std::string& what, Error error) const;

  /// Without its log files a job is refused at its start, but not later, and not for a full disk.
  [[nodiscard]] bool may_continue_without_file(int err) const { return disk_is_full(err) || attempts_begun_ > 1; }
  /// A log file that ddrun writes. Fails with `unavailable` if the job may not continue without it.
  [[nodiscard]] Result<std::unique_ptr<LogFile>> open_log(StreamId id, int slot);
  /// Empty if there is no filtered log.
  [[nodiscard]] std::unique_ptr<Duplicate> open_duplicate(StreamId id, const std::string& prefix);
  void write(LogFile& file, std::string_view chunk);
  /// `last`: an unfinished line is copied too.
  void copy_matching(Duplicate& duplicate, std::string_view chunk, bool last);

  /// Reads the ends of the stderr files that workers write themselves.
  void read_tails();
  [[nodiscard]] std::vector<TailLine> tail(int slot, std::size_t lines) const;
  /// The file's time.
  [[nodiscard]] LastWrite last_write(StreamId id, int slot) const;

  [[nodiscard]] std::uint64_t lost_bytes() const { return lost_bytes_; }
  [[nodiscard]] const std::string& first_error() const { return first_error_; }

 private:
  /// The end of a file that the worker writes itself.
  struct FileTail {
    TailBuffer tail;
    off_t read_to = 0;
    std::chrono::system_clock::time_point read_at{};  ///< the last time
  };

  [[nodiscard]] const std::vector<std::string>& filters_of(StreamId id) const;
  static void read_tail(FileTail& file, const std::string& path);
  void warn_first_loss(const std::string& error);

  const OutputOptions& options_;
  const Consoles& consoles_;
  LogLayout layout_;
  int attempts_begun_ = 0;
  std::map<StreamId, LogFile> filtered_logs_;
  std::map<int, FileTail> tails_;  ///< by slot
  std::string matching_lines_;     ///< scratch
  std::uint64_t lost_bytes_ = 0;
  std::string first_error_;
  bool warned_rotation_error_ = false;
};

}  // namespace ddrun::logs
