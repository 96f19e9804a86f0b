#include "log_files.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::logs {

namespace {

/// A file may exceed its limit by this much, so that a line is not cut.
constexpr std::size_t max_line_overrun = 4096;
constexpr std::chrono::seconds retry_delay{1};

/// 0 or an errno: EEXIST if there is a file `to` already, which stays as it is.
int rename_to_new(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS && errno != EPERM) return errno;
  // Some file systems, such as NFS, lack RENAME_NOREPLACE, and sandboxes do not know the call. link() does not replace
  // an existing file either.
  if (::link(from.c_str(), to.c_str()) != 0) return errno;
  return ::unlink(from.c_str()) == 0 ? 0 : errno;
}

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

LogFile::LogFile(std::string path, std::uint64_t rotate_bytes, const LogLayout* layout)
    : path_(std::move(path)), rotate_bytes_(rotate_bytes), layout_(layout) {}

bool LogFile::open() {
  const auto try_open = [&] { return ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666); };
  int fd = try_open();
  if (fd < 0 && errno == ENOENT) {
    // The disk was full when the attempt began, or another program has removed the directory.
    if (layout_ == nullptr || layout_->restore()) {
      const std::string worker_dir = path_.substr(0, path_.rfind('/'));
      ::mkdir(worker_dir.substr(0, worker_dir.rfind('/')).c_str(), 0777);
      ::mkdir(worker_dir.c_str(), 0777);
    }
    fd = try_open();
  }
  if (fd < 0) {
    const int err = errno;
    failed(err);
    errno = err;
    return false;
  }
  fd_.reset(fd);
  struct stat info {};
  size_ = ::fstat(fd, &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
  return true;
}

void LogFile::write(std::string_view bytes) {
  if (failing_) {
    if (Clock::now() < retry_at_) return count_lost(bytes);
    // Resume with a whole line: a part of one would look like output of the worker.
    if (!lost_whole_lines_) {
      const std::size_t newline = bytes.find('\n');
      const std::size_t rest = newline == std::string_view::npos ? bytes.size() : newline + 1;
      count_lost(bytes.substr(0, rest));
      bytes.remove_prefix(rest);
      if (bytes.empty()) return;
    }
    failing_ = false;
    if (!fd_ && !open()) return count_lost(bytes);
    if (!at_line_start_) {
      const std::uint64_t lost = lost_;
      append("\n");
      lost_ = lost;  // this byte was not the worker's
    }
  } else if (!fd_ && !open()) {
    return count_lost(bytes);
  }
  while (!bytes.empty()) {
    if (failing_) return count_lost(bytes);
    const std::size_t count = fitting_size(bytes);
    if (count == 0) {
      rotate();
      continue;
    }
    append(bytes.substr(0, count));
    bytes.remove_prefix(count);
  }
}

/// How many of `bytes` go into this file; 0: it is full.
std::size_t LogFile::fitting_size(std::string_view bytes) const {
  if (rotate_bytes_ == 0 || size_ + bytes.size() <= rotate_bytes_) return bytes.size();
  const std::size_t room = size_ < rotate_bytes_ ? static_cast<std::size_t>(rotate_bytes_ - size_) : 0;
  const std::size_t last_end = bytes.substr(0, room).rfind('\n');
  if (last_end != std::string_view::npos) return last_end + 1;
  if (at_line_start_ && size_ > 0) return 0;
  // In the middle of a line: up to `max_line_overrun` above the limit.
  const std::uint64_t max_size = rotate_bytes_ + max_line_overrun;
  const std::string_view rest = bytes.substr(0, size_ < max_size ? static_cast<std::size_t>(max_size - size_) : 0);
  const std::size_t end = rest.find('\n');
  return end != std::string_view::npos ? end + 1 : rest.size();
}

void LogFile::rotate() {
  int err = EEXIST;
  // Names may be taken, by an earlier run or another program.
  while (err == EEXIST) err = rename_to_new(path_, concat(path_, '.', ++rotated_));
  // ENOENT: another program has removed the file; a new one is made below.
  if (err != 0 && err != ENOENT) {
    // A file that is too big is better than lost bytes.
    rotation_error_ = concat("cannot set ", path_, " aside: ", std::strerror(err));
    rotate_bytes_ = 0;
    return;
  }
  fd_.reset();
  at_line_start_ = true;
  open();
}

