#include "ddrun/rendezvous/secret.hpp"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::rendezvous {

namespace {

/// Kubernetes mounts a Secret as a read-only tmpfs owned by root with mode 0644: only processes in the container see
/// it.
bool is_mounted_secret(int fd, const struct stat& info) {
  struct statfs kind {};
  struct statvfs mount {};
  return info.st_uid == 0 && (info.st_mode & 022U) == 0 && ::fstatfs(fd, &kind) == 0 && kind.f_type == TMPFS_MAGIC &&
         ::fstatvfs(fd, &mount) == 0 && (mount.f_flag & ST_RDONLY) != 0;
}

Result<void> check_file(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return fail_errno(Errc::unavailable, concat("the secret file ", path), errno);
  if (!S_ISREG(info.st_mode)) {
    return fail(Errc::invalid_argument, concat("the secret file ", path, " is not a regular file"));
  }
  if (is_mounted_secret(fd, info)) return {};
  if (info.st_uid != ::geteuid()) {
    return fail(Errc::invalid_argument, concat("the secret file ", path, " belongs to user ", info.st_uid,
                                               ", not to user ", ::geteuid(), " who runs this job"));
  }
  if ((info.st_mode & 077U) != 0) {
    return fail(Errc::invalid_argument,
                concat("others may read or write the secret file ", path, ": if none has, chmod 600 ",
                       shell_quote(path), "; else remove it and make a new one with 'ddrun secret new'"));
  }
  return {};
}

/// `missing_is_fine`: returns empty for a missing file.
Result<std::optional<Secret>> read_secret(const std::string& path, bool missing_is_fine) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) {
    if (missing_is_fine && (errno == ENOENT || errno == ENOTDIR)) return std::optional<Secret>();
    return fail_errno(errno == ENOENT ? Errc::invalid_argument : Errc::unavailable,
                      concat("cannot read the secret file ", path), errno);
  }
  TRY(check_file(fd.get(), path));

  std::string text(Secret::max_size + 16, '\0');  // room for what trim_typed() strips, and to detect more
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t n = ::read(fd.get(), text.data() + size, text.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      wipe(text);
      return fail_errno(Errc::unavailable, concat("cannot read the secret file ", path), error);
    }
    if (n == 0) break;
    size += static_cast<std::size_t>(n);
  }
  auto secret = Secret::from_text(std::string_view(text).substr(0, size));
  wipe(text);
  if (!secret) return fail(secret.error().code, concat("the secret file ", path, ": ", secret.error().message));
  return std::optional<Secret>(std::move(*secret));
}

Result<void> make_directories(const std::string& path) {
  for (std::size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
    const std::string directory = path.substr(0, at);
    if (::mkdir(directory.c_str(), 0700) == 0 || errno == EEXIST) continue;
    const int error = errno;
    // A directory that exists may answer EROFS or EACCES instead of EEXIST.
    if (::access(directory.c_str(), X_OK) == 0) continue;
    return fail_errno(Errc::unavailable, concat("cannot make the directory ", directory), error);
  }
  return {};
}

}  // namespace

void wipe(std::string& text) noexcept {
  text.resize(text.capacity());  // includes remains of a longer text; does not allocate
  ::explicit_bzero(text.data(), text.size());
  text.clear();
}

Result<Secret> Secret::from_text(std::string_view text) {
  text = trim_typed(text);
  if (text.size() < min_size) {
    return fail(Errc::invalid_argument, concat("a secret needs at least ", min_size, " bytes, this one has ",
                                               text.size(), "; 'ddrun secret new' makes a good one"));
  }
  if (text.size() > max_size) {
    return fail(Errc::invalid_argument, concat("a secret has at most ", max_size, " bytes, and this is longer"));
  }
  std::string bytes;
  bytes.reserve(64);  // above the small-string size: moving leaves no copy
  bytes = text;
  return Secret(std::move(bytes));
}

namespace {

/// Enough for 128 random bits in hexadecimal.
constexpr std::size_t long_enough = 32;

enum class Kind { lower, upper, digit, other, no_text };

Kind kind_of(char c) {
  if (c >= 'a' && c <= 'z') return Kind::lower;
  if (c >= 'A' && c <= 'Z') return Kind::upper;
  if (c >= '0' && c <= '9') return Kind::digit;
  return c > ' ' && c < 0x7f ? Kind::other : Kind::no_text;
}

}  // namespace

bool Secret::looks_strong() const {
  if (bytes_.size() >= long_enough) return true;
  std::size_t changes = 0;
  std::size_t no_text = 0;
  for (std::size_t i = 0; i < bytes_.size(); ++i) {
    if (i > 0 && kind_of(bytes_[i]) != kind_of(bytes_[i - 1])) ++changes;
    if (kind_of(bytes_[i]) == Kind::no_text && bytes_[i] != ' ') ++no_text;
  }
  std::array<bool, 256> seen{};
  for (const char c : bytes_) seen[static_cast<unsigned char>(c)] = true;
  const auto different = static_cast<std::size_t>(std::count(seen.begin(), seen.end(), true));
  ::explicit_bzero(seen.data(), sizeof seen);
  // Random bytes are not text; random digits and letters change character class often.
  return no_text * 4 >= bytes_.size() || (changes * 3 >= bytes_.size() && different * 5 >= bytes_.size() * 2);
}

std::string weak_secret_message() {
  return "the secret is short and looks like words: who can read the network may try guesses until one fits; "
         "'ddrun secret new' makes a good one";
}

Secret::Secret(Secret&& other) noexcept : bytes_(std::move(other.bytes_)) { wipe(other.bytes_); }

