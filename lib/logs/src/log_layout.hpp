#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::logs {

enum class StreamId { out, err };

/// What happens with one stream of one worker.
struct StreamPlan {
  enum class Kind {
    inherit,      ///< the worker has ddrun's own descriptor; a terminal stays a terminal
    discard,      ///< /dev/null
    direct_file,  ///< the worker writes its log file itself
    piped,        ///< through ddrun, to the places below; a stderr that has none of them keeps its end in memory
  };
  Kind kind = Kind::inherit;
  bool file = false;       ///< has a log file
  bool console = false;    ///< is shown, by ddrun or by inheriting
  bool duplicate = false;  ///< lines that match a filter are copied to the attempt's filtered log
  bool teed = false;
  bool pty = false;  ///< piped through a pseudo-terminal
};

/// Where a stream could go.
struct StreamPlaces {
  bool files = true;      ///< log files are wanted at all (--log-dir=/dev/null: no)
  bool terminal = false;  ///< the console of this stream is a terminal
};

/// With PtyUse::automatic so many workers of a machine have pseudo-terminals, and in larger groups none. Two of them
/// take about 0.25 ms to make, the system has 4,096 (kernel.pty.max), and nobody watches the progress bars of hundreds.
constexpr int most_workers_with_ptys = 64;

[[nodiscard]] StreamPlan plan_stream(const LogSpec& log, StreamId stream, int local_rank, int local_world_size,
                                     StreamPlaces places);

/// Where files are, in torchrun's layout, and the making of the directories.
///
///     <root>/<run id>_<8 random>/attempt_<N>/<local rank>/{stdout.log,stderr.log,error.json}
///                                           /filtered_{stdout,stderr}.log
///
/// Without --log-dir and with nothing to log there is only a private directory, in which an error file can be put:
/// <root>/error_<N>_<local rank>.json.
class LogLayout {
 public:
  LogLayout(const LogSpec& log, std::string_view run_id);

  /// Whether log files can be written: false for --log-dir=/dev/null.
  [[nodiscard]] bool files_allowed() const { return allowed_; }
  /// Whether there are attempt directories.
  [[nodiscard]] bool has_attempts() const { return wanted_; }

  using Announce = std::function<void(const std::string& path)>;
  /// Makes the root and this run's directory. Fails with `invalid_argument` or `unavailable`. A root that is for error
  /// files alone, and so is to be removed if it stays empty, is announced before it is made.
  [[nodiscard]] Result<void> prepare(const Announce& announce = {});
  /// Makes attempt_<N> and the workers' directories; `attempt_<N>.2` and so on if there is one already.
  /// A full disk is a failure here too: the caller decides whether the job can go on.
  [[nodiscard]] Result<void> begin_attempt(int attempt, const std::vector<int>& local_ranks);

  [[nodiscard]] const std::string& root() const { return root_; }
  [[nodiscard]] const std::string& attempt_dir() const { return attempt_dir_; }
  [[nodiscard]] std::string stream_log(StreamId stream, int local_rank) const;
  [[nodiscard]] std::string filtered_log(StreamId stream) const;
  [[nodiscard]] std::string error_file(int local_rank) const;

  /// Removes the private directory if it is empty.
  void remove_if_unused();

 private:
  [[nodiscard]] Result<void> make_root(const Announce& announce);

  std::string given_root_;  ///< --log-dir
  std::string run_id_;
  bool allowed_ = true;
  bool wanted_ = false;
  std::string root_;
  std::string run_dir_;
  std::string attempt_dir_;
  int attempt_ = 0;
};

}  // namespace ddrun::logs
