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
};

/// `files`: whether log files are wanted at all (--log-dir=/dev/null: no).
[[nodiscard]] StreamPlan plan_stream(const LogSpec& log, StreamId stream, int local_rank, int local_world_size,
                                     bool files);

}  // namespace ddrun::logs