Secret& Secret::operator=(Secret&& other) noexcept {
  if (this != &other) {
    wipe(bytes_);
    bytes_ = std::move(other.bytes_);
    wipe(other.bytes_);
  }
  return *this;
}

Secret::~Secret() { wipe(bytes_); }

Result<std::optional<FoundSecret>> find_secret(const RendezvousSpec& spec, const EnvironmentLookup& variable) {
  if (!spec.secret_file) {
    if (const auto text = variable("DDRUN_SECRET"); text && !text->empty()) {
      auto secret = Secret::from_text(*text);
      if (!secret) return fail(secret.error().code, concat("DDRUN_SECRET: ", secret.error().message));
      return FoundSecret{std::move(*secret), ""};
    }
  }
  const auto path = spec.secret_file ? spec.secret_file : secret_path(variable);
  if (!path) return std::optional<FoundSecret>();
  auto secret = TRY(read_secret(*path, !spec.secret_file));
  if (!secret) return std::optional<FoundSecret>();
  return FoundSecret{std::move(*secret), *path};
}

Result<FoundSecret> find_or_make_secret(const RendezvousSpec& spec, const EnvironmentLookup& variable) {
  const auto cannot = [](std::string_view why) {
    return fail(
        Errc::invalid_argument,
        concat("a job on several machines needs a secret that all of them know, and none can be made here: ", why,
               "; give --secret-file or DDRUN_SECRET (--insecure: admit any process that reaches the port)"));
  };
  auto found = TRY(find_secret(spec, variable));
  if (found) return std::move(*found);
  const auto path = secret_path(variable);
  if (!path) return cannot("neither XDG_CONFIG_HOME nor HOME is set");
  auto text = new_secret_text();
  if (!text) return cannot(text.error().message);
  const auto written = write_new_secret(*path, *text);
  wipe(*text);
  if (!written && written.error().cause != std::errc::file_exists) return cannot(written.error().message);
  found = TRY(find_secret(spec, variable));
  if (!found) return cannot(concat(*path, " cannot be read again"));
  found->is_new = written.has_value();
  return std::move(*found);
}

std::string new_secret_message(const std::string& file) {
  return concat("made a secret for jobs on several machines: ", file,
                "; machines that do not share it need a copy, with mode 600");
}

std::string other_secret_advice(const std::string& file, const std::string& host, const std::string& from,
                                const std::string& to) {
  if (!file.starts_with('/')) return "give all agents the same one (--secret-file or DDRUN_SECRET)";
  const auto place = [&](const std::string& machine) {
    const bool needs_brackets = machine.find(':') != std::string::npos;
    return shell_quote(
        machine.empty() ? file : concat(needs_brackets ? "[" : "", machine, needs_brackets ? "]" : "", ":", file));
  };
  return concat("this machine's is ", file, " on ", host, "; copy one, here:\n  scp -p ", place(from), " ", place(to),
                "\n  (the other's place is what its ddrun says), or give all the same --secret-file or DDRUN_SECRET");
}

std::optional<std::string> secret_path(const EnvironmentLookup& variable) {
  if (const auto config = variable("XDG_CONFIG_HOME"); config && config->starts_with('/')) {
    return concat(*config, "/ddrun/secret");
  }
  if (const auto home = variable("HOME"); home && home->starts_with('/')) {
    return concat(*home, "/.config/ddrun/secret");
  }
  return std::nullopt;
}

Result<std::string> new_secret_text() {
  std::array<std::byte, 32> bytes{};
  TRY(fill_random(bytes));
  return in_hex(bytes);
}

Result<void> write_new_secret(const std::string& path, std::string_view text) {
  TRY(make_directories(path));
  // Written under a temporary name, so that no reader sees half a secret.
  const std::string unfinished = concat(path, ".", random_id());
  UniqueFd fd(::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return fail_errno(Errc::unavailable, concat("cannot write ", path), errno);
  // fchmod first: the umask may have removed our own read permission. Network file systems report a full disk at close.
  bool written = ::fchmod(fd.get(), 0600) == 0 && write_all(fd.get(), text.data(), text.size()) &&
                 write_all(fd.get(), "\n", 1) && ::fsync(fd.get()) == 0;
  int error = errno;
  if (::close(fd.release()) != 0 && written) {
    written = false;
    error = errno;
  }
  if (written) {
    // Some file systems lack hard links, others (NFS) rename without replacing.
    written =
        ::link(unfinished.c_str(), path.c_str()) == 0 ||
        (errno != EEXIST && ::renameat2(AT_FDCWD, unfinished.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) == 0);
    error = errno;
  }
  ::unlink(unfinished.c_str());
  if (written) return {};
  if (error == EEXIST) {
    return fail(Errc::invalid_argument,
                concat(path, " exists already and was left as it is: copy it to machines that are to join; remove it ",
                       "first to make a new one"),
                std::make_error_code(std::errc::file_exists));
  }
  return fail_errno(Errc::unavailable, concat("cannot write ", path, ", nothing was kept"), error);
}

std::string random_id() {
  std::array<std::byte, 16> bytes{};
  if (!fill_random(bytes)) {
    // Only uniqueness matters here.
    const auto now = Clock::now().time_since_epoch().count();
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(now >> i);
  }
  bytes[6] = (bytes[6] & std::byte{0x0f}) | std::byte{0x40};
  bytes[8] = (bytes[8] & std::byte{0x3f}) | std::byte{0x80};
  const std::string digits = in_hex(bytes);
  const std::string_view all = digits;
  return concat(all.substr(0, 8), '-', all.substr(8, 4), '-', all.substr(12, 4), '-', all.substr(16, 4), '-',
                all.substr(20));
}

}  // namespace ddrun::rendezvous