void LogFile::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      failed(errno);
      return count_lost(bytes);
    }
    const auto count = static_cast<std::size_t>(written);
    size_ += count;
    at_line_start_ = bytes[count - 1] == '\n';
    bytes.remove_prefix(count);
  }
}

void LogFile::failed(int err) {
  if (first_error_.empty()) first_error_ = concat("cannot write ", path_, ": ", std::strerror(err));
  failing_ = true;
  retry_at_ = Clock::now() + retry_delay;
}

void LogFile::count_lost(std::string_view bytes) {
  if (bytes.empty()) return;
  lost_ += bytes.size();
  lost_whole_lines_ = bytes.back() == '\n';
}

StreamPlan plan_stream(const OutputOptions& options, StreamId stream, int slot, StreamTargets targets) {
  const LogSpec& log = options.log;
  const WorkerPlace& place = options.places[static_cast<std::size_t>(slot)];
  const StreamChoice& choice = options.program_of(place).streams;
  const auto has = [&](const StreamSelection& selection) {
    const Streams streams = selection.of(place.number);
    return stream == StreamId::out ? has_out(streams) : has_err(streams);
  };
  const auto& filters = stream == StreamId::out ? log.duplicate_stdout_filters : log.duplicate_stderr_filters;
  const bool listed = !choice.local_ranks_filter || choice.local_ranks_filter->contains(place.number);
  const bool redirected = has(choice.redirects) && !targets.unavailable;

  StreamPlan plan;
  const bool teed = has(choice.tee);
  plan.file = targets.files && (redirected || teed);
  plan.console = listed && (teed || !redirected);
  plan.duplicate = targets.files && !filters.empty();

  const bool piped =
      (plan.console && (options.decorates() || plan.file)) || (plan.file && log.rotate_bytes > 0) || plan.duplicate;
  if (piped) plan.kind = StreamPlan::Kind::piped;
  else if (plan.file) plan.kind = StreamPlan::Kind::direct_file;
  else if (plan.console) plan.kind = StreamPlan::Kind::inherit;
  // A stderr that is not shown is read for the failure report.
  else plan.kind = stream == StreamId::err ? StreamPlan::Kind::piped : StreamPlan::Kind::discard;

  switch (log.pty) {
    case PtyUse::never: break;
    case PtyUse::automatic:
      plan.pty = piped && plan.console && targets.terminal && options.workers() <= max_workers_with_ptys;
      break;
    case PtyUse::always:
      // A single worker inherits ddrun's terminal.
      plan.pty =
          plan.kind != StreamPlan::Kind::discard && !(plan.kind == StreamPlan::Kind::inherit && targets.terminal);
      if (plan.pty) plan.kind = StreamPlan::Kind::piped;
      break;
  }
  return plan;
}

// ---- where files are

namespace {

std::string random_name() {
  static constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::array<unsigned char, 8> bytes{};
  if (!fill_random(std::as_writable_bytes(std::span(bytes)))) {
    // The name must only be unique, which mkdir() checks.
    for (auto& byte : bytes) byte = static_cast<unsigned char>(std::rand());
  }
  std::string name;
  for (const unsigned char byte : bytes) name += letters[byte % letters.size()];
  return name;
}

Errc code_for(int err) { return err == ENOTDIR || err == ENAMETOOLONG ? Errc::invalid_argument : Errc::unavailable; }

/// A new directory that only this user can enter, `parent`/`prefix`_<8 random>.
Result<std::string> make_private_dir(const std::string& parent, std::string_view prefix,
                                     const LogLayout::Announce& announce = {}) {
  for (int attempts = 0;; ++attempts) {
    std::string path = concat(parent, '/', prefix, '_', random_name());
    TRY(announce ? announce(path) : Result<void>());
    if (::mkdir(path.c_str(), 0700) == 0) return path;
    if (errno != EEXIST || attempts == 100) {
      return fail_errno(code_for(errno), concat("cannot make a directory in the log directory ", parent), errno);
    }
  }
}

Result<void> make_dirs(const std::string& path) {
  for (std::size_t slash = 0; slash != std::string::npos;) {
    slash = path.find('/', slash + 1);
    const std::string part = path.substr(0, slash);
    if (part.empty() || ::mkdir(part.c_str(), 0777) == 0 || errno == EEXIST) continue;
    const int err = errno;
    struct stat info {};
    // A directory that exists may answer EROFS or EACCES instead of EEXIST.
    if (::stat(part.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) continue;
    return fail_errno(code_for(err), concat("cannot make the log directory ", path), err);
  }
  return {};
}

/// Makes a directory, or accepts an existing one of this user.
Result<void> make_own_dir(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0) return {};
  const int err = errno;
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid()) return {};
  return fail_errno(code_for(err), concat("cannot make ", path), err);
}

