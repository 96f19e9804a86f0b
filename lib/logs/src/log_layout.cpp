#include "log_layout.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::logs {

StreamPlan plan_stream(const LogSpec& log, StreamId stream, int local_rank, int local_world_size, StreamPlaces places) {
  const auto has = [&](const StreamSelection& selection) {
    const Streams streams = selection.of(local_rank);
    return stream == StreamId::out ? has_out(streams) : has_err(streams);
  };
  const auto& filters = stream == StreamId::out ? log.duplicate_stdout_filters : log.duplicate_stderr_filters;
  const bool listed = !log.local_ranks_filter || log.local_ranks_filter->contains(local_rank);
  const bool redirected = has(log.redirects);

  StreamPlan plan;
  plan.teed = has(log.tee);
  plan.file = places.files && (redirected || plan.teed);
  plan.console = listed && (plan.teed || !redirected);
  plan.duplicate = places.files && !filters.empty();

  const bool decorated = local_world_size > 1 || plan.teed || log.timestamps || !log.line_prefix_template.empty() ||
                         (log.label != Label::automatic && log.label != Label::none);
  const bool piped =
      (plan.console && (decorated || plan.file)) || (plan.file && log.rotate_bytes > 0) || plan.duplicate;
  if (piped) plan.kind = StreamPlan::Kind::piped;
  else if (plan.file) plan.kind = StreamPlan::Kind::direct_file;
  else if (plan.console) plan.kind = StreamPlan::Kind::inherit;
  // Nobody sees it, but if the worker fails, its last words are wanted.
  else plan.kind = stream == StreamId::err ? StreamPlan::Kind::piped : StreamPlan::Kind::discard;

  switch (log.pty) {
    case PtyUse::never: break;
    case PtyUse::automatic:
      plan.pty = piped && plan.console && places.terminal && local_world_size <= most_workers_with_ptys;
      break;
    case PtyUse::always:
      // A single worker that shares ddrun's terminal has one.
      plan.pty = plan.kind != StreamPlan::Kind::discard && !(plan.kind == StreamPlan::Kind::inherit && places.terminal);
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
    // Only uniqueness matters, and mkdir makes sure of that.
    for (auto& byte : bytes) byte = static_cast<unsigned char>(std::rand());
  }
  std::string name;
  for (const unsigned char byte : bytes) name += letters[byte % letters.size()];
  return name;
}

Errc code_for(int err) { return err == ENOTDIR || err == ENAMETOOLONG ? Errc::invalid_argument : Errc::unavailable; }

/// A new directory that only this user can enter, `parent`/`prefix`_<8 random>.
Result<std::string> make_private_dir(const std::string& parent, std::string_view prefix,
                                     const std::function<void(const std::string&)>& announce = {}) {
  for (int tries = 0;; ++tries) {
    std::string path = concat(parent, '/', prefix, '_', random_name());
    if (announce) announce(path);
    if (::mkdir(path.c_str(), 0700) == 0) return path;
    if (errno != EEXIST || tries == 100) {
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
    struct stat there {};
    // A directory that exists may answer EROFS or EACCES instead of EEXIST.
    if (::stat(part.c_str(), &there) == 0 && S_ISDIR(there.st_mode)) continue;
    return fail_errno(code_for(err), concat("cannot make the log directory ", path), err);
  }
  return {};
}

std::string temporary_root() {
  const char* dir = std::getenv("TMPDIR");
  return dir != nullptr && *dir != '\0' ? dir : "/tmp";
}

const char* name_of(StreamId stream) { return stream == StreamId::out ? "stdout.log" : "stderr.log"; }

}  // namespace

LogLayout::LogLayout(const LogSpec& log, std::string_view run_id) : run_id_(run_id) {
  allowed_ = log.dir != "/dev/null";
  if (!allowed_) return;
  if (log.dir) given_root_ = *log.dir;
  while (given_root_.size() > 1 && given_root_.back() == '/') given_root_.pop_back();
  wanted_ = log.dir.has_value() || log.redirects.any() || log.tee.any() || !log.duplicate_stdout_filters.empty() ||
            !log.duplicate_stderr_filters.empty();
  for (char& c : run_id_) {
    if (c == '/') c = '_';
  }
}

