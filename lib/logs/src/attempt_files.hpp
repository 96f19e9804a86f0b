#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/logs/line_assembler.hpp"
#include "ddrun/logs/output.hpp"
#include "ddrun/logs/rank_console.hpp"
#include "log_files.hpp"

namespace ddrun::logs {

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
