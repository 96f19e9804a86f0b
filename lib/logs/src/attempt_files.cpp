#include "attempt_files.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::logs {

namespace {

/// Descriptors that ddrun needs besides those of its workers' output.
constexpr rlim_t base_descriptors = 64;
/// A longer line is filtered in parts: unfinished lines of filters are not counted in the console's bound of them.
constexpr std::size_t max_filtered_line = std::size_t{64} << 10U;

std::chrono::system_clock::time_point written_at(const struct stat& info) {
  const auto written = std::chrono::seconds(info.st_mtim.tv_sec) + std::chrono::nanoseconds(info.st_mtim.tv_nsec);
  return std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(written));
}

}  // namespace

Result<void> AttemptFiles::begin_attempt(int attempt) {
  const bool first = attempts_begun_++ == 0;
  if (auto made = layout_.begin_attempt(attempt); !made) {
    // A running job does not fail because of its logs. On a full disk they will have a gap.
    if (first) return made;
    if (disk_is_full(made.error().cause.value())) {
      warn_first_loss(made.error().message);
    } else {
      say(Level::warning,
          concat(made.error().message, "; attempt ", attempt,
                 layout_.files_unavailable() ? " has no log files, and all output is shown" : " has no error files"));
    }
  }
  for (const StreamId id : {StreamId::out, StreamId::err}) {
    if (filters_of(id).empty() || !layout_.has_attempts()) continue;
    LogFile& log =
        filtered_logs_.try_emplace(id, layout_.filtered_log(id), options_.log.rotate_bytes, &layout_).first->second;
    if (!log.open() && !may_continue_without_file(errno)) return fail(Errc::unavailable, log.first_error());
  }
  for (int slot = 0; slot < options_.workers(); ++slot) {
    if (plan_of(StreamId::err, slot).kind == StreamPlan::Kind::direct_file) tails_.try_emplace(slot);
  }
  return {};
}

void AttemptFiles::end_attempt() {
  filtered_logs_.clear();
  tails_.clear();
}

const std::vector<std::string>& AttemptFiles::filters_of(StreamId id) const {
  return id == StreamId::out ? options_.log.duplicate_stdout_filters : options_.log.duplicate_stderr_filters;
}

// ---- plans

StreamPlan AttemptFiles::plan_of(StreamId id, int slot) const {
  const StreamTargets targets{.files = layout_.files_allowed() && !layout_.files_unavailable(),
                              .unavailable = layout_.files_unavailable(),
                              .terminal = console_of(consoles_, id).console().is_terminal()};
  return plan_stream(options_, id, slot, targets);
}

std::string AttemptFiles::log_of(StreamId id, int slot) const {
  return plan_of(id, slot).file ? layout_.stream_log(id, slot) : "";
}

bool AttemptFiles::shares_stream(int slot) const {
  const auto shown_alone = [&](StreamId id) {
    const StreamPlan plan = plan_of(id, slot);
    return plan.kind == StreamPlan::Kind::piped && plan.console && !plan.file && !plan.duplicate;
  };
  return consoles_.size() == 1 && shown_alone(StreamId::out) && shown_alone(StreamId::err);
}

int AttemptFiles::descriptors_of(int slot) const {
  if (shares_stream(slot)) return 1;
  int count = 0;
  for (const StreamId id : {StreamId::out, StreamId::err}) {
    const StreamPlan plan = plan_of(id, slot);
    if (plan.kind == StreamPlan::Kind::piped) count += plan.file ? 2 : 1;
  }
  return count;
}