Result<void> LogLayout::make_root(const Announce& announce) {
  if (given_root_.empty()) {
    std::string base = temporary_root();
    // A place for error files alone is empty as a rule and gone with the job: memory is faster to make and remove it in
    // than a disk, and that is a tenth of a short job's time.
    if (!wanted_ && std::getenv("TMPDIR") == nullptr && ::access("/dev/shm", W_OK | X_OK) == 0) base = "/dev/shm";
    const Announce announce_unused = wanted_ ? Announce() : announce;
    auto made = make_private_dir(base, "ddrun", announce_unused);
    if (!made && base != "/tmp") made = make_private_dir("/tmp", "ddrun", announce_unused);
    if (!made) {
      return fail(made.error().code, made.error().message + "; name a better place with --log-dir", made.error().cause);
    }
    root_ = *made;
    return {};
  }
  struct stat there {};
  if (::stat(given_root_.c_str(), &there) == 0 && !S_ISDIR(there.st_mode)) {
    return fail(Errc::invalid_argument, concat("--log-dir: ", given_root_, " is not a directory"));
  }
  if (auto made = make_dirs(given_root_); !made) return made;
  if (::access(given_root_.c_str(), W_OK | X_OK) != 0) {
    return fail_errno(Errc::unavailable, concat("--log-dir: cannot write in ", given_root_), errno);
  }
  // The workers get these paths, and may have another working directory.
  char* absolute = ::realpath(given_root_.c_str(), nullptr);
  root_ = absolute != nullptr ? absolute : given_root_;
  std::free(absolute);
  return {};
}

Result<void> LogLayout::prepare(const Announce& announce) {
  if (!allowed_) return {};
  if (auto made = make_root(announce); !made) {
    // Without log files only the error file has no place then, and that is no reason not to start.
    if (!wanted_) return {};
    return made;
  }
  if (!wanted_) return {};
  auto run_dir = make_private_dir(root_, run_id_);
  if (!run_dir) return tl::unexpected<Error>(run_dir.error());
  run_dir_ = *run_dir;
  return {};
}

Result<void> LogLayout::begin_attempt(int attempt, const std::vector<int>& local_ranks) {
  attempt_ = attempt;
  if (!wanted_) return {};
  const std::string plain = concat(run_dir_, "/attempt_", attempt);
  attempt_dir_ = plain;
  for (int turn = 2; ::mkdir(attempt_dir_.c_str(), 0777) != 0; ++turn) {
    if (errno != EEXIST) return fail_errno(code_for(errno), concat("cannot make ", attempt_dir_), errno);
    attempt_dir_ = concat(plain, '.', turn);
  }
  for (const int local_rank : local_ranks) {
    const std::string dir = concat(attempt_dir_, '/', local_rank);
    if (::mkdir(dir.c_str(), 0777) != 0) return fail_errno(code_for(errno), concat("cannot make ", dir), errno);
  }
  return {};
}

std::string LogLayout::stream_log(StreamId stream, int local_rank) const {
  return attempt_dir_.empty() ? "" : concat(attempt_dir_, '/', local_rank, '/', name_of(stream));
}

std::string LogLayout::filtered_log(StreamId stream) const {
  return attempt_dir_.empty() ? "" : concat(attempt_dir_, "/filtered_", name_of(stream));
}

std::string LogLayout::error_file(int local_rank) const {
  if (!attempt_dir_.empty()) return concat(attempt_dir_, '/', local_rank, "/error.json");
  return root_.empty() ? "" : concat(root_, "/error_", attempt_, '_', local_rank, ".json");
}

void LogLayout::remove_if_unused() {
  // rmdir refuses a directory that has something in it.
  if (!wanted_ && !root_.empty()) ::rmdir(root_.c_str());
}

}  // namespace ddrun::logs