std::string temporary_root() {
  const char* dir = std::getenv("TMPDIR");
  return dir != nullptr && *dir != '\0' ? dir : "/tmp";
}

const char* name_of(StreamId stream) { return stream == StreamId::out ? "stdout.log" : "stderr.log"; }

}  // namespace

LogLayout::LogLayout(const OutputOptions& options) : options_(options), run_id_(options.run_id) {
  const LogSpec& log = options.log;
  files_allowed_ = log.dir != "/dev/null";
  if (!files_allowed_) return;
  if (log.dir) requested_root_ = *log.dir;
  while (requested_root_.size() > 1 && requested_root_.back() == '/') requested_root_.pop_back();
  wanted_ = log.dir.has_value() || !log.duplicate_stdout_filters.empty() || !log.duplicate_stderr_filters.empty() ||
            std::ranges::any_of(options.programs, [](const ProgramSpec& program) {
              return program.streams.redirects.any() || program.streams.tee.any();
            });
  for (char& c : run_id_) {
    if (c == '/') c = '_';
  }
}

Result<void> LogLayout::make_root(const Announce& announce) {
  if (requested_root_.empty()) {
    std::string base = temporary_root();
    // A directory for error files alone is usually empty and removed with the job. In memory that takes a tenth of a
    // short job's time less than on a disk.
    if (!wanted_ && std::getenv("TMPDIR") == nullptr && ::access("/dev/shm", W_OK | X_OK) == 0) base = "/dev/shm";
    Result<void> announced;
    const auto announce_unused = [&](const std::string& path) {
      if (!wanted_ && announce) announced = announce(path);
      return announced;
    };
    auto made = make_private_dir(base, "ddrun", announce_unused);
    if (!announced) return fail(announced.error().code, announced.error().message + "; set TMPDIR to a shorter path");
    if (!made && base != "/tmp") made = make_private_dir("/tmp", "ddrun", announce_unused);
    // Without log files only the error file has no place then: the job starts without.
    if (!made && !wanted_) return {};
    if (!made) {
      return fail(made.error().code, made.error().message + "; name a better place with --log-dir", made.error().cause);
    }
    root_ = *made;
    return {};
  }
  struct stat info {};
  if (::stat(requested_root_.c_str(), &info) == 0 && !S_ISDIR(info.st_mode)) {
    return fail(Errc::invalid_argument, concat("--log-dir: ", requested_root_, " is not a directory"));
  }
  TRY(make_dirs(requested_root_));
  if (::access(requested_root_.c_str(), W_OK | X_OK) != 0) {
    return fail_errno(Errc::unavailable, concat("--log-dir: cannot write in ", requested_root_), errno);
  }
  // The workers get these paths, and may have another working directory.
  char* absolute = ::realpath(requested_root_.c_str(), nullptr);
  root_ = absolute != nullptr ? absolute : requested_root_;
  std::free(absolute);
  return {};
}

Result<void> LogLayout::prepare(const Announce& announce) {
  if (!files_allowed_) return {};
  if (auto made = make_root(announce); !made || !wanted_) return made;
  run_dir_ = TRY(make_private_dir(root_, run_id_));
  return {};
}

Result<void> LogLayout::link_latest() const {
  if (requested_root_.empty() || run_dir_.empty()) return {};
  const std::string link = concat(root_, "/latest");
  struct stat info {};
  if (::lstat(link.c_str(), &info) == 0 && !S_ISLNK(info.st_mode)) {
    return fail(Errc::invalid_argument, concat(link, " is no symbolic link and stays as it is"));
  }
  const std::string made = concat(root_, "/.latest_", random_name());
  if (::symlinkat(run_dir_.c_str() + run_dir_.rfind('/') + 1, AT_FDCWD, made.c_str()) == 0 &&
      ::rename(made.c_str(), link.c_str()) == 0) {
    return {};
  }
  const int err = errno;
  ::unlink(made.c_str());
  if (::lstat(link.c_str(), &info) != 0) return fail_errno(Errc::unavailable, concat("cannot make ", link), err);
  return fail_errno(Errc::invalid_argument, concat("cannot replace ", link, ", which leads to another run"), err);
}