Error AttemptFiles::explain_descriptors(const std::string& what, Error error) const {
  if (!is_out_of_descriptors(error.cause.value())) return error;
  struct rlimit limit {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  rlim_t needed = base_descriptors;
  for (int i = 0; i < options_.workers(); ++i) needed += static_cast<rlim_t>(descriptors_of(i));
  const auto raise_to = [](rlim_t files) { return concat("raise the limit with `ulimit -n ", files, "`"); };
  error.message = concat(
      "cannot open ", what, ": ",
      error.cause.value() == ENFILE
          ? concat("the system's limit of open files is reached; this job needs about ", needed)
      : needed < limit.rlim_cur
          ? concat("all ", limit.rlim_cur, " open files that are allowed are in use; ", raise_to(2 * limit.rlim_cur))
          : concat("output of ", options_.workers(), " workers needs about ", needed, " open files, and only ",
                   limit.rlim_cur, " are allowed; ", raise_to(needed)));
  return error;
}

// ---- files that ddrun writes

Result<std::unique_ptr<LogFile>> AttemptFiles::open_log(StreamId id, int slot) {
  auto file = std::make_unique<LogFile>(layout_.stream_log(id, slot), options_.log.rotate_bytes, &layout_);
  if (file->open()) return file;
  const std::error_code cause(errno, std::generic_category());
  if (is_out_of_descriptors(cause.value()) || !may_continue_without_file(cause.value())) {
    return tl::unexpected(explain_descriptors(file->path(), {Errc::unavailable, file->first_error(), cause}));
  }
  warn_first_loss(file->first_error());
  return file;
}

std::unique_ptr<Duplicate> AttemptFiles::open_duplicate(StreamId id, const std::string& prefix) {
  const auto log = filtered_logs_.find(id);
  if (log == filtered_logs_.end()) return nullptr;
  return std::make_unique<Duplicate>(Duplicate{&filters_of(id), &log->second, prefix});
}

void AttemptFiles::write(LogFile& file, std::string_view chunk) {
  const std::uint64_t lost_before = file.lost_bytes();
  file.write(chunk);
  lost_bytes_ += file.lost_bytes() - lost_before;
  if (first_error_.empty() && !file.first_error().empty()) warn_first_loss(file.first_error());
  if (!file.rotation_error().empty() && !std::exchange(warned_rotation_error_, true)) {
    say(Level::warning, concat(file.rotation_error(), "; it grows on instead (said once)"));
  }
}

void AttemptFiles::warn_first_loss(const std::string& error) {
  if (!first_error_.empty()) return;
  first_error_ = error;
  say(Level::warning, concat(error, "; the job goes on without what cannot be written (said once)"));
}

void AttemptFiles::copy_matching(Duplicate& duplicate, std::string_view chunk, bool last) {
  matching_lines_.clear();
  const auto copy = [&](const Piece& piece) {
    const auto matches = [&](const std::string& filter) { return piece.text.find(filter) != std::string_view::npos; };
    if (std::ranges::none_of(*duplicate.filters, matches)) return;
    matching_lines_ += duplicate.prefix;
    matching_lines_ += piece.text;
    if (piece.end == PieceEnd::cut) matching_lines_ += '\n';
  };
  duplicate.lines.feed(chunk, copy);
  if (last || duplicate.lines.partial_bytes() >= max_filtered_line) duplicate.lines.finish(copy);
  if (!matching_lines_.empty()) write(*duplicate.file, matching_lines_);
}

// ---- files that workers write

void AttemptFiles::read_tail(FileTail& file, const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == file.read_to) return;
  constexpr auto max_bytes = static_cast<off_t>(TailBuffer::limit);
  const off_t from = std::max(info.st_size < file.read_to ? 0 : file.read_to, info.st_size - max_bytes);
  if (from != file.read_to) file.tail.skip();
  std::string text(static_cast<std::size_t>(info.st_size - from), '\0');
  const ssize_t count = ::pread(fd.get(), text.data(), text.size(), from);
  if (count <= 0) return;
  // A file's time may be some milliseconds early; new bytes were written after the last read.
  file.tail.add({text.data(), static_cast<std::size_t>(count)}, std::max(written_at(info), file.read_at));
  file.read_to = from + count;
}

void AttemptFiles::read_tails() {
  for (auto& [slot, file] : tails_) {
    const auto now = std::chrono::system_clock::now();
    read_tail(file, layout_.stream_log(StreamId::err, slot));
    file.read_at = now;
  }
}

std::vector<TailLine> AttemptFiles::tail(int slot, std::size_t lines) const {
  const auto file = tails_.find(slot);
  return file != tails_.end() ? file->second.tail.lines(lines) : std::vector<TailLine>();
}

LastWrite AttemptFiles::last_write(StreamId id, int slot) const {
  struct stat info {};
  const std::string path = log_of(id, slot);
  return !path.empty() && ::stat(path.c_str(), &info) == 0 ? LastWrite{written_at(info)} : LastWrite{};
}

}  // namespace ddrun::logs
