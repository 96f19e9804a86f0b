#pragma once

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

}  // namespace ddrun::logs