Result<void> LogLayout::restore() const {
  auto made = requested_root_.empty() ? make_own_dir(root_) : make_dirs(root_);
  // $TMPDIR itself may have been removed.
  if (!made && made.error().cause.value() == ENOENT && make_dirs(root_.substr(0, root_.rfind('/')))) {
    made = make_own_dir(root_);
  }
  return made && wanted_ ? make_own_dir(run_dir_) : made;
}

Result<void> LogLayout::begin_attempt(int attempt) {
  attempt_ = attempt;
  Result<void> made = wanted_ ? make_attempt() : Result<void>{};
  const bool missing = !made && made.error().cause.value() == ENOENT;
  if (std::exchange(has_begun_, true) && !root_.empty() && (missing || !wanted_)) {
    made = restore();
    if (made && wanted_) made = make_attempt();
  }
  unavailable_ = !made && !disk_is_full(made.error().cause.value());
  if (unavailable_) attempt_dir_.clear();
  return made;
}

Result<void> LogLayout::make_attempt() {
  const std::string plain = concat(run_dir_, "/attempt_", attempt_);
  attempt_dir_ = plain;
  for (int number = 2; ::mkdir(attempt_dir_.c_str(), 0777) != 0; ++number) {
    if (errno != EEXIST) return fail_errno(code_for(errno), concat("cannot make ", attempt_dir_), errno);
    attempt_dir_ = concat(plain, '.', number);
  }
  const auto make = [](const std::string& dir) -> Result<void> {
    if (::mkdir(dir.c_str(), 0777) == 0) return {};
    return fail_errno(code_for(errno), concat("cannot make ", dir), errno);
  };
  if (options_.has_several_programs()) {
    for (const ProgramSpec& program : options_.programs) TRY(make(concat(attempt_dir_, '/', program.role)));
  }
  for (std::size_t slot = 0; slot < options_.places.size(); ++slot) {
    TRY(make(concat(attempt_dir_, '/', folder_of(slot))));
  }
  return {};
}

std::string LogLayout::folder_of(std::size_t slot) const {
  const WorkerPlace& place = options_.places[slot];
  if (!options_.has_several_programs()) return std::to_string(place.local_rank);
  return concat(options_.program_of(place).role, '/', place.local_rank);
}

std::string LogLayout::stream_log(StreamId stream, int slot) const {
  if (attempt_dir_.empty()) return {};
  return concat(attempt_dir_, '/', folder_of(static_cast<std::size_t>(slot)), '/', name_of(stream));
}

std::string LogLayout::filtered_log(StreamId stream) const {
  return attempt_dir_.empty() ? "" : concat(attempt_dir_, "/filtered_", name_of(stream));
}

std::string LogLayout::error_file(int slot) const {
  if (!attempt_dir_.empty()) {
    return concat(attempt_dir_, '/', folder_of(static_cast<std::size_t>(slot)), "/error.json");
  }
  return root_.empty() || unavailable_ ? "" : concat(root_, "/error_", attempt_, '_', slot, ".json");
}

void LogLayout::remove_error_files() const {
  if (wanted_ || root_.empty()) return;
  std::error_code ec;
  for (std::filesystem::directory_iterator file(root_, ec), end; !ec && file != end; file.increment(ec)) {
    std::error_code stays;
    if (file->path().filename().string().starts_with("error_")) std::filesystem::remove_all(file->path(), stays);
  }
}

bool LogLayout::remove_if_unused() {
  // rmdir refuses a directory that has something in it.
  return wanted_ || root_.empty() || ::rmdir(root_.c_str()) == 0 || errno != ENOTEMPTY;
}

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
  StreamPlan plan = plan_stream(options_, id, slot, targets);
  // A pseudo-terminal that is closed would send SIGHUP.
  plan.closes_unread = options_.closes_unread && id == StreamId::out && !layout_.wants_files() && !plan.pty;
  return plan;
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
